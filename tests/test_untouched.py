"""Training with and without PerfCallback: the same to the last bit, in every way of training that the matrix names."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import lightning.pytorch.callbacks as pl_callbacks
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.tuner import Tuner
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfCallback
from tests.training import quiet

BATCHES = 9
SIZE = 4
FEATURES = 6

Make = Callable[[], list[Callback]]
"""Makes the callbacks of ours that a run gets: none, one or two."""

EMA = getattr(pl_callbacks, "EMAWeightAveraging", None)  # came with Lightning 2.6


def ours() -> list[Callback]:
    """Two windows, and all that costs something switched on."""
    schedule = {"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    return [PerfCallback(schedule=schedule, module_depth=2, profile_memory=True, summary=False)]


class Noise(Dataset):
    """Items from all three generators, with the seed of the process that made them."""

    def __len__(self) -> int:
        return BATCHES * SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = [random.random(), np.random.rand(), float(index)]  # noqa: NPY002 - the global generator is the point
        return torch.cat(
            [torch.tensor(drawn, dtype=torch.float32), torch.rand(FEATURES - 3)]
        ), torch.initial_seed() % 2**62


class Net(pl.LightningModule):
    """Draws numbers in its forward, and keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 0.05
        self.batch_size = SIZE
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 1)
        self.losses: list[torch.Tensor] = []
        self.seeds: list[int] = []

    def loss(self, batch: Any) -> torch.Tensor:
        items, seeds = batch
        self.seeds += seeds.tolist()
        return (self.head(self.body(items)) - torch.rand(1, dtype=items.dtype)).pow(2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.detach().clone())
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=SIZE)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch), batch_size=SIZE)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test", self.loss(batch), batch_size=SIZE)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Noise(), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Noise(), batch_size=SIZE)

    test_dataloader = predict_dataloader = val_dataloader


class Workers(Net):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(Noise(), batch_size=SIZE, shuffle=True, num_workers=2)


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.body.parameters()), torch.optim.SGD(self.head.parameters(), lr=0.1)]


class CompiledPart(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.compile(self.body, backend="aot_eager")


def compiled() -> pl.LightningModule:
    return torch.compile(Net(), backend="eager")


class Reports(Net):
    """In a process of its own: leaves what it saw in a file."""

    def on_train_end(self) -> None:
        torch.save(seen(self), Path(self.trainer.default_root_dir) / f"rank{self.trainer.global_rank}.seen")


class Kept(Logger):
    """Keeps what the user's own code logged, in order."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.rows: list[Any] = []

    @property
    def name(self) -> str:
        return "kept"

    @property
    def version(self) -> int:
        return 0

    @property
    def log_dir(self) -> str:
        return str(self.folder / "logs")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        users = {key: value for key, value in metrics.items() if not key.startswith("perf/")}
        if users:
            self.rows.append((users, step))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        self.rows.append("hyperparameters")


def seen(net: pl.LightningModule) -> dict[str, Any]:
    """What a process knows at its end: weights, losses, seeds of workers, and the state of every generator."""
    net = getattr(net, "_orig_mod", net)
    generators = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002
    return {
        "weights": dict(net.state_dict()),
        "losses": net.losses,
        "seeds": net.seeds,
        "lr": net.lr,
        "batch_size": net.batch_size,
        "generators": generators,
    }


def frozen(value: Any, folder: Path) -> Any:
    """Something that compares bit by bit, with the run's own folder taken out of its strings."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(frozen(key, folder), frozen(item, folder)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [frozen(item, folder) for item in value]
    if isinstance(value, float):
        return value.hex()
    return value.replace(str(folder), "FOLDER") if isinstance(value, str) else repr(value)


def checkpoint_of(trainer: pl.Trainer, folder: Path) -> Path:
    path = folder / "last_of_all.ckpt"
    trainer.save_checkpoint(path)
    return path


def checkpoints(folder: Path) -> list[tuple[str, Any]]:
    """Names and contents of all checkpoints below a folder; nothing of ours is in any of them."""
    found = []
    for path in sorted(folder.rglob("*.ckpt")):
        content = torch.load(path, weights_only=False)
        assert "erfCallback" not in repr(content.get("callbacks"))
        assert "lightning_perf" not in repr(sorted(content))
        found.append((str(path.relative_to(folder)), content))
    return found


@dataclass(frozen=True)
class Row:
    """One way of training."""

    settings: dict[str, Any] = field(default_factory=dict)
    net: Callable[[], pl.LightningModule] = Net
    callbacks: Callable[[Path], list[Callback]] = lambda _: []
    drive: Callable[[pl.Trainer, pl.LightningModule], Any] = lambda trainer, net: trainer.fit(net)
    again: int = 1
    windows: bool = True


def outcome(row: Row, folder: Path, make: Make) -> Any:
    """Train as the row says, with some callbacks of ours, and give back all that can be compared."""
    folder.mkdir()
    pl.seed_everything(11, workers=True, verbose=False)
    net, added, results, rows = row.net(), make(), [], []
    for number in range(row.again):
        logger = Kept(folder / str(number))
        callbacks = [*row.callbacks(folder), *added]
        settings = {"logger": logger, "callbacks": callbacks, "max_epochs": 2, "log_every_n_steps": 1, **row.settings}
        saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
        trainer = quiet(folder, enable_checkpointing=saves, **settings)
        results.append(row.drive(trainer, net))
        rows.append(logger.rows)
    for callback in added[:1]:
        assert isinstance(callback, PerfCallback)
        assert callback.analysis is not None
        assert callback.analysis.windows or not row.windows, callback.analysis.run
    state = seen(net)  # before saving, which is no part of the run
    if trainer.state.fn == "fit":
        checkpoint_of(trainer, folder)
    return frozen([state, results, rows, dict(trainer.callback_metrics), checkpoints(folder)], folder)


def top_two(folder: Path) -> list[Callback]:
    every = {"every_n_train_steps": 4, "save_top_k": -1, "filename": "{step}"}
    return [ModelCheckpoint(folder / "best", monitor="val", save_top_k=2), ModelCheckpoint(folder / "often", **every)]


def find_lr(trainer: pl.Trainer, net: Net) -> Any:
    found = Tuner(trainer).lr_find(net, num_training=10, min_lr=1e-4)
    trainer.fit(net)
    return found.suggestion(), found.results


def find_batch_size(trainer: pl.Trainer, net: Net) -> Any:
    found = Tuner(trainer).scale_batch_size(net, init_val=2, max_trials=2, steps_per_trial=2)
    net.batch_size = SIZE
    trainer.fit(net)
    return found


def on_its_own(stage: str) -> Row:
    return Row(drive=lambda trainer, net: getattr(trainer, stage)(net))


def fit_and_more(trainer: pl.Trainer, net: Net) -> Any:
    trainer.fit(net)
    validated = trainer.validate(net, verbose=False)
    trainer.fit_loop.max_epochs += 1
    trainer.fit(net)
    return validated, trainer.test(net, verbose=False), trainer.predict(net)


MATRIX = {
    "automatic optimization": Row(),
    "manual optimization": Row(net=Manual),
    "accumulation": Row({"accumulate_grad_batches": 3}),
    "clipping by norm": Row({"gradient_clip_val": 0.05}),
    "clipping by value": Row({"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "bf16-mixed": Row({"precision": "bf16-mixed"}),
    "bf16-true": Row({"precision": "bf16-true"}),
    "64-true": Row({"precision": "64-true"}),
    "SWA": Row({"max_epochs": 3}, callbacks=lambda _: [StochasticWeightAveraging(0.01, swa_epoch_start=1)]),
    "early stopping": Row({"max_epochs": 9}, callbacks=lambda _: [EarlyStopping("val", patience=1, min_delta=0.5)]),
    "checkpoints": Row(callbacks=top_two),
    "compiled part": Row(net=CompiledPart),
    "compiled module": Row(net=compiled),
    "overfit_batches": Row({"overfit_batches": 3, "max_epochs": 4}),
    "validation in mid epoch": Row({"val_check_interval": 2, "num_sanity_val_steps": 2}),
    "max_steps": Row({"max_steps": 7, "max_epochs": -1}),
    "anomaly detection": Row({"detect_anomaly": True}),
    "workers that shuffle": Row(net=Workers),
    "lr_find": Row(drive=find_lr),
    "scale_batch_size": Row(drive=find_batch_size),
    "validate": on_its_own("validate"),
    "test": on_its_own("test"),
    "predict": on_its_own("predict"),
    "several fits": Row(again=2),
    "fit, validate, fit, test, predict": Row(drive=fit_and_more),
}


@pytest.mark.parametrize("name", MATRIX)
def test_training_is_untouched(name: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    without = outcome(MATRIX[name], tmp_path / "without", list)
    torch._dynamo.reset()
    assert outcome(MATRIX[name], tmp_path / "with", ours) == without


@pytest.mark.skipif(EMA is None, reason="this Lightning has no EMAWeightAveraging")
def test_ema_is_untouched(tmp_path: Path) -> None:
    row = Row(callbacks=lambda _: [EMA(decay=0.8)])
    assert outcome(row, tmp_path / "with", ours) == outcome(row, tmp_path / "without", list)


def test_two_of_us_by_mistake(tmp_path: Path) -> None:
    without = outcome(Row(), tmp_path / "without", list)
    assert outcome(Row(), tmp_path / "with", lambda: [*ours(), *ours()]) == without


def test_the_comparison_sees_a_difference(tmp_path: Path) -> None:
    """One number drawn by a callback, or one row more in a checkpoint, is found."""

    class Draws(PerfCallback):
        def on_train_end(self, *_: Any) -> None:
            torch.rand(1)

    class Keeps(PerfCallback):
        def state_dict(self) -> dict[str, Any]:
            return {"something": 1}

    without = outcome(Row(), tmp_path / "without", list)
    assert outcome(Row(), tmp_path / "draws", lambda: [Draws(summary=False)]) != without
    assert outcome(Row(), tmp_path / "keeps", lambda: [Keeps(summary=False)]) != without


def resumed(folder: Path, before: Make, after: Make) -> Any:
    """Two epochs in two runs, the second from the checkpoint of the first."""
    folder.mkdir()
    pl.seed_everything(5, verbose=False)
    first = quiet(folder, logger=Kept(folder), callbacks=before())
    first.fit(Net())
    written = checkpoint_of(first, folder)
    pl.seed_everything(6, verbose=False)
    net, logger = Net(), Kept(folder)
    second = quiet(folder, logger=logger, callbacks=after(), max_epochs=2)
    second.fit(net, ckpt_path=written)
    state = seen(net)
    second.save_checkpoint(folder / "second.ckpt")
    return frozen([state, logger.rows, checkpoints(folder)], folder)


def test_resuming_with_and_without(tmp_path: Path) -> None:
    plain = resumed(tmp_path / "plain", list, list)
    assert resumed(tmp_path / "then without", ours, list) == plain
    assert resumed(tmp_path / "then with", list, ours) == plain
    assert resumed(tmp_path / "both", ours, ours) == plain


def test_ddp_spawn_with_two_processes(tmp_path: Path) -> None:
    def train(folder: Path, callbacks: list[Callback]) -> Any:
        folder.mkdir()
        pl.seed_everything(3, workers=True, verbose=False)
        net = Reports()
        ddp = {"strategy": "ddp_spawn", "devices": 2, "logger": False}
        trainer = quiet(folder, callbacks=callbacks, **ddp)
        trainer.fit(net)
        checkpoint_of(trainer, folder)
        ranks = [torch.load(folder / f"rank{rank}.seen", weights_only=False) for rank in (0, 1)]
        return frozen([ranks, dict(net.state_dict()), trainer.callback_metrics, checkpoints(folder)], folder)

    assert train(tmp_path / "with", ours()) == train(tmp_path / "without", [])
    assert list((tmp_path / "with").rglob("*.gz"))
