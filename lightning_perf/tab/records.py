"""Records under a log directory: what the list of runs needs of them, and all of it for a page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, TypeVar

from lightning_perf.errors import RecordError
from lightning_perf.runinfo import Record, RunInfo, read_run
from lightning_perf.tab.bounded import Bounded
from lightning_perf.tab.files import Files, StoredFile
from lightning_perf.tab.runs import Named, RecordFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_perf.measure.analysis import Analysis, Window

_KEPT: Final = 16
_RANK: Final = re.compile(r"\.rank(\d+)\.")

AnyRecord = TypeVar("AnyRecord", bound=Record)


class Records:
    """Reads records, and keeps the latest ones. A file that has changed is read again."""

    def __init__(self) -> None:
        self._analyses: Bounded[StoredFile, Analysis] = Bounded(_KEPT)

    def analysis(self, file: StoredFile, files: Files) -> Analysis:
        """A run's analysis, its windows named by their traces' names alone.

        Raises:
            RecordError: it cannot be read.
        """
        import msgspec

        from lightning_perf.measure.analysis import read_analysis

        known = self._analyses.get(file)
        if known is not None:
            return known
        read = _read(file, files, read_analysis)
        windows = [msgspec.structs.replace(window, trace=trace_name(window.trace)) for window in read.windows]
        read = msgspec.structs.replace(read, windows=windows)
        self._analyses.put(file, read)
        return read

    def run(self, file: StoredFile, files: Files) -> RunInfo:
        """A run's facts.

        Raises:
            RecordError: they cannot be read.
        """
        return _read(file, files, read_run)


def facts(file: StoredFile, files: Files) -> RecordFacts:
    """What the list of runs has to know of a record."""
    from lightning_perf.measure.analysis import read_analysis

    is_analysis = file.name.startswith("analysis")
    rank = int(found[1]) if (found := _RANK.search(file.name)) else 0
    unread = RecordFacts(file, is_analysis=is_analysis, rank=rank, created_unix_ns=file.mtime_ns)
    try:
        if is_analysis:
            return _with_analysis(unread, _read(file, files, read_analysis))
        run = _read(file, files, read_run)
    except RecordError as error:
        return replace(unread, problem=str(error))
    windows = tuple(_of_run(run).values())
    return replace(unread, rank=run.rank, created_unix_ns=run.created_unix_ns, windows=windows)


def _with_analysis(unread: RecordFacts, analysis: Analysis) -> RecordFacts:
    run = analysis.run
    of_run = _of_run(run) if run is not None else {}
    windows = tuple(_of_window(window, place, of_run) for place, window in enumerate(analysis.windows))
    if run is None:
        return replace(unread, windows=windows)
    return replace(unread, rank=run.rank, created_unix_ns=run.created_unix_ns, windows=windows)


def _of_run(run: RunInfo) -> dict[str, Named]:
    return {one.trace: Named(one.trace, one.rank, (one.first_step, one.last_step)) for one in run.windows}


def _of_window(window: Window, place: int, of_run: dict[str, Named]) -> Named:
    name = trace_name(window.trace)
    known = of_run.get(name)
    steps = (window.steps[0].number, window.steps[-1].number) if window.steps else None
    if known is not None:
        return Named(name, known.rank, known.steps, place)
    return Named(name, window.rank, steps, place)


def trace_name(stored: str) -> str:
    """A trace's own name: records of runs have just that, those of the command line its path."""
    return PurePath(stored).name


def _read(file: StoredFile, files: Files, read: Callable[[Path], AnyRecord]) -> AnyRecord:
    try:
        with files.local(file) as path:
            try:
                return read(path)
            except RecordError as error:
                raise RecordError(str(error).replace(str(path), file.path)) from error
            except RecursionError as error:
                raise RecordError(f"{file.path}: is no record; record the run again") from error
    except OSError as error:
        raise RecordError(str(error)) from error
