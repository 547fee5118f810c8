"""What measuring costs: the step time with several profilers, and the stall when a window of torch.profiler ends.

``python benchmarks/overhead.py`` prints three tables. All variants run interleaved in one process, in shuffled
order, and each is compared with its neighbours of the same round, because machines drift. Times are taken by a
stopwatch of its own: the time between two calls of ``training_step``. torch uses one thread, as its thread pool
would add more noise than what is measured here. The second table has the finest comparison, and the CPU time of the
training thread beside the wall time: other programs on the machine disturb it least.
"""
# ruff: noqa: ARG002, D102 - Lightning fixes the signatures of hooks, and documents what each is called for

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's CUDA build complains on machines without a GPU

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.profilers import Profiler, PyTorchProfiler, SimpleProfiler
from printing import command, machine, table, with_spread
from torch import nn
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfCallback

NEVER = 10**9
"""A step that no run here reaches."""

FEATURES = 64
BATCH = 32
WARM_UP_STEPS = 20
BLOCK = 20

Saver = Callable[[profile], None]


class Model(LightningModule):
    """A multilayer perceptron with a stopwatch; ``on_step`` is called at the start of each training step."""

    def __init__(self, layers: int, on_step: Callable[[int], None] | None = None) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU()) for _ in range(layers)]
        self.model = nn.Sequential(*blocks, nn.Linear(FEATURES, 1))
        self.on_step = on_step
        self.began_ns: list[int] = []
        self.cpu_ns: list[int] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Loss of one batch."""
        self.began_ns.append(time.perf_counter_ns())
        self.cpu_ns.append(time.thread_time_ns())
        if self.on_step is not None:
            self.on_step(batch_idx)
        return self.model(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.001)

    @property
    def steps_us(self) -> list[float]:
        """Time from each training step to the next, microseconds."""
        return [(end - start) / 1e3 for start, end in pairwise(self.began_ns)]

    @property
    def cpu_us(self) -> list[float]:
        """CPU time of the training thread from each training step to the next, microseconds."""
        return [(end - start) / 1e3 for start, end in pairwise(self.cpu_ns)]


@dataclass(frozen=True)
class Variant:
    """A trainer's profiler and callbacks."""

    profiler: Profiler | None = None
    callbacks: list[Callback] = field(default_factory=list)
    log_every_n_steps: int = 50


def fit(model: Model, variant: Variant, steps: int) -> float:
    """Train for a number of steps; microseconds from the last step's start to the end of the fit."""
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=DummyLogger(),
        profiler=variant.profiler,
        callbacks=list(variant.callbacks),
        log_every_n_steps=variant.log_every_n_steps,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(torch.randn(steps * BATCH, FEATURES)), batch_size=BATCH)
    gc.collect()
    trainer.fit(model, loader)
    return (time.perf_counter_ns() - model.began_ns[-1]) / 1e3


# 1. Step time


def perf_callback(folder: str, first: int, active: int) -> PerfCallback:
    """PerfCallback with its window at a given step, and as little else as it allows."""
    window = {"skip_first": first, "wait": 0, "warmup": 2, "active": active, "repeat": 1}
    return PerfCallback(dirpath=f"{folder}/perf", schedule=window, summary=False)


def lightnings_pytorch_profiler(folder: str, first: int, active: int) -> PyTorchProfiler:
    """Lightning's profiler with its window at a given step."""
    window = schedule(wait=0, warmup=2, active=active, repeat=1, skip_first=first)
    return PyTorchProfiler(dirpath=folder, filename="pytorch", schedule=window, record_shapes=True)


def step_variants(folder: str, steps: int) -> dict[str, Callable[[], Variant]]:
    """Rows of the first table; the first one is what the others are compared with."""
    variants = {
        "nothing": Variant,
        "PerfCallback, outside its window": lambda: Variant(callbacks=[perf_callback(folder, NEVER, 1)]),
        "a callback without a hook": lambda: Variant(callbacks=[Callback()]),
        "SimpleProfiler": lambda: Variant(profiler=SimpleProfiler(dirpath=folder, filename="simple")),
        # After and not before: it fails at the end of a run that did not reach its window.
        "PyTorchProfiler, after its window": lambda: Variant(lightnings_pytorch_profiler(folder, 0, 1)),
        "DeviceStatsMonitor, every step": lambda: Variant(callbacks=[DeviceStatsMonitor()], log_every_n_steps=1),
        "PerfCallback, in its window": lambda: Variant(callbacks=[perf_callback(folder, 0, steps)]),
        "PyTorchProfiler, in its window": lambda: Variant(lightnings_pytorch_profiler(folder, 0, steps)),
    }
    if find_spec("psutil") is None:  # without it, it refuses to run on a CPU
        del variants["DeviceStatsMonitor, every step"]
    return variants


def measure_steps(folder: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """Median step time of each variant in each round, microseconds."""
    variants = step_variants(folder, steps)
    medians: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-1 if rounds > 1 else 0, rounds):  # a first round warms up and does not count
        for name in random.sample(list(variants), len(variants)):
            model = Model(layers=3)
            fit(model, variants[name](), steps)
            if number >= 0:
                medians[name].append(statistics.median(model.steps_us[WARM_UP_STEPS:]))
    return medians


def step_table(medians: dict[str, list[float]]) -> str:
    """Step times, and their differences to the first variant in the same round."""
    base = next(iter(medians.values()))
    rows = []
    for name, times in medians.items():
        added = [time_us - base_us for time_us, base_us in zip(times, base, strict=True)]
        ratio = [time_us / base_us for time_us, base_us in zip(times, base, strict=True)]
        first = times is base
        rows.append(
            [
                name,
                with_spread(times, 0),
                "" if first else with_spread(added, 0, sign=True),
                "" if first else with_spread(ratio, 2),
            ]
        )
    return table(["with", "step, µs", "added, µs", "times as long"], rows)


# 2. The same within one fit


class Switch:
    """Takes the callback out of a running fit and puts it back, every ``block`` steps.

    Called from the training step, so that all spans and hooks of whole steps are either measured or not.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self.perf: PerfCallback | None = None
        self.trainer: Trainer | None = None
        self.states: list[tuple[Profiler, list[Callback]]] = []

    def attach(self, trainer: Trainer, perf: PerfCallback) -> None:
        """Remember the trainer with the callback, and how it would be without."""
        others = [callback for callback in trainer.callbacks if callback is not perf]
        clock = trainer.profiler
        self.trainer = trainer
        self.states = [(clock, trainer.callbacks), (clock.user, others)]

    def __call__(self, step: int) -> None:
        """Change over where a block begins."""
        if self.trainer is not None and step % self.block == 0:
            self.trainer.profiler, self.trainer.callbacks = self.states[step // self.block % 2]


class _Attach(Callback):
    """Gives the trainer to the switch, once every setup hook has run."""

    def __init__(self, switch: Switch, perf: PerfCallback) -> None:
        self.switch = switch
        self.perf = perf

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.switch.attach(trainer, self.perf)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.profiler, trainer.callbacks = self.switch.states[0]


def measure_switching(folder: str, pairs: int, block: int) -> Model:
    """A fit whose blocks of steps run with the callback and without it in turn."""
    perf = perf_callback(folder, NEVER, 1)
    switch = Switch(block)
    model = Model(layers=3, on_step=switch)
    fit(model, Variant(callbacks=[perf, _Attach(switch, perf)]), 2 * (pairs + 1) * block + 1)
    return model


def switching_row(name: str, steps_us: list[float], block: int) -> list[str]:
    """Medians of the blocks with and without, and the difference of neighbours."""
    # The first two blocks warm up, and the first steps of a block may still see the change.
    starts = range(2 * block, len(steps_us) - block + 1, block)
    medians = [statistics.median(steps_us[start + 3 : start + block]) for start in starts]
    with_it, without = medians[0::2], medians[1::2]
    added = [one - other for one, other in zip(with_it, without, strict=True)]
    return [name, with_spread(with_it, 0), with_spread(without, 0), with_spread(added, 1, sign=True)]


# 3. The stall at a window's end


class BareProfiler(Callback):
    """torch.profiler as its documentation shows it."""

    def __init__(self, first: int, active: int, save: Saver) -> None:
        window = schedule(skip_first=first, wait=0, warmup=2, active=active, repeat=1)
        self.profile = profile(schedule=window, on_trace_ready=save, record_shapes=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.profile.start()

    def on_train_batch_end(self, trainer: Trainer, *args: object) -> None:
        self.profile.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.profile.stop()


@dataclass(frozen=True)
class Stall:
    """Milliseconds that training was held up: at the window's end, over the steps after it, and at the end."""

    closing: float
    afterwards: float
    end_of_fit: float


def stall_variants(folder: str, first: int, active: int) -> dict[str, Callable[[], Variant]]:
    """Rows of the third table; the first one is what the others are compared with."""

    def bare(save: Saver) -> Variant:
        return Variant(callbacks=[BareProfiler(first, active, save)])

    return {
        "torch.profiler, export_chrome_trace to .json": lambda: bare(
            lambda done: done.export_chrome_trace(f"{folder}/bare.json")
        ),
        "torch.profiler, tensorboard_trace_handler(use_gzip=True)": lambda: bare(
            tensorboard_trace_handler(folder, use_gzip=True)
        ),
        "PerfCallback": lambda: Variant(callbacks=[perf_callback(folder, first, active)]),
        "PyTorchProfiler": lambda: Variant(lightnings_pytorch_profiler(folder, first, active)),
    }


def measure_stalls(folder: str, rounds: int, active: int) -> dict[str, list[Stall]]:
    """Stalls of each variant in each round."""
    first, after = WARM_UP_STEPS, 30
    variants = stall_variants(folder, first, active)
    stalls: dict[str, list[Stall]] = {name: [] for name in variants}
    for number in range(-1 if rounds > 1 else 0, rounds):  # a first round warms up and does not count
        for name in random.sample(list(variants), len(variants)):
            model = Model(layers=60)
            last = first + 2 + active - 1
            end_us = fit(model, variants[name](), last + 1 + after + 1)
            steps = model.steps_us
            plain_us = statistics.median(steps[first // 2 : first - 1])
            recorded_us = statistics.median(steps[first + 2 : last])
            if number >= 0:
                stalls[name].append(
                    Stall(
                        closing=(steps[last] - recorded_us) / 1e3,
                        afterwards=sum(step - plain_us for step in steps[last + 1 :]) / 1e3,
                        end_of_fit=end_us / 1e3,
                    )
                )
    return stalls


def stall_table(stalls: dict[str, list[Stall]]) -> str:
    """Stalls, and their differences to the first variant in the same round."""
    base = next(iter(stalls.values()))
    rows = []
    for name, rounds in stalls.items():
        added = [one.closing - other.closing for one, other in zip(rounds, base, strict=True)]
        rows.append(
            [
                name,
                with_spread([one.closing for one in rounds]),
                "" if rounds is base else with_spread(added, sign=True),
                with_spread([one.afterwards for one in rounds]),
                with_spread([one.end_of_fit for one in rounds]),
            ]
        )
    return table(["with", "stall, ms", "added, ms", "30 steps after, ms", "end of fit, ms"], rows)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="how often each variant runs (%(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="steps of each run of the first table (%(default)s)")
    parser.add_argument("--pairs", type=int, default=250, help="pairs of blocks of the second table (%(default)s)")
    parser.add_argument("--active", type=int, default=10, help="recorded steps of the third table (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="only show that it works; the figures mean nothing")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.pairs, options.active = 1, 30, 2, 2

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    random.seed(0)
    print(f"`{command()}`\n\n{machine(['torch', 'lightning'])}; median [quartiles] of {options.rounds} rounds\n")
    with tempfile.TemporaryDirectory() as folder:
        print("Step time\n", flush=True)
        print(step_table(measure_steps(folder, options.rounds, options.steps)), flush=True)
        model = measure_switching(folder, options.pairs, BLOCK)
        print(f"\nThe same within one fit: PerfCallback, outside its window, in and out every {BLOCK} steps\n")
        rows = [switching_row("wall time", model.steps_us, BLOCK), switching_row("CPU time", model.cpu_us, BLOCK)]
        print(table(["step", "with, µs", "without, µs", "added, µs"], rows), flush=True)
        print("\nStall at a window's end: how long training is held up\n", flush=True)
        Path(folder, "perf").mkdir(exist_ok=True)
        print(stall_table(measure_stalls(folder, options.rounds, options.active)))


if __name__ == "__main__":
    main()
