"""A loop over all gradients in on_after_backward."""
# ruff: noqa: D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

import torch
from torch import nn

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.hook"


class Net400(Net):
    """Many small tensors."""

    def __init__(self) -> None:
        super().__init__(layers=2)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(400))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch and of all scales."""
        return self.loss(batch) + torch.cat(list(self.scales)).square().mean()


class Cleaned(Net400):
    """Replaces what is not a number in each gradient."""

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                parameter.grad = torch.nan_to_num(parameter.grad)


def slow() -> Training:
    """Four operators for each tensor."""
    return Training(Cleaned(), in_memory())


def fixed() -> Training:
    """Without the hook."""
    return Training(Net400(), in_memory())
