"""What the cases share: one training, a model, a dataset in memory, and a stopwatch.

Needs torch and lightning alone, as other tools judge the same trainings in environments of their own.
"""
# ruff: noqa: ANN401, ARG002, D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset

CORES = os.cpu_count() or 1
STEPS = 60
BATCH = 64
SMALL_BATCH = 32
FEATURES = 256
WARM_UP_STEPS = 3
"""Steps at the start that are left out of the measured step time."""


@dataclass
class Training:
    """A model, its data, and what the trainer is told beside being quiet (``settings``)."""

    model: LightningModule
    loader: DataLoader[Any]
    validation: DataLoader[Any] | None = None
    callbacks: list[Callback] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    threads: int = 1


class Case(Protocol):
    """What a file of ``cases/`` defines; its docstring's first line is its title.

    ``EXPECTED`` is the rule that must come first, None for a healthy run, which has only ``fixed``.
    """

    EXPECTED: str | None

    def slow(self) -> Training:
        """The training with its bottleneck."""
        ...

    def fixed(self) -> Training:
        """The same after the change that the rule asks for."""
        ...


class Net(LightningModule):
    """A multilayer perceptron: about 10 ms a step on one core."""

    def __init__(self, width: int = 512, layers: int = 5) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
        self.model = nn.Sequential(nn.Linear(FEATURES, width), *blocks, nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.loss(batch)

    def loss(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """Mean squared error of a batch."""
        inputs, targets = batch
        return mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Images(LightningModule):
    """A small convolutional network for 32 x 32 images."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, 10),
        )

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, classes = batch
        return nn.functional.cross_entropy(self.model(images), classes)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def points(samples: int = STEPS * BATCH) -> TensorDataset:
    """Samples for :class:`Net`, in memory."""
    return TensorDataset(torch.randn(samples, FEATURES), torch.randn(samples, 1))


def images(samples: int) -> TensorDataset:
    """Samples for :class:`Images`, in memory."""
    return TensorDataset(torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,)))


class OnDisk(Dataset[list[torch.Tensor]]):
    """Samples of which each takes a while in which nothing is computed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return STEPS * SMALL_BATCH

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        time.sleep(self.seconds)
        return [torch.full((FEATURES,), 0.01), torch.zeros(1)]


def on_disk(seconds: float, **settings: Any) -> DataLoader[Any]:
    """A loader of samples from a slow disk."""
    return DataLoader(OnDisk(seconds), batch_size=SMALL_BATCH, **settings)


def in_memory(steps: int = STEPS, batch_size: int = BATCH) -> DataLoader[Any]:
    """A loader for :class:`Net` that costs next to nothing."""
    return DataLoader(points(steps * batch_size), batch_size=batch_size)


def compute(rounds: int) -> float:
    """Keep the interpreter busy: about 0.05 ms for a thousand rounds."""
    return sum(number * 0.5 for number in range(rounds))


class ManyTensors(Net):
    """A network with many small scales beside its layers."""

    def __init__(self, optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]) -> None:
        super().__init__(layers=1)
        self.optimizer = optimizer
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(600))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one batch and of all scales."""
        return self.loss(batch) + torch.cat(list(self.scales)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The case's own."""
        return self.optimizer(self.parameters())


class Stopwatch(Callback):
    """Notes when batches begin, and nothing else."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.began.append(time.perf_counter())

    @property
    def step_ms(self) -> float:
        """Mean time from one batch to the next after warming up: validation, checkpoints and new epochs included."""
        warm = self.began[WARM_UP_STEPS:]
        return (warm[-1] - warm[0]) / (len(warm) - 1) * 1e3


def fit(training: Training, folder: Path, *callbacks: Callback) -> Trainer:
    """Train, with some callbacks more."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    seed_everything(0, verbose=False)
    torch.set_num_threads(training.threads)
    quiet: dict[str, Any] = {
        "default_root_dir": folder,
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    trainer = Trainer(**cast("dict[str, Any]", quiet | training.settings), callbacks=[*training.callbacks, *callbacks])
    trainer.fit(training.model, training.loader, training.validation)
    return trainer
