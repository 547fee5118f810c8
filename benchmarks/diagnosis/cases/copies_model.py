"""A copy of the whole module after every step."""
# ruff: noqa: ARG002, D102, TC002 - Lightning fixes the signatures of hooks

from __future__ import annotations

import copy

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.hook"


class KeepBest(Callback):
    """Remembers the model."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.best: nn.Module | None = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: object) -> None:
        if trainer.global_step % self.every == 0:
            self.best = copy.deepcopy(pl_module.model)


def slow() -> Training:
    """All weights again and again."""
    return Training(Net(width=1024, layers=4), in_memory(batch_size=8), callbacks=[KeepBest(1)])


def fixed() -> Training:
    """After every thirtieth."""
    return Training(Net(width=1024, layers=4), in_memory(batch_size=8), callbacks=[KeepBest(30)])
