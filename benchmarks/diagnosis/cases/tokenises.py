"""Texts that are tokenised inside training_step."""
# ruff: noqa: ANN401 - batches and settings can be anything

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import BATCH, STEPS, Net, Training

EXPECTED = "host.python"
WORD = re.compile(r"\w+")
TEXTS = [f"the quick brown fox {number} jumps over the lazy dog again and again " * 24 for number in range(BATCH)]


class Words(Net):
    """The same network on the mean of embedded words."""

    def __init__(self) -> None:
        super().__init__(layers=3)
        self.model[0] = nn.Sequential(nn.EmbeddingBag(1000, 512), nn.ReLU())

    def training_step(self, batch: Any) -> torch.Tensor:
        """Loss of one batch of texts or of what they were turned into."""
        tokens = batch if isinstance(batch, torch.Tensor) else tokens_of(batch)
        return self.loss([tokens, torch.zeros(len(tokens), 1)])


def tokens_of(texts: list[str]) -> torch.Tensor:
    """Hashed words, a hundred of each text."""
    return torch.tensor([[hash(word.lower()) % 1000 for word in WORD.findall(text)][:100] for text in texts])


def slow() -> Training:
    """The interpreter splits texts while no operator runs."""
    texts: Any = TEXTS * STEPS
    return Training(Words(), DataLoader(texts, batch_size=BATCH))


def fixed() -> Training:
    """They were split before."""
    return Training(Words(), DataLoader(tokens_of(TEXTS).repeat(STEPS, 1), batch_size=BATCH))
