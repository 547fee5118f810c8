"""Thirty self.log calls in a step."""
# ruff: noqa: TC002 - nothing is gained by importing it later

from __future__ import annotations

import torch

from benchmarks.diagnosis.training import BATCH, Net, Training, in_memory

EXPECTED = "host.logging"


class Logging(Net):
    """Logs some keys in every step."""

    def __init__(self, keys: int) -> None:
        super().__init__(layers=2)
        self.keys = keys

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch, under many names."""
        loss = self.loss(batch)
        for key in range(self.keys):
            self.log(f"loss_{key}", loss, batch_size=BATCH)
        return loss


def slow() -> Training:
    """Each call costs Lightning's bookkeeping."""
    return Training(Logging(30), in_memory())


def fixed() -> Training:
    """One key is enough."""
    return Training(Logging(1), in_memory())
