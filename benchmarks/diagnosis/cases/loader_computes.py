"""Samples that are computed in Python."""
# ruff: noqa: ANN401 - batches and settings can be anything

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.training import FEATURES, STEPS, Net, Training, compute

EXPECTED = "data.sync_loader"
BATCH = 32


class Computed(Dataset[list[torch.Tensor]]):
    """Each sample takes some processor time."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [torch.full((FEATURES,), compute(8_000) * 1e-9), torch.zeros(1)]


def _training(**loader: Any) -> Training:
    return Training(Net(layers=10), DataLoader(Computed(), batch_size=BATCH, **loader))


def slow() -> Training:
    """The training thread computes every sample."""
    return _training()


def fixed() -> Training:
    """A worker on the other core does."""
    return _training(num_workers=1, persistent_workers=True)
