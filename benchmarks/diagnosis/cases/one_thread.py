"""A model that computes, held to one thread."""

from __future__ import annotations

from benchmarks.diagnosis.training import CORES, Net, Training, in_memory

EXPECTED = "host.threads"


def _training(threads: int) -> Training:
    return Training(Net(width=1024, layers=6), in_memory(), threads=threads)


def slow() -> Training:
    """As OMP_NUM_THREADS=1 in a job script does."""
    return _training(1)


def fixed() -> Training:
    """All cores."""
    return _training(CORES)
