"""Samples from a slow disk."""

from __future__ import annotations

from benchmarks.diagnosis.training import Net, Training, on_disk

EXPECTED = "data.sync_loader"


def slow() -> Training:
    """The training thread waits for every sample."""
    return Training(Net(), on_disk(0.001))


def fixed() -> Training:
    """Workers wait instead."""
    return Training(Net(), on_disk(0.001, num_workers=5, persistent_workers=True))
