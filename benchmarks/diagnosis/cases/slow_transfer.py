"""A batch that is rounded, value by value, while it is moved to the device."""
# ruff: noqa: ANN401, ARG002, D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

from typing import Any

import torch

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "h2d.slow_transfer"


class Moving(Net):
    """Brings its own way to move batches."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return [torch.tensor([_rounded(row) for row in part.tolist()], device=device) for part in batch]


def _rounded(row: list[float]) -> list[float]:
    return [float(f"{value:.4f}") for value in row]


def slow() -> Training:
    """Tensors become text and tensors again."""
    return Training(Moving(), in_memory())


def fixed() -> Training:
    """Lightning's own transfer."""
    return Training(Net(), in_memory())
