"""One stage of one run being captured: the clock, the schedule, and the window that is open now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.capture.clock import LoopClock
from lightning_perf.capture.marks import Marks
from lightning_perf.capture.profiler import Recording, SavedWindow, WindowProfiler, is_profiling
from lightning_perf.capture.window import Schedule

if TYPE_CHECKING:
    from torch import nn


@dataclass
class Session:
    """Opens and closes windows as the clock goes from step to step.

    Args:
        clock: the stage's clock; its boundaries drive the windows.
        folder: where traces go, or None to record none.
        recording: what a window records.
        rank: rank of this process.
        module: the model, for module labels.
        module_depth: how deep module names are labelled, 0 for not at all.
        on_saved: called with each saved window, on the training thread; whatever it does belongs to no step.

    ``schedule`` must be set before the first step. ``notes`` collects what the user should know.
    """

    clock: LoopClock
    folder: Path | None
    recording: Recording
    rank: int
    module: nn.Module
    module_depth: int
    on_saved: Callable[[SavedWindow], None]
    schedule: Schedule = field(default_factory=Schedule)
    notes: list[str] = field(default_factory=list)
    _window: WindowProfiler | None = None
    _marks: Marks | None = None

    def boundary(self, next_step: int | None) -> None:
        """Between two steps, or (None) at the end of an epoch: end what ends here, begin what begins."""
        began_ns = time.perf_counter_ns()
        if self._window is not None:
            self._window.end_step()
            if self.schedule.ends_window(self.clock.step):
                self._close(self._window)
        if next_step is not None and self.folder is not None:
            self._begin(next_step)
        self.clock.profiler_ns += time.perf_counter_ns() - began_ns

    def finish(self) -> None:
        """The loop is over, in whatever way: save an open window, drop one that is still warming up."""
        window, steps, first = self._window, self.clock.step + 1, self.schedule.first_recorded
        if window is not None:
            if window.recording:
                self.note(f"the run ended inside a window: it has fewer than {self.schedule.active} steps")
            self._close(window)
        if self.folder is not None and 0 < steps <= first:
            self.note(
                f"no trace was recorded: the run ended after {steps} steps, and the schedule records from step {first} "
                "on; set schedule to record earlier"
            )

    def abandon(self) -> None:
        """Something failed: stop the profiler, whatever state it is in, and record nothing more."""
        window, self._window, self.folder = self._window, None, None
        self.clock.marker = None
        if window is not None:
            if self._marks is not None:
                self._marks.close()
            window.stop()

    def _begin(self, step: int) -> None:
        action = self.schedule.action(step)
        if action == "off":
            return
        if self._window is None:
            self._open()
        window = self._window
        if window is None or action == "warmup":
            return
        if not window.recording:
            window.record()
            self._marks = self.clock.marker = Marks(self.clock)
            if self.module_depth:
                self._marks.attach(self.module, self.module_depth)
        window.begin_step(step)

    def _open(self) -> None:
        if is_profiling():
            self.note("another torch profiler is running: no trace was recorded while it ran")
            return
        window = WindowProfiler(self.recording, self.clock.stage, self.rank)
        window.warm_up()
        self._window = window
        self.clock.traced = True

    def _close(self, window: WindowProfiler) -> None:
        self._window = None
        self.clock.traced = False
        self.clock.marker = None
        if self._marks is not None:
            self._marks.close()
            self._marks = None
        window.stop()
        if window.recording and self.folder is not None:
            saved = window.save(self.folder)
            if saved is not None:
                self.on_saved(saved)

    def note(self, text: str) -> None:
        """Remember a sentence for the user, once."""
        if text not in self.notes:
            self.notes.append(text)
