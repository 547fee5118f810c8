"""Far more threads than cores."""

from __future__ import annotations

from benchmarks.diagnosis.training import CORES, Net, Training, in_memory

EXPECTED = "host.threads"


def _training(threads: int) -> Training:
    return Training(Net(), in_memory(), threads=threads)


def slow() -> Training:
    """As on a node of which a container has a part."""
    return _training(8 * CORES)


def fixed() -> Training:
    """As many as cores."""
    return _training(CORES)
