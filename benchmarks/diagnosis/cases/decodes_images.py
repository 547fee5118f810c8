"""JPEG files decoded in the training thread."""
# ruff: noqa: ANN401 - batches and settings can be anything

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.training import STEPS, Images, Training

EXPECTED = "data.sync_loader"
BATCH = 16
SIZE = (320, 240)


class Photos(Dataset[list[torch.Tensor]]):
    """The bytes are in memory; each sample is decoded and made small."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "JPEG", quality=90)
        self.jpeg = file.getvalue()

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        with Image.open(io.BytesIO(self.jpeg)) as photo:
            pixels = np.asarray(photo.convert("RGB").resize((32, 32)), dtype=np.float32)
        return [torch.from_numpy(pixels).permute(2, 0, 1) / 255, torch.tensor(index % 10)]


def _training(**loader: Any) -> Training:
    return Training(Images(channels=32), DataLoader(Photos(), batch_size=BATCH, **loader))


def slow() -> Training:
    """The model waits for the decoder."""
    return _training()


def fixed() -> Training:
    """A worker decodes the next batch."""
    return _training(num_workers=1, persistent_workers=True)
