"""Validation after every fifth batch."""
# ruff: noqa: ARG002, TC002 - Lightning fixes the signatures of hooks

from __future__ import annotations

import torch

from benchmarks.diagnosis.training import BATCH, Net, Training, in_memory

EXPECTED = "host.validation"


class Validated(Net):
    """The same network, validated."""

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.loss(batch), batch_size=BATCH)


def _training(interval: float) -> Training:
    return Training(Validated(), in_memory(), in_memory(8), settings={"val_check_interval": interval})


def slow() -> Training:
    """Eight batches of validation for five of training."""
    return _training(5)


def fixed() -> Training:
    """Once an epoch."""
    return _training(1.0)
