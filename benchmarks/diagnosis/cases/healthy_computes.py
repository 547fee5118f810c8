"""Healthy: a model that computes on all cores."""

from __future__ import annotations

from benchmarks.diagnosis.training import CORES, Net, Training, in_memory

EXPECTED = None


def fixed() -> Training:
    """Large products."""
    return Training(Net(width=1024, layers=6), in_memory(), threads=CORES)
