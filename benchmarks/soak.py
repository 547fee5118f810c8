"""Does anything grow? A long training with a window of torch.profiler every few steps.

``python benchmarks/soak.py --minutes 10 --every 20`` prints a table over time, and the first third of the run compared
with the last one. The model, its loader and torch's one thread are as small as can be, so that what PerfCallback and
torch.profiler leave behind is most of what there is to see. Needs Linux: figures are read from ``/proc``.
"""
# ruff: noqa: ARG002, D102 - Lightning fixes the signatures of hooks, and documents what each is called for

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from printing import command, machine, table
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_perf import PerfCallback
from lightning_perf.runinfo import read_run

MIB = 1 << 20
FEATURES = 64
BATCH = 32
WARM_UP_STEPS = 2
ACTIVE_STEPS = 4


@dataclass(frozen=True)
class Sample:
    """The process at one moment; the rate is that since the sample before."""

    minutes: float
    steps: int
    windows: int
    resident_mib: float
    threads: int
    open_files: int
    children: int
    steps_per_second: float

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        return [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in astuple(self)]


class Batches(IterableDataset[torch.Tensor]):
    """The same batch for ever."""

    def __iter__(self):  # noqa: ANN204
        batch = torch.randn(BATCH, FEATURES)
        while True:
            yield batch


class Model(LightningModule):
    """A small multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU()) for _ in range(3)]
        self.model = nn.Sequential(*blocks, nn.Linear(FEATURES, 1))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Watcher(Callback):
    """Takes a sample now and then, between two windows, and ends the run when its time is over."""

    def __init__(self, seconds: float, samples: int, every: int) -> None:
        self.every = every
        self.samples: list[Sample] = []
        self._interval = seconds / samples
        self._wanted = samples
        self._began = self._last = time.monotonic()
        self._steps = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if (batch_idx + 1) % self.every or now < self._began + self._interval * (len(self.samples) + 1):
            return
        self.samples.append(self._sample(batch_idx + 1, now))
        self._last, self._steps = now, batch_idx + 1
        trainer.should_stop = len(self.samples) >= self._wanted

    def _sample(self, steps: int, now: float) -> Sample:
        process = Path("/proc/self")
        return Sample(
            minutes=(now - self._began) / 60,
            steps=steps,
            windows=steps // self.every,
            resident_mib=int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB,
            threads=len(list((process / "task").iterdir())),
            open_files=len(list((process / "fd").iterdir())),
            children=sum(len(task.read_text().split()) for task in process.glob("task/*/children")),
            steps_per_second=(steps - self._steps) / (now - self._last),
        )


def soak(folder: Path, seconds: float, samples: int, every: int) -> list[Sample]:
    """Train for some time with a window every few steps."""
    schedule = {
        "skip_first": 0,
        "wait": every - WARM_UP_STEPS - ACTIVE_STEPS,
        "warmup": WARM_UP_STEPS,
        "active": ACTIVE_STEPS,
        "repeat": 0,
    }
    watcher = Watcher(seconds, samples, every)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        callbacks=[PerfCallback(dirpath=folder, schedule=schedule, summary=False), watcher],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), DataLoader(Batches(), batch_size=None))
    return watcher.samples


def thirds_table(samples: list[Sample]) -> str:
    """Medians of the first and of the last third of the samples."""
    third = max(1, len(samples) // 3)
    rows = []
    for field in fields(Sample):
        if field.name in ("minutes", "steps", "windows"):
            continue
        first, last = (
            statistics.median(float(getattr(sample, field.name)) for sample in part)
            for part in (samples[:third], samples[-third:])
        )
        rows.append([field.name.replace("_", " "), f"{first:,.1f}", f"{last:,.1f}", f"{last - first:+,.1f}"])
    return table(["median", "first third", "last third", "change"], rows)


def main() -> None:
    """Run it and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long to train (default: %(default)s)")
    parser.add_argument("--every", type=int, default=20, help="steps from one window to the next (default: 20)")
    parser.add_argument("--samples", type=int, default=12, help="rows of the table (default: %(default)s)")
    options = parser.parse_args()
    if options.every < WARM_UP_STEPS + ACTIVE_STEPS:
        parser.error(f"--every {options.every}: expected at least {WARM_UP_STEPS + ACTIVE_STEPS}")
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = soak(folder, options.minutes * 60, options.samples, options.every)
        traces = list(folder.glob("*.pt.trace.json*"))
        windows = read_run(folder / "run.json").windows
        disk = sum(path.stat().st_size for path in folder.iterdir()) / MIB
    print(f"{command()}\n{machine(['torch', 'lightning'])}\n")
    header = ["minutes", "steps", "windows", "RSS (MiB)", "threads", "open files", "child processes", "steps/s"]
    print(table(header, [sample.cells for sample in samples]))
    print(f"\n{thirds_table(samples)}\n")
    print(f"{len(windows)} windows recorded, {len(traces)} traces kept; {disk:.1f} MiB of files at the end.")


if __name__ == "__main__":
    main()
