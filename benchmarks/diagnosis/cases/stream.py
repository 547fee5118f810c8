"""An endless stream of samples without workers."""
# ruff: noqa: ANN401 - batches and settings can be anything

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.diagnosis.training import FEATURES, STEPS, Net, Training

EXPECTED = "data.sync_loader"
BATCH = 32


class Stream(IterableDataset[list[torch.Tensor]]):
    """A message queue: each sample has to be waited for."""

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        info = get_worker_info()
        for _ in range(STEPS * BATCH // (info.num_workers if info else 1)):
            time.sleep(0.0008)
            yield [torch.full((FEATURES,), 0.01), torch.zeros(1)]


def _training(**loader: Any) -> Training:
    return Training(Net(), DataLoader(Stream(), batch_size=BATCH, **loader))


def slow() -> Training:
    """The training thread waits."""
    return _training()


def fixed() -> Training:
    """Workers wait, each for its share."""
    return _training(num_workers=5, persistent_workers=True)
