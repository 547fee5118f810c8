"""Healthy: a model that computes on all cores."""

from __future__ import annotations

import os

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = None


def fixed() -> Training:
    """Large products."""
    return Training(Net(width=1024, layers=6), in_memory(), threads=os.cpu_count() or 1)
