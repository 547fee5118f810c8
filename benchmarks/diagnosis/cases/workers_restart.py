"""Short epochs whose workers are started again."""

from __future__ import annotations

from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import BATCH, Net, Training, points

EXPECTED = "data.worker_restart"
EPOCHS = 8


def _training(*, persistent: bool) -> Training:
    loader = DataLoader(points(8 * BATCH), batch_size=BATCH, num_workers=2, persistent_workers=persistent)
    return Training(Net(), loader, settings={"max_epochs": EPOCHS})


def slow() -> Training:
    """New worker processes in every epoch."""
    return _training(persistent=False)


def fixed() -> Training:
    """The same ones for the whole run."""
    return _training(persistent=True)
