"""Adam that visits 600 small tensors one by one."""

from __future__ import annotations

from torch.optim import Adam

from benchmarks.diagnosis.training import ManyTensors, Training, in_memory

EXPECTED = "host.optimizer_loop"


def slow() -> Training:
    """A dozen operators for each tensor."""
    return Training(ManyTensors(lambda parameters: Adam(parameters, lr=0.001, foreach=False)), in_memory())


def fixed() -> Training:
    """A dozen for all of them."""
    return Training(ManyTensors(lambda parameters: Adam(parameters, lr=0.001, foreach=True)), in_memory())
