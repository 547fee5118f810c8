"""Adam that visits 600 small tensors one by one."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.optimizer_loop"


class ManyTensors(Net):
    """A wide head of small layers; each batch trains on a few outputs of each."""

    def __init__(self, *, foreach: bool) -> None:
        super().__init__(layers=1)
        self.foreach = foreach
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(600))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch and of all scales."""
        return self.loss(batch) + torch.cat(list(self.scales)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, with or without multi-tensor kernels."""
        return torch.optim.Adam(self.parameters(), lr=0.001, foreach=self.foreach)


def slow() -> Training:
    """A dozen operators for each tensor."""
    return Training(ManyTensors(foreach=False), in_memory())


def fixed() -> Training:
    """A dozen for all of them."""
    return Training(ManyTensors(foreach=True), in_memory())
