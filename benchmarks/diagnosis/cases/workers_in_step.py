"""Two workers in step with each other, for a slow disk."""

from __future__ import annotations

from benchmarks.diagnosis.training import Net, Training, on_disk

EXPECTED = "data.too_few_workers"


def slow() -> Training:
    """Batches come in pairs."""
    return Training(Net(), on_disk(0.002, num_workers=2, persistent_workers=True))


def fixed() -> Training:
    """Enough of them do."""
    return Training(Net(), on_disk(0.002, num_workers=7, persistent_workers=True))
