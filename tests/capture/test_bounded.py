"""What may grow with the length of a run, and how long its end may take: traces, windows, memory, background work."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_perf import ConfigError, PerfCallback
from lightning_perf.capture import background
from lightning_perf.capture.background import Background
from lightning_perf.capture.forecast import JSON_PER_HEAP, MIB, Forecast, allocated_bytes
from lightning_perf.capture.profiler import SavedWindow
from lightning_perf.measure.analysis import read_analysis
from lightning_perf.runinfo import WindowRecord, read_run
from tests.tab import server as servers
from tests.training import Net, Plant, loader, quiet

needs_heap = pytest.mark.skipif(allocated_bytes() is None, reason="the C library does not tell what it has allocated")

EVERY_EIGHT = {"skip_first": 0, "wait": 5, "warmup": 1, "active": 2, "repeat": 0}


def fit(folder: Path, batches: int, net: Net | None = None, **settings: Any) -> PerfCallback:
    callback = PerfCallback(dirpath=folder / "perf", summary=False, **settings)
    quiet(folder, callbacks=[callback], logger=False).fit(net or Net(Plant(), log=False), loader(Plant(), batches))
    assert callback.analysis is not None
    return callback


def notes(callback: PerfCallback) -> list[str]:
    return callback.analysis.run.notes


# The size of a trace


class ManyOps(Net):
    """Some two thousand tiny operators in a step: about 1 MiB of trace."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        value = torch.zeros(())
        for _ in range(1000):
            value = value + 1
        return super().training_step(batch, batch_idx) + 0 * value


@needs_heap
def test_a_window_ends_before_its_trace_is_too_large(tmp_path: Path) -> None:
    schedule = {"skip_first": 2, "wait": 1, "warmup": 1, "active": 8, "repeat": 2}
    callback = fit(tmp_path, 26, ManyOps(Plant()), schedule=schedule, max_trace_mib=3)
    steps = [[step.number for step in window.steps] for window in callback.analysis.windows]
    assert [numbers[0] for numbers in steps] == [4, 14]
    assert all(1 <= len(numbers) < 8 for numbers in steps)
    assert all((tmp_path / "perf" / window.trace).is_file() for window in callback.analysis.windows)
    (note,) = notes(callback)
    assert note.startswith(f"a window ended after {len(steps[0])} of 8 steps: all of them would be a trace of about ")
    assert note.endswith(" MiB; set max_trace_mib=3 to more, or to None for no limit")


@needs_heap
def test_the_forecast_is_right_within_a_factor_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(Forecast, "learn", lambda self, steps, size: sizes.append(size))
    schedule = {"skip_first": 2, "wait": 1, "warmup": 1, "active": 8}
    said = notes(fit(tmp_path / "a", 14, ManyOps(Plant()), schedule=schedule, max_trace_mib=1))[0]
    fit(tmp_path / "b", 14, ManyOps(Plant()), schedule=schedule, max_trace_mib=None)
    assert sizes[-1] / 2 < int(said.split("about ")[1].split()[0]) * MIB < sizes[-1] * 2


def test_without_a_limit_or_below_it_a_window_is_whole(tmp_path: Path) -> None:
    schedule = {"skip_first": 2, "wait": 0, "warmup": 1, "active": 4}
    for limit in (None, 64):
        callback = fit(tmp_path / str(limit), 8, ManyOps(Plant()), schedule=schedule, max_trace_mib=limit)
        assert len(callback.analysis.windows[0].steps) == 4
        assert notes(callback) == []


def test_forecast_of_a_heap_that_grows() -> None:
    heap = [100]
    forecast = Forecast(cap_bytes=100 * MIB, heap_bytes=lambda: heap[0])
    forecast.begin()
    heap[0] += 10 * MIB
    assert forecast.exceeds(1, 6) is None
    heap[0] += 90 * MIB
    assert forecast.exceeds(2, 6) == round(300 * MIB * JSON_PER_HEAP)
    assert forecast.exceeds(6, 6) is None


def test_forecast_learns_from_a_window_with_more_bytes_than_thought() -> None:
    heap = [0]
    forecast = Forecast(cap_bytes=100 * MIB, heap_bytes=lambda: heap[0])
    for expected in (None, 120 * MIB):
        forecast.begin()
        heap[0] += 10 * MIB
        assert forecast.exceeds(1, 6) == (None if expected is None else 6 * 50 * MIB)
        forecast.learn(1, 50 * MIB)
        forecast.cap_bytes = 60 * MIB


def test_forecast_without_a_heap_takes_the_last_window() -> None:
    forecast = Forecast(cap_bytes=100, heap_bytes=lambda: None)
    forecast.begin()
    assert forecast.exceeds(1, 6) is None
    forecast.learn(6, 300)
    forecast.begin()
    assert forecast.exceeds(1, 6) is None
    assert forecast.exceeds(2, 6) == 300


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"max_trace_mib": 0}, "expected at least 1. Set None"), ({"keep_windows": 1}, "expected at least 2. Set None")],
)
def test_wrong_limits_say_what_to_do(setting: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PerfCallback(**setting)  # type: ignore[arg-type]


# How many windows stay


def test_the_first_window_and_the_latest_ones_stay(tmp_path: Path) -> None:
    fit(tmp_path, 8, schedule=EVERY_EIGHT)
    earlier = set((tmp_path / "perf").glob("*.gz"))
    callback = fit(tmp_path, 48, schedule=EVERY_EIGHT, keep_windows=3)
    run = read_run(tmp_path / "perf" / "run.json")
    assert [record.first_step for record in run.windows] == [6, 14, 22, 30, 38, 46]
    assert [window.steps[0].number for window in callback.analysis.windows] == [6, 38, 46]
    there = set((tmp_path / "perf").glob("*.gz"))
    assert earlier < there
    kept = {tmp_path / "perf" / record.trace for record in run.windows if (tmp_path / "perf" / record.trace).is_file()}
    assert there - earlier == kept
    assert len(kept) == 3
    assert notes(callback) == [
        "the traces of 3 windows were removed, as keep_windows=3: the first one and the latest ones are kept"
    ]


def test_a_trace_that_is_gone_is_no_problem_for_readers(tmp_path: Path) -> None:
    from lightning_perf.cli import main

    fit(tmp_path, 48, schedule=EVERY_EIGHT, keep_windows=2)
    min((tmp_path / "perf").glob("*.gz")).unlink()
    assert main(["report", str(tmp_path / "perf"), "--output", str(tmp_path / "report.html")]) == 0
    assert main(["analyze", str(tmp_path / "perf")]) == 0
    assert len(read_analysis(tmp_path / "perf" / "analysis.json").windows) == 2
    (run,) = servers.serve(tmp_path).runs()["runs"]
    assert [window["trace"] for window in run["windows"]] == [False, True]


# What goes on in the background


def saved(folder: Path, number: int) -> tuple[SavedWindow, WindowRecord]:
    raw = folder / f".{number}.part"
    raw.write_text("{}")
    path = folder / f"{number}.pt.trace.json.gz"
    return SavedWindow(raw, path, number, number), WindowRecord(
        trace=path.name, first_step=number, last_step=number, rank=0, global_step=number
    )


class Hanging:
    """An analysis in a process that never ends by itself."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, path: Path, *, on_start: Callable[[Callable[[], None]], None] | None = None) -> str:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.processes.append(process)
        if on_start is not None:
            on_start(process.kill)
        process.wait()
        raise RuntimeError(f"killed: {path.name}")

    def all_ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)


def test_an_analysis_that_hangs_is_killed_and_its_trace_stays(tmp_path: Path) -> None:
    hanging = Hanging()
    work: Background[str] = Background(hanging, end_seconds=1)
    for number in range(3):
        work.take(*saved(tmp_path, number), analyze=True)
    began = time.monotonic()
    records = work.finish()
    assert work.analyses(hanging, lambda error: pytest.fail(str(error))) == []
    assert time.monotonic() - began < 3
    assert [tmp_path / record.trace for record in records] == work.unanalyzed
    assert all(path.is_file() for path in work.unanalyzed)
    assert len(hanging.processes) == 1
    assert hanging.all_ended()


def test_an_analysis_at_the_end_that_hangs_is_killed_too(tmp_path: Path) -> None:
    hanging = Hanging()
    work: Background[str] = Background(hanging, end_seconds=1)
    for number in range(3):
        work.take(*saved(tmp_path, number), analyze=False)
    began = time.monotonic()
    work.finish()
    assert work.analyses(hanging, lambda error: pytest.fail(str(error))) == []
    assert time.monotonic() - began < 4
    assert len(work.unanalyzed) == 3
    assert hanging.all_ended()


def test_a_run_that_is_interrupted_waits_for_no_analysis(tmp_path: Path) -> None:
    hanging = Hanging()
    work: Background[str] = Background(hanging)
    work.take(*saved(tmp_path, 0), analyze=True)
    began = time.monotonic()
    (record,) = work.finish(in_a_hurry=True)
    assert time.monotonic() - began < 3
    assert (tmp_path / record.trace).is_file()
    assert hanging.all_ended()


def test_a_window_that_cannot_be_compressed_in_time_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = background.compress

    def slow(window: SavedWindow, stop: threading.Event) -> Path:
        assert stop.wait(30)
        return real(window, stop)

    monkeypatch.setattr(background, "compress", slow)
    work: Background[str] = Background(Hanging(), end_seconds=0.2)
    work.take(*saved(tmp_path, 0), analyze=False)
    (record,) = work.finish()
    assert record.trace == "0.pt.trace.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.pt.trace.json"]


def test_pruning_gives_an_analysis_up(tmp_path: Path) -> None:
    hanging = Hanging()
    work: Background[str] = Background(hanging, keep=2, end_seconds=0.5)
    for number in range(5):
        work.take(*saved(tmp_path, number), analyze=True)
    assert work.pending == 2
    assert work.pruned == 3
    records = work.finish()
    assert [record.first_step for record in records] == [0, 1, 2, 3, 4]
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["0", "4"]
    assert hanging.all_ended()


def test_a_fit_whose_analyses_hang_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = Hanging()
    monkeypatch.setattr("lightning_perf.callback.analyze_aside", hanging)
    monkeypatch.setattr(Background.__init__, "__kwdefaults__", {"keep": None, "end_seconds": 1})
    began = time.monotonic()
    callback = fit(tmp_path, 16, schedule=EVERY_EIGHT)
    assert time.monotonic() - began < 10
    assert callback.analysis.windows == []
    (note,) = notes(callback)
    assert note.startswith("2 of the windows could not be analysed within ")
    assert note.endswith(f"lightning-perf analyze {tmp_path / 'perf'}")
    assert read_run(tmp_path / "perf" / "run.json").notes == [note]
    assert len(list((tmp_path / "perf").glob("*.gz"))) == 2
    assert hanging.all_ended()


# Memory


class Resident(Callback):
    """Resident MiB of the process at the end of every hundredth window."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.mib: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % self.steps == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.mib.append(pages * 4096 / MIB)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc, to see the resident size")
def test_five_hundred_windows_grow_the_process_by_less_than_50_mib(tmp_path: Path) -> None:
    """All 500, beside what the first ten bring with them: libraries, and torch's own buffers."""
    resident = Resident(steps=8 * 10)
    callback = PerfCallback(dirpath=tmp_path / "perf", summary=False, schedule=EVERY_EIGHT)
    trainer = quiet(tmp_path, callbacks=[callback, resident], logger=False)
    gc.collect()
    trainer.fit(Net(Plant(), log=False), loader(Plant(), 8 * 510))
    assert len(resident.mib) == 51
    assert resident.mib[-1] - resident.mib[0] < 50, resident.mib
    assert len(read_run(tmp_path / "perf" / "run.json").windows) == 510
