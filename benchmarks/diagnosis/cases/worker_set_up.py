"""Workers that open an archive whenever they are started."""
# ruff: noqa: ARG001 - torch calls it with an argument

from __future__ import annotations

import time

from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import BATCH, Net, Training, points

EXPECTED = "data.worker_restart"
EPOCHS = 6


def open_archive(worker: int) -> None:
    """As slow as reading an index."""
    time.sleep(0.15)


def _training(*, persistent: bool) -> Training:
    loader = DataLoader(
        points(10 * BATCH),
        batch_size=BATCH,
        num_workers=1,
        worker_init_fn=open_archive,
        persistent_workers=persistent,
    )
    return Training(Net(), loader, settings={"max_epochs": EPOCHS})


def slow() -> Training:
    """Once for each epoch."""
    return _training(persistent=False)


def fixed() -> Training:
    """Once."""
    return _training(persistent=True)
