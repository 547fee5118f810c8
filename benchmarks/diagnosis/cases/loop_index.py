"""A loss that is computed element by element."""

from __future__ import annotations

import torch

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.loop_index"


class Weighted(Net):
    """Weighs hard features higher."""

    def __init__(self, *, loop: bool) -> None:
        super().__init__(layers=2)
        self.loop = loop

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        inputs, _ = batch
        means = inputs.mean(dim=0)
        if self.loop:
            weight = torch.zeros(())
            for feature in range(len(means)):
                weight = weight + means[feature] * means[feature]
        else:
            weight = means.square().sum()
        return self.loss(batch) * weight


def slow() -> Training:
    """Three operators for each of 256 elements."""
    return Training(Weighted(loop=True), in_memory())


def fixed() -> Training:
    """Two for all of them."""
    return Training(Weighted(loop=False), in_memory())
