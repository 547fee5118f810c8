"""Small real trainings with a planted delay: what the capture tests run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset, IterableDataset

BATCH = 4
FEATURES = 8


class VirtualTime:
    """A clock that only a planted delay moves, so that every other phase takes exactly nothing."""

    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@dataclass
class Plant:
    """A delay of known length in one place. ``slept_ns`` is what each one really took."""

    place: str = ""
    seconds: float = 0.05
    virtual: VirtualTime | None = None
    slept_ns: list[int] = field(default_factory=list)

    def at(self, place: str) -> None:
        if place != self.place and self.place != "everywhere":
            return
        now = self.virtual.now if self.virtual else time.perf_counter_ns
        began = now()
        (self.virtual.sleep if self.virtual else time.sleep)(self.seconds)
        self.slept_ns.append(now() - began)

    def at_in(self, place: str, module: pl.LightningModule) -> None:
        """Strike only while training: validation batches go through the same hooks."""
        if module.trainer.training or module.trainer.state.fn != "fit":
            self.at(place)


class Items(Dataset):
    """Items in memory; the plant strikes once per batch."""

    def __init__(self, plant: Plant, batches: int) -> None:
        self.plant = plant
        self.batches = batches

    def __len__(self) -> int:
        return self.batches * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % BATCH == 0:
            self.plant.at("getitem")
        return torch.full((FEATURES,), float(index))


class Stream(IterableDataset):
    """The same items without a length."""

    def __init__(self, plant: Plant, batches: int) -> None:
        self.items = Items(plant, batches)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.items.batches * BATCH):
            yield self.items[index]


@dataclass
class Batches:
    """Batches that come from no DataLoader. Making the iterator can be slow."""

    plant: Plant
    batches: int

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.plant.at("iterator")
        return self._fetch()

    def _fetch(self) -> Iterator[torch.Tensor]:
        for _ in range(self.batches):
            self.plant.at("getitem")
            self.plant.at("collate")
            yield torch.ones(BATCH, FEATURES)


@dataclass
class Collate:
    plant: Plant

    def __call__(self, items: list[torch.Tensor]) -> torch.Tensor:
        self.plant.at("collate")
        return torch.stack(items)


class Net(pl.LightningModule):
    """A tiny network with a plant in every hook that users write."""

    def __init__(self, plant: Plant, *, log: bool = True) -> None:
        super().__init__()
        self.plant = plant
        self.logs = log
        self.body = torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), torch.nn.ReLU())
        self.head = torch.nn.Linear(FEATURES, 1)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.head(self.body(batch)).pow(2).mean()
        if self.plant.place in ("backward", "everywhere") and loss.requires_grad:
            loss.register_hook(lambda _: self.plant.at("backward"))  # runs before everything below the loss
        return loss

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        self.plant.at_in("transfer", self)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.plant.at("training_step")
        loss = self.loss(batch)
        if self.logs:
            self.log("loss", loss, batch_size=BATCH)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.plant.at("validation_step")
        self.log("val", self.loss(batch))

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.plant.at("test_step")
        self.log("test", self.loss(batch))

    def predict_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.plant.at("predict_step")
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SlowSGD(self.plant, self.parameters())


class ManualNet(Net):
    """The same with manual optimization and two optimizers."""

    def __init__(self, plant: Plant, *, log: bool = True) -> None:
        super().__init__(plant, log=log)
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.plant.at("training_step")
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
        self.log("loss", 0.0)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [SlowSGD(self.plant, self.body.parameters()), SlowSGD(self.plant, self.head.parameters())]


class IteratorNet(Net):
    """Takes its batches itself, from ``dataloader_iter``."""

    def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:
        batch, _, _ = next(dataloader_iter)
        batch = self.transfer_batch_to_device(batch, self.device, 0)
        return super().training_step(batch, 0)


class CombinedNet(Net):
    """Takes a mapping of two batches."""

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return super().training_step(batch["a"] + batch["b"], batch_idx)


class SlowSGD(torch.optim.SGD):
    def __init__(self, plant: Plant, parameters: Any) -> None:
        super().__init__(parameters, lr=1e-3)
        self.plant = plant

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.plant.at("optimizer")
        return loss


@dataclass
class SlowCallback(Callback):
    plant: Plant

    def on_train_batch_end(self, *_: Any) -> None:
        self.plant.at("callback")


class SlowLogger(CSVLogger):
    def __init__(self, plant: Plant, folder: Path, name: str = "slow") -> None:
        super().__init__(folder, name=name)
        self.plant = plant

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if not any(key.startswith("perf/") for key in metrics):
            self.plant.at("log_metrics")
        super().log_metrics(metrics, step)


class SlowCheckpoint(ModelCheckpoint):
    """Saves after every step; the plant is in the saving."""

    def __init__(self, plant: Plant, folder: Path) -> None:
        super().__init__(dirpath=folder, every_n_train_steps=1, save_top_k=-1)
        self.plant = plant

    def on_save_checkpoint(self, *_: Any) -> None:
        self.plant.at("checkpoint")


def loader(plant: Plant, batches: int = 6, *, stream: bool = False, **settings: Any) -> DataLoader:
    dataset = Stream(plant, batches) if stream else Items(plant, batches)
    return DataLoader(dataset, batch_size=BATCH, collate_fn=Collate(plant), **settings)


def quiet(folder: Path, **settings: Any) -> pl.Trainer:
    """A trainer that prints and draws nothing."""
    return pl.Trainer(
        **{
            "default_root_dir": folder,
            "accelerator": "cpu",
            "max_epochs": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "log_every_n_steps": 1,
            "num_sanity_val_steps": 0,
            **settings,
        }
    )
