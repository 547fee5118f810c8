"""Healthy: two epochs with a little validation, a checkpoint and a logger."""
# ruff: noqa: ARG002, TC002 - Lightning fixes the signatures of hooks

from __future__ import annotations

import tempfile

import torch
from lightning.pytorch.loggers import CSVLogger

from benchmarks.diagnosis.training import BATCH, CORES, Net, Training, in_memory

EXPECTED = None


class Validated(Net):
    """The same network, validated."""

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch, logged."""
        loss = self.loss(batch)
        self.log("loss", loss, batch_size=BATCH)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.loss(batch), batch_size=BATCH)


def fixed() -> Training:
    """As people train."""
    settings = {"max_epochs": 2, "logger": CSVLogger(tempfile.mkdtemp()), "enable_checkpointing": True}
    return Training(Validated(layers=10), in_memory(40), in_memory(2), settings=settings, threads=CORES)
