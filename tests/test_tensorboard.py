"""The tab that people had, torch-tb-profiler 0.4.3, opens the traces that a run writes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from lightning_perf import PerfCallback
from tests.training import Net, Plant, loader, quiet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    oracle = pytest.importorskip("torch_tb_profiler.profiler.loader", reason="torch-tb-profiler is not installed")

SCHEDULE = {"skip_first": 1, "wait": 1, "warmup": 1, "active": 3, "repeat": 2}


def load(folder: Path) -> Any:
    from torch_tb_profiler.io.cache import Cache

    return oracle.RunLoader("run", str(folder), Cache()).load()


def test_steps_ranks_and_windows(tmp_path: Path) -> None:
    folder = tmp_path / "perf"
    callback = PerfCallback(schedule=SCHEDULE, dirpath=str(folder), summary=False)
    quiet(tmp_path, callbacks=[callback], logger=False).fit(Net(Plant()), loader(Plant(), 14))
    run = load(folder)
    assert run.workers == ["rank0"]
    assert len(run.get_spans("rank0")) == 2
    for span, window in zip(run.get_spans("rank0"), callback.analysis.windows, strict=True):
        profile = run.get_profile("rank0", span)
        rows = profile.overview["steps"]["rows"]
        assert [int(row[0]) for row in rows] == [step.number for step in window.steps]
        assert len(rows) == SCHEDULE["active"]
