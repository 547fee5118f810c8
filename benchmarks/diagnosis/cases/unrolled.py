"""A moving average that is unrolled over time."""

from __future__ import annotations

import torch

from benchmarks.diagnosis.training import FEATURES, Net, Training, in_memory

EXPECTED = "host.loop_index"
DECAY = 0.9


class Smoothed(Net):
    """Smooths its inputs along the features."""

    def __init__(self, *, loop: bool) -> None:
        super().__init__(layers=2)
        self.loop = loop
        age = torch.arange(FEATURES)[None, :] - torch.arange(FEATURES)[:, None]
        self.register_buffer("weights", torch.where(age >= 0, (1 - DECAY) * DECAY ** age.clamp(min=0), 0.0))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Loss of one smoothed batch."""
        inputs, targets = batch
        return self.loss([self.by_time(inputs) if self.loop else inputs @ self.weights, targets])

    def by_time(self, inputs: torch.Tensor) -> torch.Tensor:
        """One state after the other."""
        state = torch.zeros(len(inputs))
        states = []
        for time in range(FEATURES):
            state = DECAY * state + (1 - DECAY) * inputs[:, time]
            states.append(state)
        return torch.stack(states, dim=1)


def slow() -> Training:
    """Four operators for each of 256 times."""
    return Training(Smoothed(loop=True), in_memory())


def fixed() -> Training:
    """One matrix product."""
    return Training(Smoothed(loop=False), in_memory())
