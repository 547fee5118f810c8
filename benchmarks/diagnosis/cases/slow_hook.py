"""A callback that reports to a server after every batch."""
# ruff: noqa: ARG002, D102 - Lightning fixes the signatures of hooks

from __future__ import annotations

import time

from lightning.pytorch import Callback

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.hook"


class Reporter(Callback):
    """As slow as a request."""

    def on_train_batch_end(self, *arguments: object) -> None:
        time.sleep(0.01)


def slow() -> Training:
    """Every step waits for the answer."""
    return Training(Net(), in_memory(), callbacks=[Reporter()])


def fixed() -> Training:
    """Without it."""
    return Training(Net(), in_memory())
