"""What the host was doing at any time: piecewise constant timelines of its threads.

A timeline is made from the few events that mean something, in one pass over their nesting; all others matter only by
their presence, which is a union of intervals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from lightning_perf.decode.trace import Category, Int8s, Int32s, Int64s, Trace
from lightning_perf.measure.blocking import Blocking, blocking_calls
from lightning_perf.measure.closures import Closures, Part, closures
from lightning_perf.measure.intervals import Intervals, union
from lightning_perf.measure.labels import Kind, inherited, is_fit, meaning
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.steps import HostStep

HOST: Final = (Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, Category.DRIVER, Category.PYTHON)
"""Categories of events that a thread of the host runs."""

_CALLING_ORDER: Final = np.zeros(len(Category), dtype=np.int8)
_CALLING_ORDER[[Category.PYTHON, Category.CPU_OP, Category.RUNTIME, Category.DRIVER]] = (1, 2, 3, 4)
"""Annotations enclose frames, frames operators, operators calls."""
_ENCLOSING_ORDER: Final = np.full(len(Kind), 6, dtype=np.int8)
_ENCLOSING_ORDER[[Kind.VALIDATION, Kind.CALLBACKS, Kind.OPTIMIZER, Kind.BODY, Kind.AUTOGRAD]] = range(5)
_ENCLOSING_ORDER[[Kind.COMMUNICATION, Kind.GC]] = (7, 8)
"""So do ranges of the loop, where they take the same time to the nanosecond."""

NO_ACTIVITY: Final = 0
_ACTIVITIES: Final = ("", "transfer", "optimizer", "forward", "backward")
"""Activities whose numbers are the same for all traces."""
_TRANSFER, _BACKWARD = _ACTIVITIES.index("transfer"), _ACTIVITIES.index("backward")
_NAMES: Final[dict[Part, str]] = {Part.UPDATE: "optimizer", Part.FORWARD: "forward", Part.BACKWARD: "backward"}
_ACTIVITY_OF_PART: Final = np.array([_ACTIVITIES.index(_NAMES[part]) for part in Part], dtype=np.int32)
_BEGINNING: Final = np.iinfo(np.int64).min
_INHERITED: Final = inherited()
_WEAK: Final = (Kind.PYTHON, Kind.TRANSFER)
"""Own kinds whose activity counts only where the events around tell none."""


class ThreadId(NamedTuple):
    """A thread as the trace numbers it."""

    process: int
    thread: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Kind and activity from each time to the next; the first time lies before everything."""

    times: Int64s
    kind: Int8s
    activity: Int32s

    def at(self, times: Int64s) -> Int64s:
        """Index into the columns for any times."""
        place: Int64s = np.searchsorted(self.times, times, side="right").astype(np.int64) - 1
        return place


@dataclass(frozen=True, slots=True)
class Host:
    """The host's events, what their names mean, and the timelines made so far.

    ``rows`` are the trace's rows of host events; ``own`` and ``own_activity`` have one entry per row of the trace.
    ``activities`` names activities by number; number 0 is none. ``main`` is the thread that runs the loop.
    """

    trace: Trace
    rows: Int64s
    own: Int8s
    own_activity: Int32s
    activities: tuple[str, ...]
    main: ThreadId | None
    blocking: Blocking
    overhead: Timeline
    _timelines: dict[ThreadId, Timeline] = field(default_factory=dict)
    _together: dict[ThreadId | None, Timeline] = field(default_factory=dict)
    _rows: dict[ThreadId, Int64s] = field(default_factory=dict)

    def thread_rows(self, thread: ThreadId) -> Int64s:
        """Rows of one thread's events, by start."""
        if thread not in self._rows:
            process, number = self.trace.process[self.rows], self.trace.thread[self.rows]
            self._rows[thread] = self.rows[(number == thread.thread) & (process == thread.process)]
        return self._rows[thread]

    def timeline(self, thread: ThreadId) -> Timeline:
        """What a thread was doing."""
        if thread not in self._timelines:
            self._timelines[thread] = _timeline(self, thread)
        return self._timelines[thread]

    def thread_of(self, row: int) -> ThreadId:
        """The thread of one event."""
        return ThreadId(int(self.trace.process[row]), int(self.trace.thread[row]))

    def in_charge(self, thread: ThreadId | None, time_ns: int) -> ThreadId | None:
        """Which of a launching thread and the main thread said more at a time, the launching one on ties."""
        at = np.array([time_ns])
        said = {
            one: int(line.kind[line.at(at)[0]])
            for one in (thread, self.main)
            if one is not None and (line := self.timeline(one))
        }
        return max(said, key=lambda one: said[one], default=None)

    def together(self, thread: ThreadId | None) -> Timeline:
        """:meth:`_combined` of the thread that launches and the main thread."""
        if thread not in self._together:
            self._together[thread] = self._combined(thread)
        return self._together[thread]

    def _combined(self, thread: ThreadId | None) -> Timeline:
        """What holds up the work that a thread launches: its own doing, or the main thread's.

        What says more wins (the order of :class:`Kind`), the launching thread on ties. The profiler's overhead goes
        before both. Where the winner tells no activity the other's counts.
        """
        threads = [one for one in dict.fromkeys((thread, self.main)) if one is not None]
        lines = [self.timeline(one) for one in threads]
        times = distinct(self.overhead.times, *(line.times for line in lines))
        kind = np.zeros(times.size, dtype=np.int8)
        activity = np.zeros(times.size, dtype=np.int32)
        for line in lines:
            place = line.at(times)
            here = line.kind[place]
            # A step of the optimizer that runs the whole batch waits here for autograd's thread.
            here = np.where(
                (here == Kind.OPTIMIZER) & (kind > Kind.NOTHING) & (activity == _BACKWARD), Kind.PYTHON, here
            )
            wins = here > kind
            told = line.activity[place] != NO_ACTIVITY
            activity = np.where(told & (wins | (activity == NO_ACTIVITY)), line.activity[place], activity)
            kind = np.where(wins, here, kind).astype(np.int8)
        overhead = self.overhead.kind[self.overhead.at(times)]
        return _shortened(times, np.where(overhead != Kind.NOTHING, overhead, kind), activity)


def distinct(*columns: Int64s) -> Int64s:
    """All times of some columns, ascending, each once; numpy's unique hashes, which is slower here."""
    times = np.sort(np.concatenate(columns), kind="stable")  # which merges what is sorted already
    found: Int64s = times[np.concatenate(([True], times[1:] > times[:-1]))] if times.size else times
    return found


def _shortened(times: Int64s, kind: Int8s, activity: Int32s) -> Timeline:
    """A timeline without the times at which nothing changes."""
    changes = np.concatenate(([True], (kind[1:] != kind[:-1]) | (activity[1:] != activity[:-1])))
    return Timeline(times[changes], kind[changes], activity[changes])


def read_host(trace: Trace, launches: Int64s, steps: Iterable[HostStep]) -> Host:
    """Find what every event of the host means, and which thread runs the loop.

    Args:
        trace: the trace.
        launches: its :func:`launch_rows`.
        steps: its steps.
    """
    wanted = np.zeros(len(Category), dtype=np.bool_)
    wanted[list(HOST)] = True
    rows = np.flatnonzero(wanted[trace.category])
    overhead = np.flatnonzero(trace.category == Category.OVERHEAD)
    own, own_activity, activities = _meanings(trace, (*HOST, Category.OVERHEAD))
    fetches = own == Kind.VALIDATION_DATA
    if fetches.any() and not is_fit(trace.names):
        own[fetches] = Kind.DATA
    blocking = blocking_calls(trace, launches, rows[own[rows] == Kind.SYNC])
    own[blocking.rows] = np.where(blocking.transfer, Kind.TRANSFER, Kind.SYNC)
    own_activity[blocking.rows[blocking.transfer]] = _TRANSFER
    own[blocking.profilers] = Kind.PROFILER
    longest = max(steps, key=lambda step: step.end_ns - step.start_ns, default=None)
    return Host(
        trace=trace,
        rows=rows,
        own=own,
        own_activity=own_activity,
        activities=activities,
        main=ThreadId(longest.process, longest.thread) if longest else _main_thread(trace, rows, launches),
        blocking=blocking,
        overhead=_nested(trace.start_ns[overhead], trace.end_ns[overhead], own[overhead], own_activity[overhead]),
    )


def _meanings(trace: Trace, categories: Iterable[Category]) -> tuple[Int8s, Int32s, tuple[str, ...]]:
    """Own kind and activity of every row: each name is read once per category that it occurs in."""
    shape = (len(Category), len(trace.names))
    occurs = np.zeros(shape, dtype=np.bool_)
    occurs[trace.category, trace.name_id] = True
    kinds = np.zeros(shape, dtype=np.int8)
    numbers = np.zeros(shape, dtype=np.int32)
    activities = {activity: number for number, activity in enumerate(_ACTIVITIES)}
    for category in categories:
        for name in np.flatnonzero(occurs[category]).tolist():
            kind, activity = meaning(category, trace.names[name])
            kinds[category, name] = kind
            numbers[category, name] = activities.setdefault(activity, len(activities))
    return kinds[trace.category, trace.name_id], numbers[trace.category, trace.name_id], tuple(activities)


def _main_thread(trace: Trace, rows: Int64s, launches: Int64s) -> ThreadId | None:
    """The thread that runs the loop of a trace without steps.

    On Linux it carries the process's number. Else it is the thread that launches most, or just the busiest.
    """
    calls = launches[launches != NO_LAUNCH]
    for chosen in (calls, rows):
        pairs = trace.process[chosen].astype(np.int64) * len(trace.threads) + trace.thread[chosen]
        found, counts = np.unique(pairs, return_counts=True)
        threads = [
            ThreadId(*divmod(pair, len(trace.threads))) for pair in found[np.argsort(-counts, kind="stable")].tolist()
        ]
        named = [one for one in threads if trace.processes[one.process] == trace.threads[one.thread]]
        if threads:
            return (named or threads)[0]
    return None


def _timeline(host: Host, thread: ThreadId) -> Timeline:
    """A thread's kinds and activities. Without other words, a thread of autograd's is in the backward pass."""
    trace, rows = host.trace, host.thread_rows(thread)
    own, activity = host.own[rows], host.own_activity[rows]
    autograd = own == Kind.AUTOGRAD
    of_autograd = thread != host.main and bool(autograd.any())
    if of_autograd:  # its operators say nothing that is not known already
        own = np.where(autograd, np.int8(Kind.OPERATOR), own)
        activity = np.where(autograd, np.int32(NO_ACTIVITY), activity)
    outside = _BACKWARD if of_autograd else NO_ACTIVITY
    passes = closures(trace, host.own, rows, host.rows)
    if passes is not None:
        activity[np.isin(rows, passes.rows)] = len(host.activities)  # until the part is known
    telling = (own > Kind.LAUNCH) | (activity != NO_ACTIVITY)
    words = _nested(*_outermost_first(trace, rows[telling], own[telling], activity[telling]), outside)
    if passes is not None:
        words = _in_parts(words, passes, len(host.activities))
    plain = [_covered(trace, rows[own == kind]) for kind in (Kind.PYTHON, Kind.OPERATOR, Kind.LAUNCH)]
    times = distinct(words.times, *(edge for one in plain for edge in (one.starts, one.ends)))
    place = words.at(times)
    kind, activity = words.kind[place], words.activity[place]
    for present, one in zip((Kind.PYTHON, Kind.OPERATOR, Kind.LAUNCH), plain, strict=True):
        kind = np.where(_inside(one, times) & (kind < present), np.int8(present), kind)
    activity = np.where(kind == Kind.NOTHING, np.int32(NO_ACTIVITY), activity)
    return _shortened(times, kind, activity)


def _in_parts(words: Timeline, passes: Closures, unknown: int) -> Timeline:
    """A timeline with what an optimizer's step was doing where it is the innermost: its activity is unknown so far."""
    times = distinct(words.times, passes.times)
    place = words.at(times)
    kind, activity, part = words.kind[place], words.activity[place], passes.at(times)
    within = activity == unknown
    kind = np.where(within & (kind == Kind.OPTIMIZER) & (part != Part.UPDATE), np.int8(Kind.PYTHON), kind)
    return Timeline(times, kind, np.where(within, _ACTIVITY_OF_PART[part], activity))


def _outermost_first(trace: Trace, rows: Int64s, own: Int8s, activity: Int32s) -> tuple[Int64s, Int64s, Int8s, Int32s]:
    """Starts, ends, kinds and activities by start, the longest first; at the same time the one that calls others."""
    rank = _CALLING_ORDER[trace.category[rows]]
    order = np.lexsort((_ENCLOSING_ORDER[own], rank, -trace.duration_ns[rows], trace.start_ns[rows]))
    starts: Int64s = trace.start_ns[rows][order]
    return starts, starts + trace.duration_ns[rows][order], own[order], activity[order]


def _covered(trace: Trace, rows: Int64s) -> Intervals:
    return union(trace.start_ns[rows], trace.end_ns[rows])


def _inside(one: Intervals, times: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    started = np.searchsorted(one.starts, times, side="right")
    return started > np.searchsorted(one.ends, times, side="right")


def _nested(starts: Int64s, ends: Int64s, own: Int8s, own_activity: Int32s, outside: int = NO_ACTIVITY) -> Timeline:
    """The innermost event's inherited kind and activity at any time.

    Events that overlap without nesting do happen (rounded times, Python stacks): of those that run, the one that
    began last is the innermost.

    Args:
        starts: starts of one thread's events, ascending, the longest first on ties.
        ends: their ends.
        own: what their names say.
        own_activity: the activity that their names tell.
        outside: the activity of the thread as such.
    """
    times, kinds, activities = [int(_BEGINNING)], [int(Kind.NOTHING)], [outside]
    table = _INHERITED.tolist()
    running: list[tuple[int, int, int]] = []  # end, kind, activity
    nothing = (0, int(Kind.NOTHING), outside)

    def leave(until: int) -> None:
        while running and running[-1][0] <= until:
            end = running.pop()[0]
            while running and running[-1][0] <= end:
                running.pop()
            _, kind, activity = running[-1] if running else nothing
            times.append(end)
            kinds.append(kind)
            activities.append(activity)

    for start, end, kind, activity in zip(
        starts.tolist(), ends.tolist(), own.tolist(), own_activity.tolist(), strict=True
    ):
        if start == end:
            continue
        leave(start)
        _, around, around_activity = running[-1] if running else nothing
        result = table[around][kind]
        told = _activity(around, around_activity, kind, activity, result)
        running.append((end, result, told))
        times.append(start)
        kinds.append(result)
        activities.append(told)
    leave(np.iinfo(np.int64).max)
    return Timeline(
        np.array(times, dtype=np.int64), np.array(kinds, dtype=np.int8), np.array(activities, dtype=np.int32)
    )


def _activity(around: int, around_activity: int, own: int, own_activity: int, result: int) -> int:
    """Activity of an event: its own, unless it keeps the kind of the event around it or its name says little."""
    if own_activity == NO_ACTIVITY or (around_activity != NO_ACTIVITY and own in _WEAK):
        return around_activity
    if result != own and result == around and result > Kind.LAUNCH:
        return around_activity
    return own_activity
