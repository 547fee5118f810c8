"""What happens to a saved window while training goes on: compressed by a thread, analysed where that serves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from lightning_perf.capture.profiler import SavedWindow, compress
from lightning_perf.runinfo import WindowRecord

W = TypeVar("W")


@dataclass
class _Job(Generic[W]):
    record: WindowRecord
    path: Future[Path]
    analysis: Future[W] | None
    handed_out: bool = False


class Background(Generic[W]):
    """Two worker threads that take saved windows in order: one may compress while the other waits for an analysis.

    Args:
        analyze: analyses a trace file; must not hold the interpreter lock for long, as it runs while training does.
    """

    def __init__(self, analyze: Callable[[Path], W]) -> None:
        self._analyze = analyze
        self._workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="lightning-perf")
        self._jobs: list[_Job[W]] = []
        self.pending = 0
        """Analyses that were asked for and not handed out: asked in every step, so a plain number."""

    def take(self, saved: SavedWindow, record: WindowRecord, *, analyze: bool) -> None:
        """Compress a window, and then analyse it if asked to."""
        path = self._workers.submit(compress, saved)
        analysis = self._workers.submit(lambda: self._analyze(path.result())) if analyze else None
        self._jobs.append(_Job(record, path, analysis))
        self.pending += analyze

    def newly_analyzed(self) -> list[W]:
        """Analyses that have succeeded since the last call. Does not wait."""
        results = []
        for job in self._jobs:
            if job.analysis is not None and not job.handed_out and job.analysis.done():
                job.handed_out = True
                self.pending -= 1
                if job.analysis.exception() is None:
                    results.append(job.analysis.result())
        return results

    def finish(self, *, in_a_hurry: bool = False) -> list[WindowRecord]:
        """Wait until all windows are compressed, and analysed unless in a hurry.

        Returns:
            The records of the windows whose files are there, with the names that they have now.
        """
        if in_a_hurry:
            for job in self._jobs:
                if job.analysis is not None:
                    job.analysis.cancel()
        self._workers.shutdown(wait=not in_a_hurry)
        return [msgspec.structs.replace(job.record, trace=job.path.result().name) for job in self._kept()]

    def analyses(self, analyze: Callable[[Path], W | None]) -> list[W]:
        """The analyses of all windows, after :meth:`finish`; ``analyze`` makes those that are missing if it can."""
        results = []
        for job in self._kept():
            done = job.analysis
            ready = done is not None and not done.cancelled() and done.exception() is None
            result = done.result() if done is not None and ready else analyze(job.path.result())
            if result is not None:
                results.append(result)
        return results

    def _kept(self) -> list[_Job[W]]:
        return [job for job in self._jobs if job.path.exception() is None]

    def abandon(self) -> None:
        """Let what was begun end by itself."""
        self._workers.shutdown(wait=False)
