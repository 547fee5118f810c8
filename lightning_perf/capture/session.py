"""One stage of one run being captured: the clock, the schedule, and the window that is open now."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.capture.clock import LoopClock
from lightning_perf.capture.forecast import MIB, Forecast
from lightning_perf.capture.marks import Marks
from lightning_perf.capture.profiler import Recording, SavedWindow, Watch, WindowProfiler, is_profiling
from lightning_perf.capture.window import Schedule

if TYPE_CHECKING:
    from torch import nn

_one_window = threading.Lock()
"""torch has one profiler per process: held while a window is open, by whichever trainer."""


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
        forecast: ends a window whose trace would get too large.
        on_saved: called with each saved window, on the training thread; whatever it does belongs to no step.

    ``schedule`` is None until the loop has begun, and nothing is recorded before. ``notes`` collects what the
    user should know.
    """

    clock: LoopClock
    folder: Path | None
    recording: Recording
    rank: int
    module: nn.Module
    module_depth: int
    on_saved: Callable[[SavedWindow], None]
    forecast: Forecast = field(default_factory=lambda: Forecast(None))
    schedule: Schedule | None = None
    notes: list[str] = field(default_factory=list)
    _window: WindowProfiler | None = None
    _marks: Marks | None = None
    _watch: Watch | None = None
    _said_large: bool = False
    _free_last: Callable[[], None] | None = None

    def boundary(self, next_step: int | None) -> None:
        """Between two steps, or (None) at the end of an epoch: end what ends here, begin what begins."""
        if self.schedule is None:
            self.clock.wake_at = 0
            return
        began_ns = time.perf_counter_ns()
        window = self._window
        if window is not None:
            window.end_step()
            if window.lost or self.schedule.ends_window(self.clock.step) or self._too_large(window, self.schedule):
                self._close(window)
        if next_step is not None and self.folder is not None:
            self._begin(self.schedule, next_step)
        if self._window is None:
            upcoming = self.schedule.next_window(self.clock.step + 1 if next_step is None else next_step + 1)
            self.clock.wake_at = math.inf if upcoming is None or self.folder is None else upcoming
        self.clock.profiler_ns += time.perf_counter_ns() - began_ns

    def finish(self) -> None:
        """The loop is over, in whatever way: save an open window, drop one that is still warming up."""
        window, steps, schedule = self._window, self.clock.step + 1, self.schedule
        if window is not None:
            if window.recording:
                self.note("the run ended inside a window, which holds fewer steps than scheduled")
            self._close(window)
        if schedule is not None and self.folder is not None and 0 < steps <= schedule.first_recorded:
            self.note(
                f"no trace was recorded: the run ended after {steps} steps, and the schedule records from step "
                f"{schedule.first_recorded} on; set schedule to record earlier"
            )

    def abandon(self) -> None:
        """Something failed, or the interpreter exits: stop the profiler and record nothing more."""
        self.folder = None
        window = self._window
        if window is not None:
            try:
                self._close(window)
            finally:
                try:
                    window.switch_off()
                finally:
                    self._forget()

    def note(self, text: str) -> None:
        """Remember a sentence for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _begin(self, schedule: Schedule, step: int) -> None:
        action = schedule.action(step)
        if action == "off":
            return
        if self._window is None and schedule.begins_window(step):
            self._open()
        window = self._window
        if window is None or action == "warmup":
            return
        if not window.recording:
            self.forecast.begin()
            window.record()
            self._marks = Marks(self.clock)
            self.clock.label_with(self._marks)
            if self.module_depth:
                self._marks.attach(self.module, self.module_depth)
        window.begin_step(step)

    def _open(self) -> None:
        if not _one_window.acquire(blocking=False):
            self.note("another trainer was recording: no trace was recorded at the same time")
            return
        if is_profiling():
            _one_window.release()
            self.note("another torch profiler is running: no trace was recorded while it ran")
            return
        self.clock.wake_at = 0
        try:
            if self._free_last is not None:  # else memory holds as many windows as the collector lets pile up
                self._free_last()
            window = self._window = WindowProfiler(self.recording, self.clock.stage, self.rank)
        except BaseException:
            _one_window.release()  # there is no window yet that would do it when it is abandoned
            raise
        # A profiler that is still on crashes the interpreter at its exit.
        atexit.register(self.abandon)
        window.warm_up()
        thread = threading.get_ident()
        self._watch = Watch(window, lambda: self._give_way(window, same_thread=threading.get_ident() == thread))
        self.clock.traced = True

    def _too_large(self, window: WindowProfiler, schedule: Schedule) -> bool:
        """Whether the trace would get too large with one more step."""
        if not window.recording or not window.steps:
            return False
        forecast, cap = self.forecast.exceeds(window.steps, schedule.active), self.forecast.cap_bytes
        if forecast is None or cap is None:
            return False
        if not self._said_large:
            self._said_large = True
            self.note(
                f"a window ended after {window.steps} of {schedule.active} steps: all of them would be a trace of "
                f"about {forecast // MIB} MiB; set max_trace_mib={cap // MIB} to more, or to None for no limit"
            )
        return True

    def _give_way(self, window: WindowProfiler, *, same_thread: bool) -> None:
        """Somebody else is about to start a torch profiler: theirs goes first."""
        self.note("another torch profiler was started inside a window, which ended there")
        if same_thread:
            self._close(window)
        else:
            window.lost = True

    def _close(self, window: WindowProfiler) -> None:
        """End a window. May be called again if it was broken off: nothing is forgotten before it is done."""
        self.clock.label_with(None)
        try:
            if self._watch is not None:
                self._watch.end()
            if self._marks is not None:
                self._marks.close()
        finally:
            window.stop()
        saved = window.save(self.folder) if self.folder is not None else None
        if saved is not None:
            self.forecast.learn(window.steps, saved.raw.stat().st_size)
        self._forget()
        if saved is not None:
            self.on_saved(saved)

    def _forget(self) -> None:
        if self._window is not None:
            self._free_last = self._window.leftover()
            self._window = self._marks = self._watch = None
            self.clock.traced = False
            atexit.unregister(self.abandon)
            _one_window.release()
