"""gc.collect() in every step, against running out of memory."""
# ruff: noqa: TC002 - nothing is gained by importing it later

from __future__ import annotations

import gc

import torch

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.gc"


class Careful(Net):
    """Collects garbage after some of its steps."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Loss of one batch."""
        if batch_idx % self.every == 0:
            gc.collect()
        return self.loss(batch)


def slow() -> Training:
    """Every object of the process is visited in each step."""
    return Training(Careful(1), in_memory(40))


def fixed() -> Training:
    """Hardly ever."""
    return Training(Careful(1000), in_memory(40))
