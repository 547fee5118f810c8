"""Every test must leave the process as it found it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No profiler left on, no thread of ours, no patched method, no changed environment."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    yield
    if "torch" in sys.modules:
        import torch

        assert not torch.autograd._profiler_enabled(), "a torch profiler was left running"
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("lightning-perf")]
    assert not ours, f"threads left behind: {ours}"
    for kind in _lightning_classes(sys.modules):
        assert not hasattr(kind.log, "__wrapped__"), f"{kind} was left patched"
    assert os.environ.get("KINETO_LOG_LEVEL") == before, "the environment was changed"


def _lightning_classes(modules: dict[str, Any]) -> list[Any]:
    found = []
    for name in ("lightning.pytorch", "pytorch_lightning"):
        module = modules.get(name)
        if module is not None and hasattr(module, "LightningModule"):
            found.append(module.LightningModule)
    return found


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log folder of a real run: slow items, two windows with memory and modules, in ``version_0/perf``."""
    from lightning_perf import PerfCallback
    from tests.training import Net, Plant, loader, quiet

    folder = tmp_path_factory.mktemp("logs") / "version_0"
    callback = PerfCallback(
        dirpath=folder / "perf",
        schedule={"skip_first": 2, "wait": 1, "warmup": 1, "active": 3, "repeat": 2},
        profile_memory=True,
        module_depth=2,
        summary=False,
    )
    plant = Plant("getitem", 0.01)
    quiet(folder, callbacks=[callback], logger=False, max_epochs=2).fit(Net(plant), loader(plant, 12), loader(plant, 2))
    return folder.parent
