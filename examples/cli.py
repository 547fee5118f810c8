"""A LightningCLI application whose configuration adds PerfCallback: ``python cli.py fit --config config.yaml``."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


class Regression(LightningModule):
    """A small fully connected network."""

    def __init__(self, features: int = 32, hidden: int = 128, learning_rate: float = 0.01) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.model = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        inputs, targets = batch
        loss = mse_loss(self.model(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam over all parameters."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class Sums(LightningDataModule):
    """Random numbers; the target is their sum."""

    def __init__(self, samples: int = 2048, features: int = 32, batch_size: int = 32) -> None:
        super().__init__()
        self.samples = samples
        self.features = features
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Batches from memory, so that no workers are needed."""
        inputs = torch.randn(self.samples, self.features)
        dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=True)


if __name__ == "__main__":
    LightningCLI(Regression, Sums)
