"""How often a comparison is right: on two runs of the same code, and on one that is slower by a known share.

``python benchmarks/compare.py`` prints, for real CPU runs cut into pairs and for simulated series, in how many pairs a
difference is claimed when there is none, and found when the second of each pair is made slower by 1 to 20 %. Real runs
are those in ``tests/comparison/recorded.json.gz``: step times of three trainings, in microseconds. ``--record FILE``
trains them again and writes such a file. Simulated series have a run's autocorrelation and spikes: see ``SIMULATED``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import LightningModule, Trainer
from printing import command, machine, table
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_perf import PerfCallback
from lightning_perf.comparison.statistics import estimate

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "comparison" / "recorded.json.gz"
SLOWER = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
WARM_UP = 20
STEPS = {"mlp": 4000, "conv": 4000, "workers": 2000}

Series = npt.NDArray[np.float64]
Pair = tuple[Series, Series]


def simulated(kind: str, steps: int, pairs: int, seed: int = 0) -> list[Pair]:
    """Pairs of series of the same kind."""
    random = np.random.default_rng(seed)
    return [(SIMULATED[kind](random, steps), SIMULATED[kind](random, steps)) for _ in range(pairs)]


def _series(
    *, correlation: float, spread: float, spikes: float, alternates: float = 0.0
) -> Callable[[np.random.Generator, int], Series]:
    """Log step times: an AR(1) series, spikes of exponential size in a share of steps, and two workers in turn."""

    def make(random: np.random.Generator, steps: int) -> Series:
        noise = spread * math.sqrt(1 - correlation**2) * random.standard_normal(steps)
        values = np.empty(steps)
        values[0] = spread * random.standard_normal()
        for step in range(1, steps):
            values[step] = correlation * values[step - 1] + noise[step]
        values += (random.random(steps) < spikes) * random.exponential(1.0, steps)
        values += alternates * np.where(np.arange(steps) % 2, 0.5, -0.5)
        return 1000 * np.exp(values)

    return make


SIMULATED = {
    "independent, 5 % spread": _series(correlation=0.0, spread=0.05, spikes=0.03),
    "autocorrelated": _series(correlation=0.6, spread=0.03, spikes=0.03),
    "heavy tail": _series(correlation=0.3, spread=0.03, spikes=0.1),
    "two workers in turn": _series(correlation=0.0, spread=0.05, spikes=0.03, alternates=0.2),
}
"""Spread, correlation and spikes within a few hundred steps of the recorded runs, without the machine's changes."""

LIKE_THESE_MACHINES = ("independent, 5 % spread", "autocorrelated", "heavy tail")
"""The spread of the two trainings without worker processes; with them steps differ much more."""


def recorded(steps: int, path: Path = RECORDED) -> dict[str, list[Pair]]:
    """Neighbouring pieces of real runs: pairs of the same code."""
    runs: dict[str, list[list[int]]] = json.loads(gzip.decompress(path.read_bytes()))
    return {kind: [pair for run in several for pair in _pairs(run[WARM_UP:], steps)] for kind, several in runs.items()}


def _pairs(run: list[int], steps: int) -> Iterator[Pair]:
    pieces = [np.array(run[at : at + steps], np.float64) for at in range(0, len(run) - steps + 1, steps)]
    return zip(pieces[::2], pieces[1::2], strict=False)


def claimed(pairs: list[Pair], slower: float) -> float:
    """Share of pairs in which the second, made slower, is called slower; without a change, called different."""
    found = 0
    for base, candidate in pairs:
        change = estimate(base, candidate * (1 + slower))
        assert change is not None
        found += change.differs and (slower == 0 or change.ratio > 1)
    return found / len(pairs)


class Model(LightningModule):
    """Any network, on batches of tensors."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """A loss that costs little itself."""
        values: torch.Tensor = self.net(batch[0] if isinstance(batch, list) else batch)
        return values.pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Weights that stay as they are, more or less."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Images(Dataset[torch.Tensor]):
    """Images that take a while to make."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3, 48, 48).roll(1, 1).sin().roll(1, 1).sin()


def training(kind: str) -> tuple[nn.Module, DataLoader[object]]:
    """The network and the loader of one of the three."""
    items = 16 * (STEPS[kind] + 50)
    if kind == "mlp":
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        return net, DataLoader(TensorDataset(torch.randn(items, 64)), batch_size=16)
    if kind == "conv":
        net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1))
        return net, DataLoader(TensorDataset(torch.randn(items // 2, 3, 32, 32)), batch_size=8)
    return nn.Conv2d(3, 8, 3), DataLoader(Images(), batch_size=16, num_workers=2)


def step_times_us(kind: str) -> list[int]:
    """Train once; the time of every step."""
    net, loader = training(kind)
    with tempfile.TemporaryDirectory() as folder:
        perf = PerfCallback(dirpath=folder, summary=False, schedule={"skip_first": 2 * STEPS[kind]})
        trainer = Trainer(
            accelerator="cpu",
            max_steps=STEPS[kind],
            callbacks=[perf],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Model(net), loader)
    run = perf.analysis.run if perf.analysis is not None else None
    if run is None or run.loop is None or run.loop.series.stride != 1:
        raise SystemExit("the run was not measured step by step")
    return [round(ns / 1000) for ns in run.loop.series.duration_ns]


def record(path: Path, runs: int) -> None:
    """Train, and keep the step times."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    kept: dict[str, list[list[int]]] = {kind: [] for kind in STEPS}
    for turn in range(runs):
        for kind, times in kept.items():
            print(f"run {turn + 1} of {runs}: {kind}", file=sys.stderr)
            times.append(step_times_us(kind))
    path.write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))


def main() -> None:
    """Print the table, or record runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps on each side of a pair (%(default)s)")
    parser.add_argument("--pairs", type=int, default=400, help="simulated pairs of each kind (%(default)s)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="train, write the step times to FILE, and end")
    parser.add_argument("--runs", type=int, default=5, help="with --record: runs of each training (%(default)s)")
    options = parser.parse_args()
    if options.record is not None:
        record(options.record, options.runs)
        return
    kinds = {f"recorded: {kind}": pairs for kind, pairs in recorded(options.steps).items()}
    kinds |= {f"simulated: {kind}": simulated(kind, options.steps, options.pairs) for kind in SIMULATED}
    rows = [
        [name, str(len(pairs)), *(f"{100 * claimed(pairs, slower):.1f}" for slower in SLOWER)]
        for name, pairs in kinds.items()
    ]
    header = ["step times", "pairs", "same code, %", *(f"{100 * slower:.0f} % slower" for slower in SLOWER[1:])]
    print(f"`{command()}`\n\n{machine(['numpy'])}; {options.steps} steps on each side; percent of the pairs\n")
    print(table(header, rows))


if __name__ == "__main__":
    main()
