"""A model in float64."""

from __future__ import annotations

from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.training import BATCH, CORES, Net, Training, points

EXPECTED = "gpu.float64"


def _training(precision: str) -> Training:
    inputs, targets = points().tensors
    loader = DataLoader(TensorDataset(inputs.double(), targets.double()), batch_size=BATCH)
    if precision == "32-true":
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=BATCH)
    return Training(Net(width=768), loader, settings={"precision": precision}, threads=CORES)


def slow() -> Training:
    """As data from NumPy arrives."""
    return _training("64-true")


def fixed() -> Training:
    """float32."""
    return _training("32-true")
