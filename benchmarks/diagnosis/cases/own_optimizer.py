"""An optimizer written as a loop over parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from benchmarks.diagnosis.training import ManyTensors, Training, in_memory

EXPECTED = "host.optimizer_loop"


class Lion(torch.optim.Optimizer):
    """Evolved sign momentum, as papers print it."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, foreach: bool) -> None:
        super().__init__(parameters, {"lr": 0.0001, "foreach": foreach})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update, tensor by tensor or all at once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            held = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in held]
            momenta = [self.state[one].setdefault("momentum", torch.zeros_like(one)) for one in held]
            if group["foreach"]:
                _all_at_once(held, gradients, momenta, group["lr"])
            else:
                _one_by_one(held, gradients, momenta, group["lr"])
        return loss


def _one_by_one(
    held: list[torch.Tensor], gradients: list[torch.Tensor], momenta: list[torch.Tensor], lr: float
) -> None:
    for parameter, gradient, momentum in zip(held, gradients, momenta, strict=True):
        parameter.mul_(1 - lr * 0.1)
        parameter.add_(torch.sign(momentum * 0.9 + gradient * 0.1), alpha=-lr)
        momentum.mul_(0.99).add_(gradient, alpha=0.01)


def _all_at_once(
    held: list[torch.Tensor], gradients: list[torch.Tensor], momenta: list[torch.Tensor], lr: float
) -> None:
    torch._foreach_mul_(held, 1 - lr * 0.1)
    torch._foreach_add_(held, torch._foreach_sign(torch._foreach_lerp(momenta, gradients, 0.1)), alpha=-lr)
    torch._foreach_lerp_(momenta, gradients, 0.01)


def slow() -> Training:
    """Seven operators for each tensor."""
    return Training(ManyTensors(lambda parameters: Lion(parameters, foreach=False)), in_memory())


def fixed() -> Training:
    """Five for all of them."""
    return Training(ManyTensors(lambda parameters: Lion(parameters, foreach=True)), in_memory())
