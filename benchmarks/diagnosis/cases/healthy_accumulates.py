"""Healthy: gradients of four batches accumulated."""

from __future__ import annotations

from benchmarks.diagnosis.training import CORES, Net, Training, in_memory

EXPECTED = None


def fixed() -> Training:
    """Three steps of four have no optimizer."""
    return Training(Net(layers=10), in_memory(), settings={"accumulate_grad_batches": 4}, threads=CORES)
