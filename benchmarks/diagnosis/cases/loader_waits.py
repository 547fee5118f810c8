"""Samples from a slow disk."""
# ruff: noqa: ANN401 - batches and settings can be anything

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.training import FEATURES, STEPS, Net, Training

EXPECTED = "data.sync_loader"
BATCH = 32


class OnDisk(Dataset[list[torch.Tensor]]):
    """Each sample takes a millisecond in which nothing is computed."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        time.sleep(0.001)
        return [torch.full((FEATURES,), 0.01), torch.zeros(1)]


def _training(**loader: Any) -> Training:
    return Training(Net(), DataLoader(OnDisk(), batch_size=BATCH, **loader))


def slow() -> Training:
    """The training thread waits for every sample."""
    return _training()


def fixed() -> Training:
    """Workers wait instead."""
    return _training(num_workers=5, persistent_workers=True)
