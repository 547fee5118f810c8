"""One worker for a slow disk."""

from __future__ import annotations

from benchmarks.diagnosis.training import Net, Training, on_disk

EXPECTED = "data.too_few_workers"


def slow() -> Training:
    """The only worker does not keep up."""
    return Training(Net(), on_disk(0.001, num_workers=1, persistent_workers=True))


def fixed() -> Training:
    """Enough of them do."""
    return Training(Net(), on_disk(0.001, num_workers=6, persistent_workers=True))
