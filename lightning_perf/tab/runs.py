"""Runs under a log directory: which folders are one, what they hold, and what people call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from typing import Final, get_args

from lightning_perf.names import Stage
from lightning_perf.tab.files import Folder, StoredFile
from lightning_perf.tab.replies import readable

WANTED: Final = re.compile(
    r".+\.pt\.trace\.json(?:\.gz)?|(?:analysis|run)(?:\.rank\d{1,9})?(?:\.\d+)?\.json", re.DOTALL
)
"""Names of the files that runs are made of; those of a run that was recorded earlier have a number before ``.json``."""

_TRACE: Final = re.compile(r"(?P<worker>.*?)(?:\.(?P<time>\d{10}(?:\d{3}){0,3}))?\.pt\.trace\.json(?:\.gz)?", re.DOTALL)
_RECORD: Final = re.compile(r"(?P<kind>analysis|run)(?:\.rank(?P<rank>\d+))?(?P<earlier>\.\d+)?\.json")
_OUR_WORKER: Final = re.compile(r"rank(\d{1,9})")
_DIGITS: Final = re.compile(r"(\d+)")
_PERF: Final = "perf"
_WORKER_LETTERS: Final = 40
_EPOCH_DIGITS: Final = 10
"""Of seconds since 1970. torch writes milliseconds or nanoseconds."""


@dataclass(frozen=True, slots=True)
class Named:
    """A window that a record names. ``stored`` is its place in the record's windows, None in a ``run.json``."""

    trace: str
    rank: int | None
    steps: tuple[int, int] | None
    stored: int | None = None


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What the list of runs has to know of a record. ``problem`` is why it cannot be read."""

    file: StoredFile
    is_analysis: bool
    rank: int = 0
    created_unix_ns: int = 0
    windows: tuple[Named, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RunWindow:
    """One window of a run: its trace file, the record that names it, or both.

    ``current`` are those of the run's last recording, and all where there is none.
    """

    id: str
    label: str
    trace: StoredFile | None
    record: RecordFacts | None = None
    named: Named | None = None
    current: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """A folder of traces and records. ``records`` are those of the last recording, the lowest rank first."""

    id: str
    name: str
    windows: tuple[RunWindow, ...]
    records: tuple[RecordFacts, ...]

    @property
    def recorded(self) -> bool:
        """Whether ``PerfCallback`` has recorded it."""
        return any(record.is_analysis or record.problem is None for record in self.records)

    @property
    def default(self) -> RunWindow | None:
        """The window to show first: the last one of the lowest rank."""
        readable_records = [record for record in self.records if record.problem is None]
        own = [one for one in self.windows if readable_records and one.record is readable_records[0]]
        others = [one for one in self.windows if one.record is None or one.record.problem is None]
        shown = own or others or self.windows
        return shown[-1] if shown else None


def run_of(folder: Folder, read: Callable[[StoredFile], RecordFacts]) -> Run | None:
    """The run that a folder holds, without a name; None if it holds none.

    Args:
        folder: a folder and its files of the names that are wanted.
        read: reads a record, with the problem where it cannot be read.
    """
    traces = {file.name: file for file in folder.files if _TRACE.fullmatch(file.name)}
    records = [read(file) for file in folder.files if _RECORD.fullmatch(file.name)]
    if not traces and all(facts.problem is not None and not facts.is_analysis for facts in records):
        return None  # nothing, or other people's run.json
    broken = [facts for facts in records if facts.problem is not None]
    current = _current([facts for facts in records if facts.problem is None])
    windows: dict[str, RunWindow] = {}
    for facts in _in_order(records, current):
        for named in facts.windows:
            trace = traces.get(named.trace)
            known = windows.get(named.trace)
            stored_already = known is not None and known.named is not None and known.named.stored is not None
            if not stored_already and (trace is not None or named.stored is not None):
                windows.pop(named.trace, None)  # its place is that of the newest record
                windows[named.trace] = RunWindow(
                    named.trace, _label(named), trace, facts, named, any(facts is one for one in current)
                )
    alone = [name for name in sorted(traces, key=natural) if name not in windows]
    found = chain(
        (RunWindow(one.file.name, f"{one.file.name} cannot be read", None, one, None, not current) for one in broken),
        (RunWindow(name, label_of_file(name), traces[name], current=not current) for name in alone),
        windows.values(),
    )
    return Run("/".join(folder.parts), "", tuple(_with_different_labels(found)), (*current, *broken))


def _current(records: list[RecordFacts]) -> list[RecordFacts]:
    """The newest record of each rank; the analysis, where it is of the same recording."""
    newest: dict[int, RecordFacts] = {}
    for facts in records:
        best = newest.get(facts.rank)
        if best is None or _age(facts) > _age(best):
            newest[facts.rank] = facts
    return [newest[rank] for rank in sorted(newest)]


def _age(facts: RecordFacts) -> tuple[int, bool]:
    return facts.created_unix_ns, facts.is_analysis


def _in_order(records: Iterable[RecordFacts], current: list[RecordFacts]) -> list[RecordFacts]:
    """Older recordings first, then the last one by its ranks."""
    old = [facts for facts in records if not any(facts is one for one in current)]
    return [*sorted(old, key=_age), *current]


def _with_different_labels(windows: Iterable[RunWindow]) -> list[RunWindow]:
    seen: dict[str, int] = {}
    result = []
    for window in windows:
        count = seen[window.label] = seen.get(window.label, 0) + 1
        label = window.label if count == 1 else f"{window.label} ({count})"
        result.append(replace(window, id=readable(window.id), label=readable(label)))
    return result


def named(runs: Sequence[tuple[Run, tuple[str, ...]]], base: str, group: str | None) -> list[Run]:
    """Runs with their names and ids, sorted as people count: ``version_2`` before ``version_10``.

    The name is the path below the log directory without the ``perf`` that ``PerfCallback`` adds, unless another run
    has that name.

    Args:
        runs: of one log directory, each with the parts of its path.
        base: name of the log directory.
        group: what stands before all names and ids, where there are several log directories.
    """
    short = [_short(parts) for _, parts in runs]
    result = []
    for (run, parts), name in zip(runs, short, strict=True):
        parts = parts if short.count(name) > 1 else name  # noqa: PLW2901 - the one that is not taken
        told = "/".join((*((group,) if group else ()), *parts)) or base
        inside = run.id or "."
        result.append(replace(run, id=readable(f"{group}/{inside}" if group else inside), name=readable(told)))
    return sorted(result, key=lambda run: natural(run.name))


def _short(parts: tuple[str, ...]) -> tuple[str, ...]:
    if parts[-1:] == (_PERF,):
        return parts[:-1]
    if parts[-2:-1] == (_PERF,) and parts[-1] in get_args(Stage):
        return (*parts[:-2], parts[-1])
    return parts


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in texts by their value."""
    pieces = _DIGITS.split(text)
    return [(int(piece), piece) if place % 2 else (-1, piece) for place, piece in enumerate(pieces)]


def _label(window: Named) -> str:
    rank = [] if window.rank is None else [f"rank {window.rank}"]
    if window.steps is None:
        return label_of_file(window.trace)
    first, last = window.steps
    return " · ".join([*rank, f"step {first}" if first == last else f"steps {first}-{last}"])


def label_of_file(name: str) -> str:
    """Who wrote a trace and when, as its name tells: ``rank 0 · 2026-12-01 18:04:13``."""
    match = _TRACE.fullmatch(name)
    if match is None:
        return name
    worker, time = match["worker"], match["time"]
    ours = _OUR_WORKER.fullmatch(worker)
    worker = f"rank {ours[1]}" if ours else _shortened(worker)
    if time is None:
        return worker
    seconds = int(time[:_EPOCH_DIGITS])
    return f"{worker} · {datetime.fromtimestamp(seconds, tz=timezone.utc).astimezone():%Y-%m-%d %H:%M:%S}"


def _shortened(text: str) -> str:
    half = _WORKER_LETTERS // 2
    return text if len(text) <= _WORKER_LETTERS else f"{text[:half]}…{text[-half:]}"
