"""Healthy: workers that keep up."""

from __future__ import annotations

from benchmarks.diagnosis.training import Net, Training, on_disk

EXPECTED = None


def fixed() -> Training:
    """Two workers for what takes less than a step."""
    return Training(Net(layers=12), on_disk(0.0003, num_workers=2, persistent_workers=True))
