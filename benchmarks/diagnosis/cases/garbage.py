"""A growing heap of small objects, walked by the garbage collector."""
# ruff: noqa: ARG002, D102, TC002 - Lightning fixes the signatures of hooks

from __future__ import annotations

import gc

import torch
from lightning.pytorch import Callback

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.gc"
RECORDS = 8_000


class Record:
    """Knows its neighbour, so that only the collector can free it."""

    def __init__(self, before: Record | None) -> None:
        self.neighbours = [self, before]


class Remembering(Net):
    """Keeps records of what it has seen."""

    def __init__(self) -> None:
        super().__init__(layers=2)
        self.history: list[list[Record]] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch; some records more."""
        self.history.append([Record(None) for _ in range(RECORDS)])
        return self.loss(batch)


class Freeze(Callback):
    """No automatic collection while training."""

    def on_train_start(self, *arguments: object) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()


def slow() -> Training:
    """The collector walks everything again and again."""
    return Training(Remembering(), in_memory())


def fixed() -> Training:
    """It is told to leave it."""
    return Training(Remembering(), in_memory(), callbacks=[Freeze()])
