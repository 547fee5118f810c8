"""Anomaly detection left on."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.anomaly"


class Deep(Net):
    """Many small layers."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.deep = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(20)))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        return self.loss(batch) + self.deep(batch[0][:, :32]).square().mean()


def slow() -> Training:
    """Each operator keeps its stack, and each gradient is searched for NaN."""
    return Training(Deep(), in_memory(), settings={"detect_anomaly": True})


def fixed() -> Training:
    """Off."""
    return Training(Deep(), in_memory())
