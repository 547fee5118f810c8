"""Analyses of traces in the background, each in a process of its own, with their progress and their results."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lightning_perf.errors import PerfError
from lightning_perf.pipeline import AnalysisStage, Progress, analyze_elsewhere
from lightning_perf.tab.bounded import Bounded
from lightning_perf.tab.files import Files, StoredFile
from lightning_perf.tab.replies import Failed, JobStage, Working, readable

if TYPE_CHECKING:
    from lightning_perf.measure.analysis import Window

WORKERS: Final = 2
KEPT: Final = 512
"""Windows, as JSON of some 0.1 to 0.3 MB each."""

RETRY_S: Final = 30.0
"""After this time a file that could not be reached is asked for again. What is no trace stays so until it changes."""

_PATIENCE_S: Final = 5.0


class Analyze(Protocol):
    """Analyses a trace file, as :func:`lightning_perf.pipeline.analyze_elsewhere` does."""

    def __call__(self, path: Path, *, on_progress: Progress, on_start: Callable[[Callable[[], None]], None]) -> Window:
        """As that function says."""


class _ClosedError(Exception):
    """The server ends."""


@dataclass(eq=False)
class _Job:
    file: StoredFile
    files: Files
    begun_s: float
    stage: JobStage = "waiting"
    percent: int | None = None
    kill: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, slots=True)
class _Result:
    content: bytes | Failed
    until_s: float = float("inf")


class Jobs:
    """Runs analyses, at most ``workers`` at once, and keeps what they found by the file's path, size and change.

    Threads end when there is nothing to do. :meth:`close`, which the end of the process calls too, kills what runs.

    Args:
        analyze: analyses one trace; told here for tests.
        workers: analyses at once.
        clock: seconds.
    """

    def __init__(
        self,
        analyze: Analyze = analyze_elsewhere,
        *,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._analyze = analyze
        self._limit = workers
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._jobs: dict[str, _Job] = {}
        self._threads: set[threading.Thread] = set()
        self._results: Bounded[StoredFile, _Result] = Bounded(KEPT)
        self._closed = False

    def window(self, file: StoredFile, files: Files) -> Window | Working | Failed:
        """What is in a trace file, or how far its analysis is, which begins now if need be. Does not wait.

        A file that changes while it is analysed is analysed again afterwards.
        """
        from lightning_perf.measure.analysis import Window

        with self._lock:
            done = self._results.get(file)
            if done is None or done.until_s < self._clock():
                return self._progress(file, files)
        content = done.content
        return msgspec.json.decode(content, type=Window) if isinstance(content, bytes) else content

    def close(self) -> None:
        """Kill what runs, and forget what waits."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            running, threads = list(self._jobs.values()), list(self._threads)
        for job in running:
            job.kill()
        for thread in threads:
            thread.join(_PATIENCE_S)
        atexit.unregister(self.close)

    def _progress(self, file: StoredFile, files: Files) -> Working:
        job = self._jobs.get(file.path)
        if job is None:
            job = _Job(file, files, self._clock())
            self._begin(job)
        elapsed_s = round(self._clock() - job.begun_s, 3)
        return Working(file=readable(file.name), stage=job.stage, percent=job.percent, elapsed_s=elapsed_s)

    def _begin(self, job: _Job) -> None:
        if self._closed:
            return
        self._jobs[job.file.path] = job
        self._waiting.append(job)
        if len(self._threads) < self._limit:
            if not self._threads:
                atexit.unregister(self.close)
                atexit.register(self.close)
            thread = threading.Thread(target=self._work, name="lightning-perf-tab-job", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads.discard(threading.current_thread())
                    return
                job = self._waiting.popleft()
            result = self._result(job)
            with self._lock:
                if not self._closed:
                    self._results.put(job.file, result)
                self._jobs.pop(job.file.path, None)

    def _result(self, job: _Job) -> _Result:
        def copied(share: float) -> None:
            if self._closed:
                raise _ClosedError
            job.stage, job.percent = "copying", int(share * 100)

        def analyzed(stage: AnalysisStage, percent: int | None) -> None:
            job.stage, job.percent = stage, percent

        def started(kill: Callable[[], None]) -> None:
            job.kill = kill
            if self._closed:
                kill()

        here = ""
        try:
            with job.files.local(job.file, copied) as path:
                here = str(path)
                analyzed("reading", 0)
                window = self._analyze(path, on_progress=analyzed, on_start=started)
            return _Result(msgspec.json.encode(msgspec.structs.replace(window, trace=readable(job.file.name))))
        except PerfError as error:
            return _Result(Failed(message=readable(str(error).replace(here, job.file.path))))
        except OSError as error:
            return _Result(Failed(message=readable(str(error))), self._clock() + RETRY_S)
        except Exception as error:  # noqa: BLE001 - the page would wait for ever
            said = f"{job.file.path}: could not be analysed ({type(error).__name__}: {error})"
            return _Result(Failed(message=readable(said)))
