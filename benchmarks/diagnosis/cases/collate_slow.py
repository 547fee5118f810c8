"""Sequences padded token by token in collate_fn."""
# ruff: noqa: ANN401 - batches and settings can be anything

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import STEPS, Net, Training

EXPECTED = "data.collate_slow"
BATCH = 32
LENGTH = 400


class Words(Net):
    """The same network on the mean of embedded words."""

    def __init__(self) -> None:
        super().__init__(layers=10)
        self.model[0] = nn.Sequential(nn.EmbeddingBag(1000, 512), nn.ReLU())


def by_token(sentences: list[list[int]]) -> list[torch.Tensor]:
    """A padded batch, common words left out."""
    rows = [[0] * LENGTH for _ in sentences]
    for row, sentence in zip(rows, sentences, strict=True):
        for place, word in enumerate(sentence):
            if sum(word % part == 0 for part in (2, 3, 5, 7)) < 3:
                row[place] = word
    return [torch.tensor(rows), torch.zeros(len(rows), 1)]


def _training(**loader: Any) -> Training:
    chance = random.Random(0)
    sentences: Any = [[chance.randrange(1000)] * chance.randrange(LENGTH // 2, LENGTH) for _ in range(STEPS * BATCH)]
    return Training(Words(), DataLoader(sentences, batch_size=BATCH, collate_fn=by_token, **loader))


def slow() -> Training:
    """The training thread pads."""
    return _training()


def fixed() -> Training:
    """A worker does. To pad at once would help, too."""
    return _training(num_workers=1, persistent_workers=True)
