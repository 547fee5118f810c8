"""A checkpoint after every step."""

from __future__ import annotations

from lightning.pytorch.callbacks import ModelCheckpoint

from benchmarks.diagnosis.training import Net, Training, in_memory

EXPECTED = "host.checkpoint"


def _training(every: int) -> Training:
    checkpoint = ModelCheckpoint(every_n_train_steps=every, save_top_k=1)
    return Training(Net(), in_memory(), callbacks=[checkpoint], settings={"enable_checkpointing": True})


def slow() -> Training:
    """Weights are written again and again."""
    return _training(1)


def fixed() -> Training:
    """Rarely."""
    return _training(50)
