"""Two workers in step with each other, for a slow disk."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.training import FEATURES, STEPS, Net, Training

EXPECTED = "data.too_few_workers"
BATCH = 32


class OnDisk(Dataset[list[torch.Tensor]]):
    """Each sample takes two milliseconds in which nothing is computed."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        time.sleep(0.002)
        return [torch.full((FEATURES,), 0.01), torch.zeros(1)]


def _training(workers: int) -> Training:
    return Training(Net(), DataLoader(OnDisk(), batch_size=BATCH, num_workers=workers, persistent_workers=True))


def slow() -> Training:
    """Batches come in pairs."""
    return _training(2)


def fixed() -> Training:
    """Enough of them do."""
    return _training(7)
