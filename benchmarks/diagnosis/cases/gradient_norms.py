"""Statistics of each gradient, read before every optimizer step."""
# ruff: noqa: ARG002, D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

import torch
from torch import nn

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.hook"


class Watched(Net):
    """Many small tensors, and a hook that looks at each."""

    def __init__(self, every: int) -> None:
        super().__init__(layers=2)
        self.every = every
        self.norms: dict[str, float] = {}
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(400))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch and of all scales."""
        return self.loss(batch) + torch.cat(list(self.scales)).square().mean()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.trainer.global_step % self.every == 0:
            for name, parameter in self.named_parameters():
                if parameter.grad is not None:
                    self.norms[f"{name}_norm"] = parameter.grad.norm().item()
                    self.norms[f"{name}_mean"] = parameter.grad.mean().item()
                    self.norms[f"{name}_max"] = parameter.grad.abs().max().item()


def slow() -> Training:
    """In every step."""
    return Training(Watched(1), in_memory())


def fixed() -> Training:
    """In every fiftieth."""
    return Training(Watched(50), in_memory())
