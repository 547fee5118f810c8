"""A convolutional network whose images are stored channel by channel."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import CORES, STEPS, Images, Training, images

EXPECTED = "gpu.layout"
BATCH = 16


class ChannelsLast(Images):
    """The same network on images stored pixel by pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.to(memory_format=torch.channels_last)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        photos, classes = batch
        return super().training_step([photos.contiguous(memory_format=torch.channels_last), classes])


def slow() -> Training:
    """The default of torch."""
    return Training(Images(64), DataLoader(images(STEPS * BATCH), batch_size=BATCH), threads=CORES)


def fixed() -> Training:
    """``channels_last``."""
    return Training(ChannelsLast(64), DataLoader(images(STEPS * BATCH), batch_size=BATCH), threads=CORES)
