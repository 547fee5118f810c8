"""An elaborate progress bar, drawn in every step."""
# ruff: noqa: D102, TC002 - Lightning fixes the signatures of hooks

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from benchmarks.diagnosis.training import Net, Training, compute, in_memory

EXPECTED = "host.progress_bar"


class Dashboard(TQDMProgressBar):
    """Shows statistics that take a while."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return {**super().get_metrics(trainer, pl_module), "trend": f"{compute(100_000):.2e}"}


def _training(rate: int) -> Training:
    return Training(
        Net(), in_memory(), callbacks=[Dashboard(refresh_rate=rate)], settings={"enable_progress_bar": True}
    )


def slow() -> Training:
    """``refresh_rate=1``, Lightning's default."""
    return _training(1)


def fixed() -> Training:
    """``refresh_rate=20``."""
    return _training(20)
