"""A compiled model whose inputs change their shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import FEATURES, Net, Training

EXPECTED = "host.recompile"
STEPS = 40
LONGEST = 2 * STEPS


class Compiled(Net):
    """A compiled network, for each shape anew. Compilers of kernels are left out: they would take minutes."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        torch._dynamo.config.recompile_limit = 10 * STEPS
        self.run_compiled = torch.compile(self.model, backend="eager", dynamic=False)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Loss of one batch."""
        return self.run_compiled(batch).square().mean()


def grows(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch of as many rows as there are samples, and its number."""
    return torch.randn(STEPS + int(samples[0]), FEATURES)


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    """The same with empty rows up to the longest."""
    batch = grows(samples)
    return pad(batch, (0, 0, 0, LONGEST - len(batch)))


def _training(collate: Callable[[list[torch.Tensor]], torch.Tensor]) -> Training:
    return Training(Compiled(), DataLoader(torch.arange(STEPS), batch_size=1, collate_fn=collate))


def slow() -> Training:
    """Every batch is compiled for."""
    return _training(grows)


def fixed() -> Training:
    """One shape."""
    return _training(padded)
