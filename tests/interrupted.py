"""Trainings in processes of their own that a signal ends: ``python -m tests.interrupted FOLDER`` runs them all.

Every training is a fork of this process, so that torch is imported once. Each leaves in a folder of its own what it
printed, and how it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STEPS = 12
SCHEDULE = {"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")


@dataclass(frozen=True)
class Phase:
    """Where the signal comes: the step, or a function of ours; and how many traces are there afterwards."""

    step: int | None
    traces: int
    traces_when_killed: int

    def traces_after(self, name: str) -> int:
        return self.traces_when_killed if name == "SIGKILL" else self.traces


PHASES = {
    "waiting": Phase(1, 0, 0),
    "warm-up": Phase(6, 1, 1),
    "recording": Phase(8, 2, 1),
    "export": Phase(None, 2, 1),
    "background analysis": Phase(9, 2, 2),
    "fit end": Phase(None, 2, 2),
}

ENDS = {("SIGKILL", phase): -signal.SIGKILL for phase in PHASES}
"""What is certain of how a process ends without us."""


@dataclass(frozen=True)
class Row:
    """One training: the signal, where it comes, and whether PerfCallback is there."""

    signal: str
    phase: str
    watched: bool

    @property
    def folder(self) -> str:
        return f"{self.signal} {self.phase} {self.watched}"


@dataclass(frozen=True)
class Ended:
    """How a training's process ended. What it tells itself is None where it was killed."""

    folder: Path
    status: int
    processes_left: list[int]
    output: str
    profiling: bool | None = None
    threads: list[str] | None = None


ROWS = [Row(name, phase, watched) for name in SIGNALS for phase in PHASES for watched in (True, False)]


def read_ended(folder: Path) -> dict[Row, Ended]:
    found = {}
    for row in ROWS:
        place = folder / row.folder
        known = json.loads((place / "ended.json").read_text())
        told = place / "told.json"
        known |= json.loads(told.read_text()) if told.exists() else {}
        found[row] = Ended(folder=place, output=(place / "output").read_text(errors="replace"), **known)
    return found


def main(folder: Path) -> None:
    # Imported before the first fork, so that each starts at once.
    import lightning.pytorch  # noqa: F401
    import psutil  # noqa: F401
    import torch.profiler  # noqa: F401

    import lightning_perf.callback
    import lightning_perf.pipeline
    import tests.training  # noqa: F401
    from tests.processes import processes_with

    assert lightning_perf.callback
    for row in ROWS:
        place = folder / row.folder
        place.mkdir()
        pid = os.fork()
        if pid == 0:
            _train(row, place)
            return
        _, status = os.waitpid(pid, 0)
        left = _processes_of(place, processes_with)
        ended = {"status": os.waitstatus_to_exitcode(status), "processes_left": left}
        (place / "ended.json").write_text(json.dumps(ended))


def _processes_of(place: Path, processes_with: Callable[..., list[int]]) -> list[int]:
    """Processes that still work on the traces of a training, five seconds after it ended."""
    traces = [str(trace) for trace in (place / "perf").glob("*")]
    until = time.monotonic() + 5
    while True:
        left = [pid for trace in traces for pid in processes_with(trace)]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


def _train(row: Row, place: Path) -> None:
    """In the fork: train until the signal comes, and go on as any script would."""
    import torch

    from lightning_perf import PerfCallback
    from tests.training import Net, Plant, loader, quiet

    output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    atexit.register(_tell, place)
    torch.set_num_threads(1)
    send = Sender(row, place / "perf")
    ours = [PerfCallback(schedule=SCHEDULE, dirpath=place / "perf")] if row.watched else []
    if row.watched:
        send.from_within()
    trainer = quiet(place, callbacks=[*ours, send.callback()], logger=False)
    trainer.fit(Net(Plant()), loader(Plant(), STEPS))
    print("after the fit")


def _tell(place: Path) -> None:
    """The last thing that a process does."""
    from lightning_perf.capture.profiler import is_profiling

    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("lightning-perf")]
    (place / "told.json").write_text(json.dumps({"profiling": is_profiling(), "threads": threads}))


class Sender:
    """Sends the signal to its own process, once."""

    def __init__(self, row: Row, traces: Path) -> None:
        self.row = row
        self.traces = traces
        self.sent = False
        self.phase = PHASES[row.phase]

    def send(self) -> None:
        if not self.sent:
            self.sent = True
            os.kill(os.getpid(), getattr(signal, self.row.signal))

    def from_within(self) -> None:
        """Where the signal comes while we work."""
        import torch

        from lightning_perf import callback

        if self.row.phase == "background analysis":
            callback.memory = SimpleNamespace(devices=lambda: ["cuda:0"], memory_peaks=callback.memory.memory_peaks)
        if self.row.phase == "export":
            original = torch.profiler.profile.export_chrome_trace
            calls: list[str] = []

            def interrupted(profile: Any, path: str) -> None:
                original(profile, path)
                calls.append(path)
                if len(calls) == 2:
                    if self.row.signal == "SIGKILL":  # no other signal arrives before torch has written it all
                        os.truncate(path, Path(path).stat().st_size // 2)
                    self.send()

            torch.profiler.profile.export_chrome_trace = interrupted
        if self.row.phase == "fit end":
            advised = callback.advised

            def late(*args: Any) -> Any:
                self.send()
                return advised(*args)

            callback.advised = late

    def callback(self) -> Any:
        """Where the signal comes from the user's side; without us, at the same places of the run."""
        from lightning.pytorch.callbacks import Callback

        sender = self

        class Sends(Callback):
            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
                if batch_idx == sender.phase.step:
                    sender.wait_for_analysis()
                    sender.send()

            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
                if batch_idx == 8 and sender.row.phase == "export" and not sender.row.watched:
                    sender.send()

            def teardown(self, *_: Any, **__: Any) -> None:
                if sender.row.phase == "fit end" and not sender.row.watched:
                    sender.send()

        return Sends()

    def wait_for_analysis(self) -> None:
        """Until both windows are compressed, and one of them is being analysed."""
        import psutil

        from tests.processes import wait_until

        if self.row.watched and self.row.phase == "background analysis":
            wait_until(lambda: len(list(self.traces.glob("rank*.gz"))) == 2 and psutil.Process().children())


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(Path(sys.argv[1]))
