"""Healthy: a convolutional network on all cores, images stored pixel by pixel."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from benchmarks.diagnosis.training import CORES, STEPS, Images, Training, images

EXPECTED = None
BATCH = 32


class ChannelsLast(Images):
    """The network in the layout that its operators prefer."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.to(memory_format=torch.channels_last)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        photos, classes = batch
        return super().training_step([photos.contiguous(memory_format=torch.channels_last), classes])


def fixed() -> Training:
    """Nothing to change."""
    loader = DataLoader(images(STEPS * BATCH), batch_size=BATCH)
    return Training(ChannelsLast(48), loader, threads=CORES)
