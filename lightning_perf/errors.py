"""Every error lightning_perf raises on purpose.

    PerfError
    ├── TraceError    a trace file cannot be read, or holds nothing that could be saved
    ├── RecordError   a run.json or analysis.json is missing, damaged or of another schema
    └── ConfigError   a setting is wrong (also a ValueError)

A message says what was got, what was expected, and what to do next, in one line.
"""

from __future__ import annotations

__all__ = ["ConfigError", "PerfError", "RecordError", "TraceError"]


class PerfError(Exception):
    """Base of all errors raised by lightning_perf."""


class TraceError(PerfError):
    """A trace file cannot be read, or nothing in it could be saved."""


class RecordError(PerfError):
    """A stored record (``run.json``, ``analysis.json``) is missing, damaged or of another schema."""


class ConfigError(PerfError, ValueError):
    """A setting of the callback or of the command line is wrong."""
