"""Every error lightning_perf raises on purpose.

    PerfError
    ├── TraceError    a trace file cannot be read, or holds nothing that could be saved
    ├── RecordError   a run.json or analysis.json is missing, damaged or of another schema
    ├── ConfigError   a setting is wrong (also a ValueError)
    ├── CompareError  two runs or traces cannot be compared, or not in what was asked for
    └── NothingToShow a figure has no data

A message says what was got, what was expected, and what to do next, in one line.
"""

from __future__ import annotations

__all__ = ["CompareError", "ConfigError", "NothingToShow", "PerfError", "RecordError", "TraceError"]


class PerfError(Exception):
    """Base of all errors raised by lightning_perf."""


class TraceError(PerfError):
    """A trace file cannot be read, or nothing in it could be saved."""


class RecordError(PerfError):
    """A stored record (``run.json``, ``analysis.json``) is missing, damaged or of another schema."""


class ConfigError(PerfError, ValueError):
    """A setting of the callback or of the command line is wrong."""


class CompareError(PerfError):
    """Two runs or traces cannot be compared, or not in what was asked for."""


class NothingToShow(PerfError):  # noqa: N818 - it says what is missing; nothing went wrong
    """A figure was asked for whose data the run or the trace does not have."""
