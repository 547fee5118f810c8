"""A run and a window by their ids -> what the browser gets. Knows no HTTP."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lightning_perf.errors import PerfError
from lightning_perf.runinfo import Record
from lightning_perf.tab.bounded import Bounded
from lightning_perf.tab.catalog import Catalog, Found
from lightning_perf.tab.files import StoredFile
from lightning_perf.tab.jobs import Jobs
from lightning_perf.tab.records import Records
from lightning_perf.tab.replies import Failed, Ready, RunItem, Runs, WindowItem, Working, readable
from lightning_perf.tab.runs import RecordFacts, Run, RunWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_perf.measure.analysis import Analysis, Window

KEPT_PAGES: Final = 64
"""Encoded pages, of some MB each at most."""

MOST_OF_A_RUN: Final = 256
"""Windows of all ranks that one page shows, the last ones of a run. Less than half of what is kept."""

_PATIENCE_S: Final = 2.0


class UnknownError(Exception):
    """There is no such run, window or file. The message is one line, and holds nothing that a client sent."""


class Pages(Protocol):
    """Makes pages of analyses. What it returns is sent as JSON."""

    def page(self, analysis: Analysis, window: int) -> Record:
        """A run with one of its windows, or -1 where it has none."""

    def ranks(self, analysis: Analysis) -> Record:
        """All windows of a run side by side."""

    def compare(self, base: Analysis, candidate: Analysis) -> Record:
        """Two runs, each with the window to compare."""


class ReportPages:
    """The pages of ``report``, which is imported when the first one is made."""

    def page(self, analysis: Analysis, window: int) -> Record:
        """As :class:`Pages` says."""
        from lightning_perf.report.page import page

        return page(analysis, window)

    def ranks(self, analysis: Analysis) -> Record:
        """As :class:`Pages` says."""
        from lightning_perf.report.page import ranks_page

        return ranks_page(analysis)

    def compare(self, base: Analysis, candidate: Analysis) -> Record:
        """As :class:`Pages` says."""
        from lightning_perf.report.comparison_view import compare_page

        return compare_page(base, candidate)


@dataclass(frozen=True, slots=True)
class _Choice:
    """One window of a run, or a run without one, with the files as they are now."""

    found: Found
    window: RunWindow | None
    facts: RecordFacts | None
    record: StoredFile | None
    trace: StoredFile | None

    @property
    def key(self) -> Hashable:
        """Changes with everything that the page is made of."""
        return (self.record, self.trace, self.window.id if self.window is not None else None)


@dataclass(frozen=True, slots=True)
class _Shown:
    """An analysis and the place of the window that was asked for."""

    analysis: Analysis
    place: int


class Service:
    """Answers what the tab asks.

    Args:
        logdir: what TensorBoard was started with, for people.
        catalog: knows the runs.
        jobs: analyses traces.
        pages: makes the pages.
    """

    def __init__(self, logdir: str, catalog: Catalog, jobs: Jobs, pages: Pages) -> None:
        self._logdir = logdir
        self._catalog = catalog
        self._jobs = jobs
        self._pages = pages
        self._records = Records()
        self._made: Bounded[Hashable, bytes] = Bounded(KEPT_PAGES)
        self._making = threading.Lock()

    def runs(self) -> Runs:
        """All runs found so far. Looks for more in the background."""
        listing = self._catalog.listing()
        return Runs(
            logdir=readable(self._logdir),
            scanning=listing.scanning,
            problem=listing.problem,
            runs=[_item(run) for run in listing.runs],
        )

    def page(self, run: str, window: str | None) -> bytes:
        """A run with one of its windows, the last one if None, as JSON of a Ready, Working or Failed.

        Raises:
            UnknownError: there is no such run or window.
        """
        choice = self._choose(run, window)

        def make() -> Record | Working | Failed:
            shown = self._shown(choice)
            return self._pages.page(shown.analysis, shown.place) if isinstance(shown, _Shown) else shown

        return self._answer(("page", choice.key), make, choice.window.id if choice.window is not None else None)

    def ranks(self, run: str) -> bytes:
        """All windows of a run's last recording, in the same three states.

        Raises:
            UnknownError: there is no such run.
        """
        found = self._find(run)
        windows = [one for one in found.run.windows if one.current and (one.record is None or not one.record.problem)]
        choices = [self._with_files(found, one) for one in windows[-MOST_OF_A_RUN:]]
        return self._answer(("ranks", *(choice.key for choice in choices)), partial(self._all_ranks, choices), None)

    def compare(self, base: str, base_window: str | None, candidate: str, candidate_window: str | None) -> bytes:
        """Two runs, each with one of its windows, in the same three states.

        Raises:
            UnknownError: there is no such run or window.
        """
        choices = self._choose(base, base_window), self._choose(candidate, candidate_window)

        def make() -> Record | Working | Failed:
            sides: list[Analysis] = []
            for shown in [self._shown(choice) for choice in choices]:  # both begin
                if not isinstance(shown, _Shown):
                    return shown
                windows = shown.analysis.windows[shown.place :][:1] if shown.place >= 0 else []
                sides.append(msgspec.structs.replace(shown.analysis, windows=windows))
            return self._pages.compare(*sides)

        return self._answer(("compare", *(choice.key for choice in choices)), make, None)

    def trace(self, run: str, window: str | None) -> tuple[Found, StoredFile]:
        """A window's trace file, and how to reach it.

        Raises:
            UnknownError: there is no such run or window, or its trace file is not there.
        """
        choice = self._choose(run, window)
        if choice.trace is None:
            raise UnknownError("the trace file of this window is not there any more")
        return choice.found, choice.trace

    def close(self) -> None:
        """End what runs in the background."""
        self._jobs.close()
        self._catalog.close()

    def _answer(self, key: Hashable, make: Callable[[], Record | Working | Failed], window: str | None) -> bytes:
        made = self._made.get(key)
        if made is not None:
            return made
        with self._making:  # the same page for two clients is made once
            made = self._made.get(key)
            if made is not None:
                return made
            try:
                page = make()
            except PerfError as error:
                page = Failed(message=readable(str(error)))
            if isinstance(page, (Working, Failed)):
                return msgspec.json.encode(page)
            made = msgspec.json.encode(Ready(window=window, page=msgspec.Raw(msgspec.json.encode(page))))
            self._made.put(key, made)
            return made

    def _find(self, run: str) -> Found:
        found = self._catalog.find(run)
        if found is None and self._catalog.wait(_PATIENCE_S):  # a page that was open before the server was
            found = self._catalog.find(run)
        if found is None:
            raise UnknownError("there is no such run; it may have been deleted or renamed")
        return found

    def _choose(self, run: str, window: str | None) -> _Choice:
        found = self._find(run)
        if not window:
            return self._with_files(found, found.run.default)
        chosen = next((one for one in found.run.windows if one.id == window), None)
        if chosen is None:
            raise UnknownError("this run has no such window; its trace may have been deleted or renamed")
        return self._with_files(found, chosen)

    def _with_files(self, found: Found, window: RunWindow | None) -> _Choice:
        def now(file: StoredFile | None) -> StoredFile | None:
            return found.files.now(file) if file is not None else None

        facts = window.record if window is not None else next(iter(found.run.records), None)
        record = facts.file if facts is not None else None
        return _Choice(found, window, facts, now(record), now(window.trace if window is not None else None))

    def _shown(self, choice: _Choice) -> _Shown | Working | Failed:
        """The analysis with the chosen window: as it is stored, or else of the trace.

        Raises:
            RecordError: the run's record cannot be read.
        """
        facts, record = choice.facts, choice.record
        if facts is None or record is None:
            return self._of_trace(choice, None)
        if not facts.is_analysis:
            return self._of_trace(choice, record)
        stored = self._records.analysis(record, choice.found.files)
        if choice.window is None or choice.window.named is None:
            return _Shown(stored, -1)
        names = [one.trace for one in stored.windows]
        if choice.window.named.trace not in names:
            return self._of_trace(choice, None)  # written anew since it was listed
        place = names.index(choice.window.named.trace)
        if stored.windows[place].timeline is not None or choice.trace is None:
            return _Shown(stored, place)
        fresh = self._jobs.window(choice.trace, choice.found.files)
        if isinstance(fresh, Working):
            return fresh
        if isinstance(fresh, Failed):
            return _Shown(stored, place)
        windows = [*stored.windows[:place], fresh, *stored.windows[place + 1 :]]
        return _Shown(msgspec.structs.replace(stored, windows=windows), place)

    def _of_trace(self, choice: _Choice, record: StoredFile | None) -> _Shown | Working | Failed:
        """The analysis of a trace, with the facts of its run if a ``run.json`` names it."""
        from lightning_perf.measure.analysis import Analysis
        from lightning_perf.measure.loop import measure_loop
        from lightning_perf.pipeline import advised

        windows: list[Window] = []
        if choice.window is not None:
            if choice.trace is None:
                return Failed(message=f"{choice.window.id}: this file is not there any more; reload the list of runs")
            window = self._jobs.window(choice.trace, choice.found.files)
            if isinstance(window, (Working, Failed)):
                return window
            windows = [window]
        run = self._records.run(record, choice.found.files) if record is not None else None
        loop = measure_loop(run.loop) if run is not None and run.loop is not None else None
        return _Shown(advised(Analysis(run=run, loop=loop, windows=windows)), len(windows) - 1)

    def _all_ranks(self, choices: Sequence[_Choice]) -> Record | Working | Failed:
        """All windows that can be had, under the facts of the lowest rank.

        Raises:
            RecordError: the record of a rank cannot be read.
        """
        from lightning_perf.measure.analysis import Analysis

        parts = [self._window_of(choice) for choice in choices]
        working = [part for part in parts if isinstance(part, Working)]
        if working:
            done = len(parts) - len(working)
            busy = next((part for part in working if part.stage != "waiting"), working[0])
            file = f"{busy.file} ({done} of {len(parts)} traces are done)"
            return msgspec.structs.replace(busy, file=file, percent=100 * done // len(parts))
        windows = [part for part in parts if not isinstance(part, (Working, Failed))]
        failed = [part for part in parts if isinstance(part, Failed)]
        if failed and not windows:
            return failed[0]
        first = next((one for one in choices if one.facts is not None and one.record is not None), None)
        analysis = Analysis(run=None, loop=None, windows=windows)
        if first is not None and first.facts is not None and first.record is not None:
            files = first.found.files
            if first.facts.is_analysis:
                of_run = self._records.analysis(first.record, files)
                analysis = msgspec.structs.replace(of_run, windows=windows)
            else:
                analysis = msgspec.structs.replace(analysis, run=self._records.run(first.record, files))
        return self._pages.ranks(analysis)

    def _window_of(self, choice: _Choice) -> Window | Working | Failed:
        named = choice.window.named if choice.window is not None else None
        if named is not None and named.stored is not None and choice.record is not None:
            stored = self._records.analysis(choice.record, choice.found.files)
            window = next((one for one in stored.windows if one.trace == named.trace), None)
            if window is not None:
                return window
        if choice.trace is None:
            return Failed(message="the trace file of this window is not there any more")
        return self._jobs.window(choice.trace, choice.found.files)


def _item(run: Run) -> RunItem:
    windows = [WindowItem(id=one.id, label=one.label, trace=one.trace is not None) for one in run.windows]
    return RunItem(id=run.id, name=run.name, recorded=run.recorded, windows=windows)
