"""Healthy: a dataset in memory."""

from __future__ import annotations

from benchmarks.diagnosis.training import CORES, Net, Training, in_memory

EXPECTED = None


def fixed() -> Training:
    """No workers, and none are needed."""
    return Training(Net(width=768, layers=8), in_memory(), threads=CORES)
