"""Healthy: workers that keep up."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.training import FEATURES, STEPS, Net, Training

EXPECTED = None
BATCH = 32


class OnDisk(Dataset[list[torch.Tensor]]):
    """Each sample takes a moment in which nothing is computed."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        time.sleep(0.0003)
        return [torch.full((FEATURES,), 0.01), torch.zeros(1)]


def fixed() -> Training:
    """Two workers for what takes less than a step."""
    return Training(Net(layers=12), DataLoader(OnDisk(), batch_size=BATCH, num_workers=2, persistent_workers=True))
