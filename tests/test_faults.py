"""What goes wrong around a run, and in us: training ends as it would have, and what was recorded is kept.

Every fault strikes between or inside the two windows of a run of twelve steps: a warm-up in steps 2 and 6, recorded
steps 3, 4 and 7, 8. Faults that end the process are in ``tests.interrupted``, which this file runs once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import psutil
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import PyTorchProfiler

import lightning_perf.callback as ours
from lightning_perf import PerfCallback
from lightning_perf.capture import background, memory
from lightning_perf.capture.profiler import WindowProfiler, is_profiling
from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.analysis import read_analysis
from lightning_perf.runinfo import read_run
from tests.interrupted import ENDS, PHASES, SCHEDULE, SIGNALS, STEPS, Ended, Row, read_ended
from tests.processes import needs_proc, wait_until
from tests.training import Net, Plant, loader, quiet

BETWEEN = 5
"""Step at which faults of the surroundings begin: one window is recorded, the other is not yet."""

linux_root = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="mounts a file system, which needs root on Linux"
)


@dataclass
class Place:
    """Where a fault strikes: the folder of the results, and what undoes the fault."""

    folder: Path
    patch: pytest.MonkeyPatch
    undo: list[Callable[[], object]] = field(default_factory=list)

    def mount(self, options: str) -> None:
        self.folder.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], capture_output=True)
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
        self.undo.append(lambda: subprocess.run(["umount", "-l", self.folder], check=True))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path / "perf", monkeypatch)
    yield made
    while made.undo:
        made.undo.pop()()


class At(Callback):
    """Does something at the beginning of one step."""

    def __init__(self, step: int, action: Callable[[pl.Trainer], object]) -> None:
        self.step = step
        self.action = action

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.step:
            self.action(trainer)


def planted(callbacks: list[Callback], folder: Path, **settings: Any) -> tuple[pl.Trainer, list[torch.Tensor]]:
    """A run of twelve steps, and the weights after it."""
    pl.seed_everything(4, verbose=False)
    net = Net(Plant())
    trainer = quiet(folder, callbacks=callbacks, **{"logger": False, **settings})
    trainer.fit(net, loader(Plant(), STEPS))
    return trainer, [weight.detach().clone() for weight in net.parameters()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """Weights of the same run without a fault, and without us."""
    return planted([], tmp_path_factory.mktemp("plain"))[1]


def same(weights: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.name == "lightning_perf"]
    return [record.getMessage() for record in records if record.levelname in ("WARNING", "ERROR")]


def files_are_whole(folder: Path) -> int:
    """Everything with a final name can be read; how many traces there are."""
    traces = [*folder.glob("*.pt.trace.json.gz"), *folder.glob("*.pt.trace.json")] if folder.is_dir() else []
    for trace in traces:
        assert len(read_trace(trace)) > 50
    for record in folder.glob("run*.json") if folder.is_dir() else []:
        assert read_run(record).loop is not None
    for record in folder.glob("analysis*.json") if folder.is_dir() else []:
        assert read_analysis(record).loop is not None
    return len(traces)


def nothing_is_left(children: list[psutil.Process]) -> None:
    """No profiler, no thread, no process; and a second fit works."""
    assert not is_profiling()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("lightning-perf")])
    wait_until(lambda: [one for one in psutil.Process().children(recursive=True) if one not in children] == [])


def a_second_fit_works(folder: Path) -> None:
    again = PerfCallback(schedule=SCHEDULE, dirpath=folder, summary=False)
    planted([again], folder)
    assert len(again.analysis.windows) == 2


# Faults in what we use


def nth(place: Place, owner: Any, name: str, times: tuple[int, ...], *, after: bool = False) -> None:
    """Some calls of a method raise, before or after they have done their work."""
    original = getattr(owner, name)
    calls = iter(range(1, 10_000))

    def faulty(*args: Any, **kwargs: Any) -> Any:
        strikes = next(calls) in times
        if strikes and not after:
            raise RuntimeError("planted")
        result = original(*args, **kwargs)
        if strikes:
            raise RuntimeError("planted")
        return result

    place.patch.setattr(owner, name, faulty)


def profiler_fault(name: str, *times: int, after: bool = False) -> Callable[[Place], None]:
    return lambda place: nth(place, torch.profiler.profile, name, times, after=after)


def half_written(place: Place) -> None:
    original = torch.profiler.profile.export_chrome_trace
    calls = iter(range(1, 100))

    def half(self: Any, path: str) -> None:
        original(self, path)
        if next(calls) == 2:
            os.truncate(path, Path(path).stat().st_size // 2)

    place.patch.setattr(torch.profiler.profile, "export_chrome_trace", half)


def fill(place: Place) -> None:
    """Leave no room on the file system of the folder."""
    wait_until(lambda: list(place.folder.glob("rank*.gz")))
    with contextlib.suppress(OSError), (place.folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def limit_file_size(place: Place) -> None:
    wait_until(lambda: list(place.folder.glob("rank*.gz")))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    place.undo.append(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before))
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))


def make_read_only(place: Place) -> None:
    wait_until(lambda: list(place.folder.glob("rank*.gz")) and not list(place.folder.glob(".*.part*")))
    subprocess.run(["mount", "-o", "remount,ro", place.folder], check=True)


def vanish(place: Place) -> None:
    wait_until(lambda: list(place.folder.glob("rank*.gz")))  # not the hidden one that is being written
    shutil.rmtree(place.folder)


def vanish_for_good(place: Place) -> None:
    vanish(place)
    place.folder.write_text("in the way")


def below_a_file(place: Place) -> None:
    place.folder.write_text("in the way")


def analysis_raises(place: Place) -> None:
    nth(place, ours, "analyze_aside", tuple(range(1, 100)))


def advice_raises(place: Place) -> None:
    nth(place, ours, "advised", (1,))


def report_raises(place: Place) -> None:
    nth(place, ours.Report, "save", (1,))


def compressing_raises(place: Place) -> None:
    nth(place, background, "compress", (2,))


def packing_fails(place: Place) -> None:
    """zlib cannot write, the system can: the trace stays as it is."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "planted", "x")

    place.patch.setattr("lightning_perf.capture.profiler.gzip.open", fails)


def saving_and_ending(place: Place) -> None:
    """The second window is still open where the run ends, and cannot be saved then."""
    place.patch.setitem(SCHEDULE, "active", 8)
    place.patch.setitem(SCHEDULE, "repeat", 0)
    place.patch.setitem(SCHEDULE, "skip_first", 2)
    profiler_fault("export_chrome_trace", 1)(place)


@dataclass(frozen=True)
class Fault:
    """What is planted before the run, what happens in its middle; the one warning, and the traces that stay."""

    plant: Callable[[Place], object] = lambda _: None
    strike: Callable[[Place], object] = lambda _: None
    warning: str | None = "RuntimeError: planted"
    traces: int = 1


ALWAYS = tuple(range(2, 100))

FAULTS = {
    "profiler cannot be made": Fault(lambda place: nth(place, WindowProfiler, "__init__", (2,))),
    "profiler cannot prepare": Fault(profiler_fault("prepare_trace", 2)),
    "profiler cannot start": Fault(profiler_fault("start_trace", 2)),
    "profiler never starts again": Fault(profiler_fault("start_trace", *ALWAYS)),
    "profiler fails after starting": Fault(profiler_fault("start_trace", 2, after=True)),
    "profiler cannot stop at once": Fault(profiler_fault("stop_trace", 2)),
    "profiler never stops": Fault(profiler_fault("stop_trace", *ALWAYS)),
    "profiler fails after stopping": Fault(profiler_fault("stop_trace", 2, after=True)),
    "trace cannot be saved": Fault(profiler_fault("export_chrome_trace", 2)),
    "trace is saved, then it fails": Fault(profiler_fault("export_chrome_trace", 2, after=True)),
    "trace is half written": Fault(half_written, warning="could not write the whole trace"),
    "step cannot be marked": Fault(lambda place: nth(place, WindowProfiler, "begin_step", (3,)), traces=1),
    "compressing fails": Fault(compressing_raises),
    "only packing fails": Fault(packing_fails, warning=None, traces=2),
    "saving fails at the end": Fault(saving_and_ending, traces=0),
    "disk full": Fault(lambda place: place.mount("size=400k"), fill, "OSError", 1),
    "file size limit": Fault(strike=limit_file_size, warning="OSError", traces=1),
    "read-only": Fault(lambda place: place.mount("size=4m"), make_read_only, "Read-only file system", 1),
    "folder vanishes": Fault(strike=vanish, warning="TraceError", traces=1),
    "folder vanishes for good": Fault(strike=vanish_for_good, warning="File exists", traces=0),
    "no permission": Fault(below_a_file, warning="File exists", traces=0),
    "analysis raises": Fault(analysis_raises, traces=2),
    "advice raises": Fault(advice_raises, traces=2),
    "report raises": Fault(report_raises, traces=2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[linux_root] if name in ("disk full", "read-only") else []) for name in FAULTS]
)
def test_a_fault_costs_training_nothing(
    name: str, place: Place, undisturbed: list[torch.Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault, children = FAULTS[name], psutil.Process().children(recursive=True)
    fault.plant(place)
    callback = PerfCallback(schedule=SCHEDULE, dirpath=place.folder)
    _, weights = planted([callback, At(BETWEEN, lambda _: fault.strike(place))], tmp_path)
    warned = warnings_of(caplog)
    assert same(weights, undisturbed)
    assert len(warned) == (fault.warning is not None), warned
    assert (fault.warning or "") in "".join(warned)
    nothing_is_left(children)
    loop = callback.analysis.run.loop
    assert loop.plain.steps + loop.traced.steps == STEPS
    for text in warned:
        assert any(note in text for note in callback.analysis.run.notes)
    assert files_are_whole(place.folder) == fault.traces
    place.patch.undo()
    while place.undo:
        place.undo.pop()()
    a_second_fit_works(tmp_path / "again")


class Refuses(CSVLogger):
    """Raises another error for each row of ours."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if any(key.startswith("perf/") for key in metrics):
            raise ConnectionError(f"planted at {step}")
        super().log_metrics(metrics, step)


def test_a_logger_that_refuses_is_one_warning(
    tmp_path: Path, undisturbed: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    callback = PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")
    logger = Refuses(tmp_path)
    _, weights = planted([callback], tmp_path, logger=logger)
    assert same(weights, undisturbed)
    assert len(warnings_of(caplog)) == 1
    assert "ConnectionError: planted at" in warnings_of(caplog)[0]
    assert "loss" in Path(logger.log_dir, "metrics.csv").read_text()
    assert files_are_whole(tmp_path / "perf") == 2


def test_a_trace_deleted_before_its_analysis(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Deletes(Callback):
        def on_train_end(self, *_: Any) -> None:
            wait_until(lambda: len(list((tmp_path / "perf").glob("rank*.gz"))) == 2)
            min((tmp_path / "perf").glob("rank*.gz")).unlink()

    callback = PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")
    planted([callback, Deletes()], tmp_path)
    assert len(callback.analysis.windows) == 1
    assert len(warnings_of(caplog)) == 1
    assert "TraceError" in warnings_of(caplog)[0]
    assert files_are_whole(tmp_path / "perf") == 1


# Somebody else's profiler


def trainers_own(folder: Path, callbacks: list[Callback]) -> list[torch.Tensor]:
    return planted(callbacks, folder, profiler=PyTorchProfiler(dirpath=folder, filename="own"))[1]


def around(folder: Path, callbacks: list[Callback]) -> list[torch.Tensor]:
    with torch.profiler.profile() as theirs:
        weights = planted(callbacks, folder)[1]
    assert len(theirs.key_averages()) > 10
    return weights


def inside(folder: Path, callbacks: list[Callback], *, at: int) -> list[torch.Tensor]:
    """Started in a step and stopped three steps later."""
    theirs = torch.profiler.profile()
    begin, end = At(at, lambda _: theirs.start()), At(at + 3, lambda _: theirs.stop())
    weights = planted([*callbacks, begin, end], folder)[1]
    assert len(theirs.key_averages()) > 10
    return weights


@pytest.mark.parametrize(
    ("train", "note", "traces"),
    [
        (trainers_own, "two cannot run", 0),
        (around, "another torch profiler is running", 0),
        (lambda folder, callbacks: inside(folder, callbacks, at=1), "another torch profiler is running", 1),
        (lambda folder, callbacks: inside(folder, callbacks, at=2), "was started inside a window", 1),
        (lambda folder, callbacks: inside(folder, callbacks, at=4), "was started inside a window", 1),
    ],
    ids=["the trainer's own", "around the run", "before a window", "in a warm-up", "in a window"],
)
def test_somebody_elses_profiler_goes_first(
    train: Any, note: str, traces: int, tmp_path: Path, undisturbed: list[torch.Tensor], caplog: Any
) -> None:
    callback = PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")
    assert same(train(tmp_path, [callback]), undisturbed)
    assert note in " ".join(callback.analysis.run.notes)
    assert warnings_of(caplog) == []
    assert files_are_whole(tmp_path / "perf") == traces
    nothing_is_left(psutil.Process().children(recursive=True))
    a_second_fit_works(tmp_path / "again")


# The run's own end, in each phase

STEP_OF = {"waiting": 1, "warm-up": 2, "recording": 4, "background analysis": 9, "last step": STEPS - 1}
"""The step at which a run is ended, and how many traces there are by then."""

TRACES = {"waiting": 0, "warm-up": 0, "recording": 1, "background analysis": 2, "last step": 2, "fit end": 2}


class EndsWith(Callback):
    """Does something when the run is in a phase."""

    def __init__(self, phase: str, action: Callable[[pl.Trainer], object], folder: Path) -> None:
        self.phase = phase
        self.action = action
        self.folder = folder

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == STEP_OF.get(self.phase):
            if self.phase == "background analysis" and self.folder.exists():
                wait_until(lambda: psutil.Process().children())
            self.action(trainer)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        if self.phase == "fit end":
            self.action(trainer)


@pytest.fixture
def analyzed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a GPU: each window is analysed in the background, by a process of its own."""
    like_a_gpu = SimpleNamespace(devices=lambda: ["cuda:0"], memory_peaks=memory.memory_peaks)
    monkeypatch.setattr(ours, "memory", like_a_gpu)


def raising(error: BaseException) -> Callable[[pl.Trainer], None]:
    def raise_it(_: pl.Trainer) -> None:
        raise error

    return raise_it


@pytest.mark.usefixtures("analyzed_elsewhere")
@pytest.mark.parametrize("phase", TRACES)
@pytest.mark.parametrize("error", [ValueError("planted"), torch.OutOfMemoryError("planted")], ids=["error", "OOM"])
def test_an_exception_in_each_phase(
    phase: str, error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    children = psutil.Process().children(recursive=True)
    folder = tmp_path / "perf"
    callback = PerfCallback(schedule=SCHEDULE, dirpath=folder)
    began = time.monotonic()
    with pytest.raises(type(error)) as caught:
        planted([callback, EndsWith(phase, raising(error), folder)], tmp_path)
    assert caught.value is error
    assert time.monotonic() - began < 20
    nothing_is_left(children)
    assert files_are_whole(folder) == TRACES[phase]
    run = read_run(folder / "run.json")
    assert f"the run was ended by {type(error).__name__}" in run.notes
    assert len(run.windows) == TRACES[phase]
    assert len(warnings_of(caplog)) == (TRACES[phase] > 0)
    a_second_fit_works(tmp_path / "again")


@pytest.mark.usefixtures("analyzed_elsewhere")
@pytest.mark.parametrize("phase", TRACES)
def test_should_stop_in_each_phase(phase: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stop(trainer: pl.Trainer) -> None:
        trainer.should_stop = True

    _, plain = planted([EndsWith(phase, stop, tmp_path / "none")], tmp_path)
    children = psutil.Process().children(recursive=True)
    folder = tmp_path / "perf"
    callback = PerfCallback(schedule=SCHEDULE, dirpath=folder)
    trainer, weights = planted([callback, EndsWith(phase, stop, folder)], tmp_path)
    assert same(weights, plain)
    nothing_is_left(children)
    assert len(callback.analysis.windows) == files_are_whole(folder) == TRACES[phase]
    loop = read_run(folder / "run.json").loop
    assert loop.plain.steps + loop.traced.steps == trainer.global_step
    assert warnings_of(caplog) == []


@pytest.mark.usefixtures("analyzed_elsewhere")
def test_an_analysis_process_that_is_killed(
    tmp_path: Path, undisturbed: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    """Out of memory, say: the window is analysed again at the end."""

    def kill(_: pl.Trainer) -> None:
        wait_until(lambda: psutil.Process().children())
        for child in psutil.Process().children():
            child.kill()

    callback = PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")
    _, weights = planted([callback, At(BETWEEN, kill)], tmp_path)
    assert same(weights, undisturbed)
    assert len(callback.analysis.windows) == 2
    assert warnings_of(caplog) == []


def test_out_of_memory_while_a_trace_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: list[torch.Tensor], caplog: Any
) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", exhausted)
    callback = PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")
    _, weights = planted([callback], tmp_path)
    assert same(weights, undisturbed)
    (warning,) = warnings_of(caplog)
    assert "MemoryError: planted" in warning
    assert files_are_whole(tmp_path / "perf") == 0


def test_a_killed_loader_worker_is_the_users_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def kill(_: pl.Trainer) -> None:
        wait_until(lambda: psutil.Process().children())
        os.kill(psutil.Process().children()[0].pid, signal.SIGKILL)

    callback = PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")
    data = loader(Plant("getitem", 0.02), STEPS, num_workers=1)
    trainer = quiet(tmp_path, callbacks=[callback, At(4, kill)], logger=False)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (killed by signal|exited unexpectedly)"):
        trainer.fit(Net(Plant()), data)
    del data, trainer
    assert not is_profiling()
    assert files_are_whole(tmp_path / "perf") == 1
    assert "the run was ended by RuntimeError" in read_run(tmp_path / "perf" / "run.json").notes
    assert len(warnings_of(caplog)) == 1
    a_second_fit_works(tmp_path / "again")


def test_an_interrupt_while_the_end_waits_for_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = background.Background.finish
    calls: list[bool] = []

    def interrupted(self: Any, **settings: bool) -> Any:
        calls.append(True)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(self, **settings)

    monkeypatch.setattr(background.Background, "finish", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            planted([PerfCallback(schedule=SCHEDULE, dirpath=tmp_path / "perf")], tmp_path)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert files_are_whole(tmp_path / "perf") == len(read_run(tmp_path / "perf" / "run.json").windows) == 2
    a_second_fit_works(tmp_path / "again")


# The process's end, in each phase


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[Row, Ended]:
    """How each of the processes ended, with and without us."""
    folder = tmp_path_factory.mktemp("ended")
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.interrupted", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return read_ended(folder)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", SIGNALS)
def test_a_process_ends_as_it_would_have(name: str, phase: str, ended: dict[Row, Ended]) -> None:
    mine, plain = ended[Row(name, phase, watched=True)], ended[Row(name, phase, watched=False)]
    assert plain.status == ENDS.get((name, phase), plain.status)
    assert mine.status == plain.status, mine.output
    assert "Traceback" not in mine.output or "Traceback" in plain.output, mine.output
    assert mine.processes_left == []
    assert mine.profiling in (None, False)
    assert mine.threads == plain.threads
    traces = files_are_whole(mine.folder / "perf")
    assert traces == PHASES[phase].traces_after(name)
    if name != "SIGKILL":
        run = read_run(mine.folder / "perf" / "run.json")
        assert len(run.windows) == traces
        assert not list((mine.folder / "perf").glob(".*"))
