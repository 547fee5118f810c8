"""Validation data that is slow to read."""
# ruff: noqa: ANN401, ARG002 - Lightning fixes the signatures of hooks

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.training import BATCH, FEATURES, Net, Training, points

EXPECTED = "host.validation"
EPOCHS = 6


class OnDisk(Dataset[list[torch.Tensor]]):
    """Each sample takes a millisecond in which nothing is computed."""

    def __len__(self) -> int:
        return 3 * BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        time.sleep(0.001)
        return [torch.full((FEATURES,), 0.01), torch.zeros(1)]


class Validated(Net):
    """The same network, validated."""

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.loss(batch), batch_size=BATCH)


def _training(**settings: Any) -> Training:
    train = DataLoader(points(10 * BATCH), batch_size=BATCH)
    validation = DataLoader(OnDisk(), batch_size=BATCH)
    return Training(Validated(), train, validation, settings={"max_epochs": EPOCHS, **settings})


def slow() -> Training:
    """After every short epoch."""
    return _training()


def fixed() -> Training:
    """After the last one."""
    return _training(check_val_every_n_epoch=EPOCHS)
