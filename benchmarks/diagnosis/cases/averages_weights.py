"""An average of the weights, kept tensor by tensor."""
# ruff: noqa: ARG002, D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.hook"


class Average(Callback):
    """Exponential moving average of all weights."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.average: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: object) -> None:
        if trainer.global_step % self.every:
            return
        for name, weight in pl_module.state_dict().items():
            before = self.average.setdefault(name, weight.clone())
            self.average[name] = before * 0.999 + weight * 0.001


def slow() -> Training:
    """After every step, with three copies of each tensor."""
    return Training(Net(width=768, layers=6), in_memory(batch_size=8), callbacks=[Average(1)])


def fixed() -> Training:
    """After every thirtieth."""
    return Training(Net(width=768, layers=6), in_memory(batch_size=8), callbacks=[Average(30)])
