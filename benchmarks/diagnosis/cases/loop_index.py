"""A loss that is computed element by element."""

from __future__ import annotations

import torch

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.loop_index"


class Weighted(Net):
    """Weighs hard batches higher."""

    def __init__(self, *, loop: bool) -> None:
        super().__init__(layers=2)
        self.loop = loop

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        inputs, _ = batch
        first = inputs[:4]
        if self.loop:
            weight = torch.zeros(())
            for sample in range(len(first)):
                for feature in range(len(first[sample])):
                    weight = weight + first[sample, feature] * first[sample, feature]
        else:
            weight = first.square().sum()
        return self.loss(batch) * weight


def slow() -> Training:
    """Six operators for each of a thousand elements."""
    return Training(Weighted(loop=True), in_memory())


def fixed() -> Training:
    """Two for all of them."""
    return Training(Weighted(loop=False), in_memory())
