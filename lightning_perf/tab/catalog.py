"""The runs found under the log directories, looked for in the background again and again while somebody asks."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightning_perf.tab.files import Files, StoredFile, files_of, is_remote
from lightning_perf.tab.records import facts
from lightning_perf.tab.replies import readable
from lightning_perf.tab.runs import WANTED, RecordFacts, Run, named, run_of

RESCAN_S: Final = 3.0
"""Runs are looked for at most so often, and at most for a tenth of the time."""

_OFTEN: Final = 10
_PUBLISH_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Root:
    """A log directory; ``group`` stands before the names of its runs, where there are several."""

    path: str
    group: str | None = None

    @property
    def base(self) -> str:
        """What a run in the directory itself is called."""
        parts = [part for part in re.split(r"[/\\]" if os.sep == "\\" else "/", self.path) if part]
        if parts[-1:] == ["perf"] and len(parts) > 1:
            parts.pop()
        return parts[-1] if parts else self.path


def roots_of(logdir: str | None, spec: str | None) -> list[Root]:
    """The log directories that TensorBoard was started with: ``--logdir``, or ``--logdir_spec`` (``name:path,...``)."""
    if logdir:
        return [Root(_path(logdir))]
    roots: list[Root] = []
    for entry in filter(None, (spec or "").split(",")):
        group, colon, path = entry.partition(":")
        if not colon or entry.startswith("/") or is_remote(entry) or os.path.splitdrive(entry)[0]:
            group, path = "", entry
        root = Root(_path(path))
        taken = {one.group for one in roots}
        name = group or root.base
        unique = next(one for one in (name, *(f"{name} ({number})" for number in range(2, 1000))) if one not in taken)
        roots.append(Root(root.path, unique))
    return roots


def _path(given: str) -> str:
    return given if is_remote(given) else str(Path(given).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class Found:
    """A run and how to reach its files."""

    run: Run
    files: Files


@dataclass(frozen=True, slots=True)
class Listing:
    """What is known now. ``scanning`` is true until all log directories were seen once."""

    scanning: bool
    problem: str | None
    runs: tuple[Run, ...]


class Catalog:
    """Knows the runs. Nothing here waits for a file system but a thread of its own, and :meth:`wait` if asked to.

    Args:
        roots: the log directories.
        files: how to reach the files below one.
        rescan_s: seconds from the end of one search to the next at least.
        clock: seconds.
    """

    def __init__(
        self,
        roots: list[Root],
        files: Callable[[str], Files] = files_of,
        *,
        rescan_s: float = RESCAN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roots = [(root, files(root.path)) for root in roots]
        self._rescan_s = rescan_s
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._next_s = float("-inf")
        self._seen_all, self._looked, self._any = threading.Event(), threading.Event(), threading.Event()
        self._runs: dict[str, Found] = {}
        self._problem: str | None = None
        self._facts: dict[StoredFile, RecordFacts] = {}

    def listing(self) -> Listing:
        """What is known now; looks for more in the background if it is time."""
        self.refresh()
        with self._lock:
            runs = tuple(found.run for found in self._runs.values())
            return Listing(not self._seen_all.is_set(), self._problem, runs)

    def find(self, run: str) -> Found | None:
        """A run by its id."""
        with self._lock:
            return self._runs.get(run)

    def refresh(self, *, now: bool = False) -> None:
        """Begin to look for runs, unless that was done a moment ago or is being done."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if busy or self._closed or not (now or self._clock() >= self._next_s):
                return
            self._thread = threading.Thread(target=self._search, name="lightning-perf-tab-search", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until all log directories were seen once. Returns whether they were."""
        self.refresh()
        return self._seen_all.wait(seconds)

    def found(self) -> bool:
        """Whether a run was ever found."""
        return self._any.is_set()

    def wait_for_one(self, seconds: float) -> None:
        """Wait until a run was found, or all log directories were seen without."""
        self._looked.wait(seconds)

    def close(self) -> None:
        """Stop looking."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join(5)

    def _search(self) -> None:
        begun_s = self._clock()
        try:
            self._look()
        finally:  # whatever happens, nobody waits for ever
            with self._lock:
                self._next_s = self._clock() + max(self._rescan_s, _OFTEN * (self._clock() - begun_s))
            self._seen_all.set()
            self._looked.set()

    def _look(self) -> None:
        facts_now: dict[StoredFile, RecordFacts] = {}
        runs: dict[str, Found] = {}
        problems: list[str] = []
        for root, files in self._roots:

            def read(file: StoredFile, files: Files = files) -> RecordFacts:
                facts_now[file] = self._facts.get(file) or facts(file, files)
                return facts_now[file]

            own: list[tuple[Run, tuple[str, ...]]] = []
            published_s = self._clock()
            try:
                for folder in files.walk(root.path, WANTED):
                    if self._closed:
                        return
                    run = run_of(folder, read)
                    if run is None:
                        continue
                    own.append((run, folder.parts))
                    if not self._seen_all.is_set() and (len(own) == 1 or self._clock() - published_s > _PUBLISH_S):
                        published_s = self._clock()
                        self._publish(runs | _by_id(own, root, files), None)
            except OSError as error:
                problems.append(readable(str(error)))
            runs |= _by_id(own, root, files)
        self._facts = facts_now
        self._publish(runs, "; ".join(problems) or None)

    def _publish(self, runs: dict[str, Found], problem: str | None) -> None:
        with self._lock:
            self._runs = runs
            self._problem = problem
        if runs:
            self._any.set()
            self._looked.set()


def _by_id(runs: list[tuple[Run, tuple[str, ...]]], root: Root, files: Files) -> dict[str, Found]:
    return {run.id: Found(run, files) for run in named(runs, root.base, root.group)}
