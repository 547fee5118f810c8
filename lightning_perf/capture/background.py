"""What happens to a saved window while training goes on: compressed by a thread, analysed where that serves.

Nothing in here can hold the process up: the threads are daemons, analyses run in processes that can be killed, and
every wait has an end.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import msgspec

from lightning_perf.capture.profiler import SavedWindow, compress
from lightning_perf.runinfo import WindowRecord

T = TypeVar("T")
W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)

END_SECONDS = 60.0
"""Most time that the end of a stage waits for windows to be compressed and analysed, all of them together."""

HURRY_SECONDS = 5.0
"""The same where the run failed or was interrupted, or the interpreter exits; nothing is analysed then."""

STOP_SECONDS = 1.0
"""How long something that was told to stop is given to do so before it is left behind."""


class Analyze(Protocol[W_co]):
    """Analyses a trace file, not in the way of other threads; tells ``on_start`` how to kill what it started."""

    def __call__(self, path: Path, *, on_start: Callable[[Callable[[], None]], None] | None = None) -> W_co:
        """The analysis of a trace."""


class _Worker:
    """A daemon thread that takes tasks in order, from the first one on. Unlike an executor's, no exit waits for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter exits: no thread any more
                self._thread = None
                _settle(future, action)
                return future
        self._tasks.put(lambda: _settle(future, action))
        return future

    def close(self) -> None:
        """Let the thread end after its last task."""
        self._tasks.put(None)

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def _settle(future: Future[T], action: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)


@dataclass
class _Job(Generic[W]):
    record: WindowRecord
    path: Future[Path]
    analysis: Future[W] | None = None
    handed_out: bool = False
    given_up: bool = False
    kill: Callable[[], None] | None = None

    def started(self, kill: Callable[[], None]) -> None:
        self.kill = kill
        if self.given_up:
            kill()

    def give_up(self) -> None:
        """End the analysis, now or as soon as it has begun."""
        self.given_up = True
        if self.analysis is not None and not self.analysis.cancel() and self.kill is not None:
            self.kill()

    @property
    def result(self) -> W | None:
        """The analysis if there is one."""
        done = self.analysis
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return None
        return done.result()


class Background(Generic[W]):
    """One thread that compresses saved windows in order, and one that waits for their analyses.

    Args:
        analyze: analyses a trace file; must not hold the interpreter lock for long, as it runs while training does.
        keep: most windows to keep, at least 2, or None for all: the first one and the latest ones. Trace and analysis
            of others are given up when a later window comes.
        end_seconds: most time that :meth:`finish` and :meth:`analyses` take together.
    """

    def __init__(self, analyze: Analyze[W], *, keep: int | None = None, end_seconds: float = END_SECONDS) -> None:
        self._analyze = analyze
        self._keep = keep
        self._end_seconds = end_seconds
        self._until = float("inf")
        self._files = _Worker("lightning-perf-files")
        self._analyses = _Worker("lightning-perf-analyses")
        self._stop_compressing = threading.Event()
        self._jobs: list[_Job[W]] = []
        self._pruned: list[WindowRecord] = []
        self.unanalyzed: list[Path] = []
        """Traces of which no analysis was there in time, after :meth:`analyses`."""
        self.pending = 0
        """Analyses that were asked for and not handed out: asked in every step, so a plain number."""

    @property
    def pruned(self) -> int:
        """How many windows were given up because there were later ones."""
        return len(self._pruned)

    def take(self, saved: SavedWindow, record: WindowRecord, *, analyze: bool) -> None:
        """Compress a window, and then analyse it if asked to."""
        if not self._jobs:
            atexit.register(self._at_exit)
        job: _Job[W] = _Job(record, self._files.submit(lambda: compress(saved, self._stop_compressing)))
        if analyze:
            job.analysis = self._analyses.submit(lambda: self._analyze(job.path.result(), on_start=job.started))
        self._jobs.append(job)
        self.pending += analyze
        if self._keep is not None and len(self._jobs) > self._keep:
            self._prune(self._jobs.pop(1))

    def newly_analyzed(self) -> list[W]:
        """Analyses that have succeeded since the last call. Does not wait."""
        results = []
        for job in self._jobs:
            if job.analysis is not None and not job.handed_out and job.analysis.done():
                job.handed_out = True
                self.pending -= 1
                if job.result is not None:
                    results.append(job.result)
        return results

    def finish(self, *, in_a_hurry: bool = False) -> list[WindowRecord]:
        """Wait until all windows are compressed, and analysed unless in a hurry, but not longer than allowed.

        A window that could not be compressed in time is left as torch wrote it.

        Returns:
            The records of the windows whose files are there, with the names that they have now, and those of windows
            that were given up, in the order in which they were recorded.
        """
        began = time.monotonic()
        self._until = began + (HURRY_SECONDS if in_a_hurry else self._end_seconds)
        if in_a_hurry:
            self._give_up_analyses()
        self._close(self._until)
        atexit.unregister(self._at_exit)
        kept = [msgspec.structs.replace(job.record, trace=job.path.result().name) for job in self._kept()]
        return sorted([*kept, *self._pruned], key=lambda record: record.first_step)

    def analyses(self, analyze: Analyze[W], failed: Callable[[Exception], None]) -> list[W]:
        """The analyses of all windows, after :meth:`finish`; ``analyze`` makes those that are missing, in time.

        ``failed`` is told why one could not be made.
        """
        results = []
        for job in self._kept():
            if job.result is None and not job.given_up:
                self._analyze_now(job, analyze)
            if job.result is not None:
                results.append(job.result)
            elif job.given_up:
                self.unanalyzed.append(job.path.result())
            elif job.analysis is not None and isinstance(error := job.analysis.exception(), Exception):
                failed(error)
        return results

    def abandon(self) -> None:
        """Nobody will ask for anything: end analyses, let windows be compressed."""
        self._give_up_analyses()
        self._files.close()
        self._analyses.close()

    def _analyze_now(self, job: _Job[W], analyze: Analyze[W]) -> None:
        """Analyse a window in a thread of its own, which is left behind if even killing does not end it."""
        worker = _Worker("lightning-perf-analysis")
        if time.monotonic() < self._until:
            job.kill = None
            job.analysis = worker.submit(lambda: analyze(job.path.result(), on_start=job.started))
            worker.close()
            worker.join(max(0.0, self._until - time.monotonic()))
        if job.analysis is None or not job.analysis.done():
            job.give_up()
            worker.join(STOP_SECONDS)

    def _close(self, until: float) -> None:
        """Wait for what was begun, then end it."""
        self._files.close()
        self._analyses.close()
        wait([job.path for job in self._jobs], max(0.0, until - time.monotonic()))
        self._stop_compressing.set()
        self._files.join(STOP_SECONDS)
        begun = [job.analysis for job in self._jobs if job.analysis is not None]
        wait(begun, max(0.0, until - time.monotonic()))
        for job in self._jobs:
            if job.analysis is not None and not job.analysis.done():
                job.give_up()
        self._analyses.join(STOP_SECONDS)

    def _at_exit(self) -> None:
        """The interpreter exits and nobody has called :meth:`finish`."""
        self._give_up_analyses()
        self._close(time.monotonic() + HURRY_SECONDS)

    def _give_up_analyses(self) -> None:
        for job in self._jobs:
            job.give_up()

    def _prune(self, job: _Job[W]) -> None:
        if job.analysis is not None and not job.handed_out:
            self.pending -= 1
        job.give_up()
        self._pruned.append(job.record)
        self._files.submit(lambda: _remove(job.path))

    def failures(self) -> list[Exception]:
        """Why windows could be neither compressed nor kept as they were, after :meth:`finish`."""
        errors = [job.path.exception() for job in self._jobs]
        return [error for error in errors if isinstance(error, Exception)]

    def _kept(self) -> list[_Job[W]]:
        return [job for job in self._jobs if job.path.done() and job.path.exception() is None]


def _remove(path: Future[Path]) -> None:
    """Remove a trace once it has its name; one that cannot be removed, or is gone, does no harm."""
    with contextlib.suppress(Exception):
        path.result().unlink()
