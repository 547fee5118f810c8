"""A metric in plain Python in every training step."""
# ruff: noqa: TC002 - nothing is gained by importing it later

from __future__ import annotations

import torch

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.python"
THRESHOLDS = 1_500


class Scored(Net):
    """Computes a ranking metric after some of its steps."""

    def __init__(self, every: int) -> None:
        super().__init__(layers=3)
        self.every = every
        self.area = 0.0

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Loss of one batch."""
        inputs, targets = batch
        outputs = self.model(inputs)
        if batch_idx % self.every == 0:
            self.area = area_under_curve(outputs.detach().flatten().tolist(), targets.flatten().tolist())
        return (outputs - targets).square().mean()


def area_under_curve(scores: list[float], targets: list[float]) -> float:
    """Share of positives above each of many thresholds."""
    total = 0.0
    for step in range(THRESHOLDS):
        threshold = step / THRESHOLDS - 0.5
        above = sum(score > threshold and target > 0 for score, target in zip(scores, targets, strict=True))
        total += above / len(scores)
    return total / THRESHOLDS


def slow() -> Training:
    """The interpreter compares while no operator runs."""
    return Training(Scored(1), in_memory())


def fixed() -> Training:
    """Every fiftieth step."""
    return Training(Scored(50), in_memory())
