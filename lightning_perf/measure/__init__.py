"""Trace -> Analysis: pure functions on columns."""
