"""DeviceStatsMonitor before and after every step."""
# ruff: noqa: TC002 - nothing is gained by importing it later

from __future__ import annotations

import tempfile

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning.pytorch.loggers import CSVLogger

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.hook"


def _training(callbacks: list[Callback]) -> Training:
    settings = {"logger": CSVLogger(tempfile.mkdtemp()), "log_every_n_steps": 1}
    return Training(Net(layers=1), in_memory(100), callbacks=callbacks, settings=settings)


def slow() -> Training:
    """It asks the machine and writes what it says."""
    return _training([DeviceStatsMonitor(cpu_stats=True)])


def fixed() -> Training:
    """Without it."""
    return _training([])
