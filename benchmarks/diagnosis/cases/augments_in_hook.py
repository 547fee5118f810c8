"""Augmentation, sample by sample, in on_before_batch_transfer."""
# ruff: noqa: ANN401, ARG002, D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

from typing import Any

import torch

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "h2d.slow_transfer"


class Augmented(Net):
    """Adds noise to each sample."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        inputs, targets = batch
        return [torch.stack([_noisy(sample) for sample in inputs]), targets]


def _noisy(sample: torch.Tensor) -> torch.Tensor:
    for scale in (0.1, 0.2, 0.3, 0.4):
        sample = torch.roll(sample, 3) * 0.9 + torch.randn_like(sample) * scale
    return sample


def slow() -> Training:
    """Fourteen operators for each sample."""
    return Training(Augmented(), in_memory())


def fixed() -> Training:
    """Left out; a worker could do it."""
    return Training(Net(), in_memory())
