"""A logger that sends every step's metrics to a server."""
# ruff: noqa: D102, TC002 - Lightning fixes the signatures of hooks

from __future__ import annotations

import tempfile
import time

import torch
from lightning.pytorch.loggers import CSVLogger

from benchmarks.diagnosis.training import BATCH, Net, Training, in_memory

EXPECTED = "host.logging"


class Logging(Net):
    """Logs its loss."""

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, batch_size=BATCH)
        return loss


class Uploading(CSVLogger):
    """As slow as a request."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        time.sleep(0.008)
        super().log_metrics(metrics, step)


def _training(every: int) -> Training:
    settings = {"logger": Uploading(tempfile.mkdtemp()), "log_every_n_steps": every}
    return Training(Logging(), in_memory(), settings=settings)


def slow() -> Training:
    """``log_every_n_steps=1``."""
    return _training(1)


def fixed() -> Training:
    """``log_every_n_steps=50``, Lightning's default."""
    return _training(50)
