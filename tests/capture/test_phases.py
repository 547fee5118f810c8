"""A delay of known length in one place of a real training is found in the phase of that name, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lightning_perf import PerfCallback
from lightning_perf.capture.clock import LoopClock
from lightning_perf.names import PHASES, Phase, Stage
from lightning_perf.runinfo import LoopRecord
from tests.training import (
    Batches,
    CombinedNet,
    IteratorNet,
    ManualNet,
    Net,
    Plant,
    SlowCallback,
    SlowCheckpoint,
    SlowLogger,
    VirtualTime,
    loader,
    quiet,
)

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

PHASE_OF_PLACE: dict[str, Phase] = {
    "getitem": "data",
    "collate": "data",
    "transfer": "transfer",
    "training_step": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "callback": "callbacks",
    "log_metrics": "logging",
    "validation_step": "validation",
    "checkpoint": "checkpoint",
}

TOLERANCE = 0.02
TRIES = 4
"""A shared machine may be busy during one run; a wrong attribution is wrong in all of them."""


@dataclass
class Setup:
    """One way to train."""

    net: Callable[[Plant], Net] = Net
    train: Callable[[Plant], Any] = loader
    trainer: dict[str, Any] | None = None
    validate: bool = False
    steps: int = 6
    loggers: int = 1
    without: tuple[str, ...] = ()
    before: dict[str, int] = field(default_factory=dict)
    """How often a delay strikes before the first step."""


def train(plant: Plant, setup: Setup, folder: Path) -> LoopRecord:
    callback = PerfCallback(schedule={"skip_first": 10_000}, summary=False)
    loggers = [SlowLogger(plant, folder, name=f"log{number}") for number in range(setup.loggers)]
    settings = {"max_epochs": 1, "logger": loggers or False, **(setup.trainer or {})}
    callbacks = [SlowCallback(plant), callback, SlowCheckpoint(plant, folder / "checkpoints")]
    validation = setup.validate or plant.place == "validation_step"
    if validation and "val_check_interval" not in settings:
        settings["val_check_interval"] = 1
    if plant.place != "checkpoint":
        callbacks.pop()
    trainer = quiet(folder, callbacks=callbacks, enable_checkpointing=plant.place == "checkpoint", **settings)
    trainer.fit(setup.net(plant), setup.train(plant), validation_loader(plant) if validation else None)
    assert callback.analysis is not None
    assert callback.analysis.run is not None
    assert callback.analysis.run.loop is not None
    return callback.analysis.run.loop


def validation_loader(plant: Plant) -> DataLoader:
    return loader(plant if plant.place == "validation_step" else Plant(), 1)


def least_ns(record: LoopRecord, phase: Phase) -> float:
    """A phase in the step that the rest of the machine disturbed least."""
    return min(record.series.phases_ns[phase])


def check_conserved(record: LoopRecord) -> None:
    series = record.series
    for totals in (record.plain, record.traced):
        assert sum(totals.phases_ns.values()) == totals.duration_ns
    assert sum(span.plain_ns for span in record.spans) == record.plain.duration_ns
    for index, duration_ns in enumerate(series.duration_ns):
        assert sum(column[index] for column in series.phases_ns.values()) == duration_ns


SETUPS = {
    "plain": Setup(),
    "accumulate": Setup(trainer={"accumulate_grad_batches": 4}, train=lambda plant: loader(plant, 8), steps=8),
    "manual": Setup(net=ManualNet),
    "dataloader_iter": Setup(net=IteratorNet),
    "stream": Setup(train=lambda plant: loader(plant, stream=True)),
    "combined": Setup(
        net=CombinedNet, train=lambda plant: CombinedLoader({"a": loader(plant), "b": loader(Plant())}, "min_size")
    ),
    "own_iterable": Setup(train=lambda plant: Batches(plant, 6)),
    "two_epochs": Setup(train=lambda plant: loader(plant, 3), trainer={"max_epochs": 2}),
    "mid_epoch_validation": Setup(validate=True, trainer={"val_check_interval": 2}),
    "max_steps": Setup(trainer={"max_steps": 4, "max_epochs": -1}, steps=4),
    "limit_1": Setup(trainer={"limit_train_batches": 1}, steps=1),
    "limit_2": Setup(trainer={"limit_train_batches": 2}, steps=2),
    "limit_3": Setup(trainer={"limit_train_batches": 3}, steps=3),
    "limit_6": Setup(trainer={"limit_train_batches": 6}, train=lambda plant: loader(plant, 9), steps=6),
    "fast_dev_run": Setup(trainer={"fast_dev_run": 3}, steps=3, without=("log_metrics", "checkpoint")),
    "overfit": Setup(trainer={"overfit_batches": 3}, steps=3),
    "no_logger": Setup(loggers=0, without=("log_metrics",)),
    "two_loggers": Setup(loggers=2),
    "sanity_check": Setup(validate=True, trainer={"num_sanity_val_steps": 1}, before={"validation_step": 1}),
}


CASES = [(name, place) for name, setup in SETUPS.items() for place in PHASE_OF_PLACE if place not in setup.without]


@pytest.mark.parametrize(("name", "place"), CASES)
def test_delay_is_found_to_the_nanosecond(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In virtual time nothing but the delay takes any, so all of it is in one phase and none in another."""
    plant = Plant(place, virtual=VirtualTime())
    monkeypatch.setattr("lightning_perf.callback.LoopClock", partial(LoopClock, now=plant.virtual.now))
    setup = SETUPS[name]
    record = train(plant, setup, tmp_path)
    check_conserved(record)
    assert (record.plain.steps, record.traced.steps, record.incomplete_steps) == (setup.steps, 0, 0)
    assert plant.slept_ns
    truth_ns = sum(plant.slept_ns[setup.before.get(place, 0) :])
    assert record.outside_ns == 0
    assert {phase: ns for phase, ns in record.plain.phases_ns.items() if ns} == {PHASE_OF_PLACE[place]: truth_ns}


@pytest.mark.parametrize("epochs", [1, 3])
def test_making_the_iterator_is_data_of_the_epochs_first_step(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant("iterator", virtual=VirtualTime())
    monkeypatch.setattr("lightning_perf.callback.LoopClock", partial(LoopClock, now=plant.virtual.now))
    setup = Setup(train=lambda plant: Batches(plant, 2), trainer={"max_epochs": epochs})
    record = train(plant, setup, tmp_path)
    # Before the first epoch Lightning makes an iterator once more, to see whether the loader can be iterated.
    delays_ns = [100_000_000, 50_000_000, 50_000_000][:epochs]
    assert record.series.phases_ns["data"] == [data_ns for delay_ns in delays_ns for data_ns in (delay_ns, 0)]
    assert [(start.iterator_ns, start.first_fetch_ns) for start in record.epoch_starts] == [
        (delay_ns, 0) for delay_ns in delays_ns
    ]
    assert record.outside_ns == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_starting_workers_is_paid_where_it_happens(persistent: bool, tmp_path: Path) -> None:
    """Worker processes start at each epoch, or once where they persist."""
    setup = Setup(
        train=lambda plant: loader(plant, 3, num_workers=2, persistent_workers=persistent), trainer={"max_epochs": 3}
    )
    record = train(Plant(), setup, tmp_path)
    check_conserved(record)
    assert record.plain.steps == 9
    first, *later = [start.iterator_ns for start in record.epoch_starts]
    assert len(later) == 2
    if persistent:
        assert max(later) < first / 4
    else:
        assert min(later) > first / 4
    for start, data_ns in zip(record.epoch_starts, record.series.phases_ns["data"][::3], strict=True):
        assert data_ns == start.iterator_ns + start.first_fetch_ns


@pytest.mark.parametrize(
    ("stage", "place"),
    [
        (stage, place)
        for stage in ("validate", "test", "predict")
        for place in ("getitem", "transfer", "step", "log_metrics")
        if (stage, place) != ("predict", "log_metrics")  # Lightning logs nothing while predicting
    ],
)
def test_stages_on_their_own(stage: Stage, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}[stage]
    plant = Plant(step if place == "step" else place, virtual=VirtualTime())
    monkeypatch.setattr("lightning_perf.callback.LoopClock", partial(LoopClock, now=plant.virtual.now))
    callback = PerfCallback(schedule={"skip_first": 10_000}, summary=False)
    trainer = quiet(tmp_path, callbacks=[callback], logger=SlowLogger(plant, tmp_path))
    getattr(trainer, stage)(Net(plant), loader(plant, 4))
    record = callback.analysis.run.loop
    check_conserved(record)
    assert (record.plain.steps, record.incomplete_steps) == (4, 0)
    if place == "log_metrics":  # logged once, after the last step
        assert record.outside_ns == sum(plant.slept_ns)
        return
    phase = {"getitem": "data", "transfer": "transfer", "step": "forward"}[place]
    assert {name: ns for name, ns in record.plain.phases_ns.items() if ns} == {phase: sum(plant.slept_ns)}


@pytest.mark.parametrize("place", PHASE_OF_PLACE)
@pytest.mark.parametrize("name", ["plain", "manual", "two_epochs"])
def test_delay_is_found_in_real_time(name: str, place: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    for attempt in range(TRIES):
        with_delay, without = Plant(place), Plant(place, seconds=0)
        record = train(with_delay, setup, tmp_path / f"delay{attempt}")
        base = train(without, setup, tmp_path / f"base{attempt}")
        check_conserved(record)
        truth_ns = min(with_delay.slept_ns) * len(with_delay.slept_ns) / record.plain.steps
        moved = {phase: least_ns(record, phase) - least_ns(base, phase) for phase in PHASES}
        errors = {phase: abs(ns - (truth_ns if phase == PHASE_OF_PLACE[place] else 0)) for phase, ns in moved.items()}
        if max(errors.values()) <= TOLERANCE * truth_ns:
            return
    pytest.fail(f"truth {truth_ns:.0f} ns in {PHASE_OF_PLACE[place]}; phases moved by {moved}")


def test_the_trace_and_the_clock_agree(tmp_path: Path) -> None:
    """Two clocks, one picture: the labels of a recorded step give the phases that the loop clock kept for it."""
    plant = Plant("everywhere", seconds=0.01)
    schedule = {"skip_first": 1, "wait": 0, "warmup": 1, "active": 3}
    callback = PerfCallback(schedule=schedule, summary=False, dirpath=str(tmp_path / "perf"))
    callbacks = [SlowCallback(plant), callback, SlowCheckpoint(plant, tmp_path / "checkpoints")]
    trainer = quiet(
        tmp_path,
        callbacks=callbacks,
        logger=SlowLogger(plant, tmp_path),
        enable_checkpointing=True,
        val_check_interval=1,
    )
    trainer.fit(Net(plant), loader(plant, 6), loader(plant, 1))
    series = callback.analysis.run.loop.series
    steps = callback.analysis.windows[0].steps
    assert [step.number for step in steps] == [2, 3, 4]
    for step in steps:
        assert step.duration_us == pytest.approx(series.duration_ns[step.number] / 1e3, rel=TOLERANCE)
        for phase in PHASES:
            clock_us = series.phases_ns[phase][step.number] / 1e3
            assert step.phases_us.get(phase, 0) == pytest.approx(clock_us, abs=TOLERANCE * step.duration_us), phase
            if phase != "other":
                assert clock_us > 9_000
