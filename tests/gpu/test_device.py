"""On a machine with an accelerator: device figures, allocator peaks, and no synchronisation per step."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_perf import PerfCallback
from lightning_perf.capture import memory
from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Category
from tests.measure.laws import assert_conserved
from tests.training import Net, Plant, loader, quiet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

SHORT = {"skip_first": 2, "wait": 0, "warmup": 2, "active": 4}


class Wide(Net):
    """Enough work to see the device."""

    def __init__(self, plant: Plant) -> None:
        super().__init__(plant)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 2048), torch.nn.Linear(2048, 8))


def fit(folder: Path, callback: PerfCallback, **settings: Any) -> Any:
    trainer = quiet(folder, accelerator="gpu", devices=1, callbacks=[callback], logger=CSVLogger(folder), **settings)
    trainer.fit(Wide(Plant()), loader(Plant(), 12, pin_memory=True))
    return trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_device_figures(precision: str, tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, module_depth=1)
    trainer = fit(tmp_path, callback, precision=precision)
    (window,) = callback.analysis.windows
    assert_conserved(window)
    (device,) = window.devices
    assert device.name == torch.cuda.get_device_name(0)
    assert device.operations > 4 * 10
    assert 0 < device.busy_us < device.span_us
    assert device.copy_us > 0
    assert device.window.steps == 4
    assert 0 < device.window.busy_us < device.window.duration_us
    assert [step.number for step in window.steps] == [4, 5, 6, 7]
    assert all(step.device_busy_us["0"] > 0 for step in window.steps)
    trace = read_trace(Path(trainer.log_dir) / "perf" / window.trace)
    launched = trace.correlation[trace.category == Category.KERNEL]
    assert len(set(launched.tolist())) == len(launched)
    assert callback.analysis.run.devices[0].memory_bytes == torch.cuda.get_device_properties(0).total_memory


def test_device_scalars_reach_the_logger(tmp_path: Path) -> None:
    trainer = fit(tmp_path, PerfCallback(schedule=SHORT))
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert 0 < float(last["perf/gpu_busy_ratio"]) < 1
    assert float(last["perf/gpu_busy_ratio"]) + float(last["perf/gpu_idle_ratio"]) == pytest.approx(1)
    assert float(last["perf/gpu_idle_gaps_per_step"]) > 1
    assert float(last["perf/memory_peak_allocated_mib"]) > 0


def test_allocator_peaks_are_read_and_not_reset() -> None:
    torch.ones(1 << 20, device="cuda")
    before = torch.cuda.max_memory_allocated()
    peaks = memory.memory_peaks()
    assert peaks.allocated_bytes["0"] == before == torch.cuda.max_memory_allocated()
    assert peaks.reserved_bytes["0"] >= before


def test_memory_events_give_the_peak_inside_the_window(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, profile_memory=True)
    fit(tmp_path, callback)
    found = callback.analysis.windows[0].memory
    assert 0 < found.peak_allocated_bytes["0"] <= torch.cuda.max_memory_allocated()


def test_nothing_waits_for_the_device_outside_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append(1))
    fit(tmp_path, PerfCallback(schedule={"skip_first": 1000}), num_sanity_val_steps=0)
    assert waits == []
