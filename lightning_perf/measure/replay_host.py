"""The host of a window as one clock: how long it takes from each of its anchors to the next, by what it is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Floats, Int64s, Trace
from lightning_perf.measure.host import Host, ThreadId, distinct
from lightning_perf.measure.intervals import union
from lightning_perf.measure.labels import Kind
from lightning_perf.measure.steps import HostStep

Booleans = npt.NDArray[np.bool_]

BETWEEN_STEPS: Final = len(Kind)
"""Row of host time outside any step, in tables by kind."""
_ROWS: Final = len(Kind) + 1

INTERRUPTING: Final = np.array(
    [kind in (Kind.ALLOCATION, Kind.MODULE_LOAD, Kind.PROFILER, Kind.GC) for kind in Kind] + [False], dtype=np.bool_
)
"""Kinds of host time that hold up what a call launches, inside the call."""


@dataclass(frozen=True, slots=True)
class _Line:
    """What holds up the work of one thread, from the window's start on: pieces with one kind and activity each.

    ``places`` are the pieces in which times of interest lie, ``offsets`` how far inside; ``code`` is kind times
    activities plus activity.
    """

    lengths: Floats
    code: Int64s
    begins: tuple[Int64s, Floats]
    ends: tuple[Int64s, Floats]
    calls: tuple[Int64s, Floats]
    returns: tuple[Int64s, Floats]
    anchors: Int64s
    launches: Int64s


@dataclass(frozen=True, slots=True)
class Anchors:
    """Moments of the host in time order that other things depend on; the first is the start of the window.

    ``thread`` numbers threads as ``process * len(trace.threads) + thread``; -1 is the one that runs the loop.
    """

    time_ns: Int64s
    thread: Int64s


@dataclass(frozen=True, slots=True)
class HostTime:
    """The host time of a window. ``first_ns`` is where it begins, ``activities`` the number of activities.

    Tables of factors have a row per kind and one more, and a column per activity.
    """

    first_ns: int
    activities: int
    lines: tuple[_Line, ...]
    anchors: int
    launches: int

    def unchanged(self) -> Floats:
        """A table of factors, by kind and activity, that changes nothing."""
        return np.ones((_ROWS, self.activities))

    def passed(self, factors: Floats) -> Floats:
        """Host time from the anchor before each anchor to it, each piece times its factor; nanoseconds."""
        passed = np.zeros(self.anchors)
        for line in self.lines:
            weights = factors.reshape(-1)[line.code]
            passed[line.anchors] = _spent(line, weights, line.ends) - _spent(line, weights, line.begins)
        return passed

    def interrupted(self, factors: Floats) -> Floats:
        """For each launch the host time in its call, before the work began, in which something else went on."""
        table = np.where(INTERRUPTING[:, None], factors, 0.0)
        held = np.zeros(self.launches)
        for line in self.lines:
            weights = table.reshape(-1)[line.code]
            held[line.launches] = _spent(line, weights, line.returns) - _spent(line, weights, line.calls)
        return held

    def totals(self) -> Floats:
        """Host time by kind and activity, waiting in blocking calls included; nanoseconds."""
        total = np.zeros(_ROWS * self.activities)
        for line in self.lines:
            edges = np.concatenate(([0.0], np.cumsum(line.lengths)))
            begin, end = (edges[place] + offset for place, offset in (line.begins, line.ends))
            covered = np.concatenate(([0.0], np.cumsum(end - begin)))
            times = np.concatenate((begin, end))
            upto = np.interp(edges, *_sorted(times, np.concatenate((covered[:-1], covered[1:])))) if times.size else 0.0
            total += np.bincount(line.code, weights=np.diff(np.broadcast_to(upto, edges.shape)), minlength=total.size)
        return total.reshape(_ROWS, self.activities)

    def doing(self) -> Int64s:
        """Code of what the host does at each launch: kind times ``activities`` plus activity."""
        code = np.zeros(self.launches, dtype=np.int64)
        for line in self.lines:
            code[line.launches] = line.code[line.calls[0]]
        return code


def _sorted(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _spent(line: _Line, weights: Floats, at: tuple[Int64s, Floats]) -> Floats:
    place, offset = at
    before = np.concatenate(([0.0], np.cumsum(line.lengths * weights)))
    spent: Floats = before[place] + offset * weights[place]
    return spent


def read_host_time(
    trace: Trace,
    host: Host,
    steps: Sequence[HostStep],
    anchors: Anchors,
    launched: tuple[Int64s, Int64s, Int64s],
) -> HostTime:
    """Read the clock of a window.

    Args:
        trace: the trace.
        host: its host.
        steps: its steps.
        anchors: the moments that matter, at least one.
        launched: of the operations launched in the window and then of blocking calls, when the call began, when it had
            returned or the operation had begun, and the thread.
    """
    call_ns, until_ns, launching = launched
    start_ns = int(anchors.time_ns[0])
    before = np.concatenate((anchors.time_ns[:1], anchors.time_ns[:-1]))
    lines = []
    for number in np.unique(np.concatenate((anchors.thread, launching))).tolist():
        thread = ThreadId(*divmod(number, len(trace.threads))) if number >= 0 else host.main
        times, code = _pieces(host, steps, thread, start_ns)
        mine, theirs = np.flatnonzero(anchors.thread == number), np.flatnonzero(launching == number)
        lines.append(
            _Line(
                lengths=np.diff(times, append=times[-1:]).astype(np.float64),
                code=code,
                begins=_located(times, before[mine]),
                ends=_located(times, anchors.time_ns[mine]),
                calls=_located(times, call_ns[theirs]),
                returns=_located(times, until_ns[theirs]),
                anchors=mine,
                launches=theirs,
            )
        )
    return HostTime(start_ns, len(host.activities), tuple(lines), int(anchors.time_ns.size), int(call_ns.size))


def _pieces(host: Host, steps: Sequence[HostStep], thread: ThreadId | None, start_ns: int) -> tuple[Int64s, Int64s]:
    """When what holds up a thread's work changes, from the window's start on, and what it changes to."""
    line = host.together(thread)
    inside = union(
        np.array([step.start_ns for step in steps], dtype=np.int64),
        np.array([step.end_ns for step in steps], dtype=np.int64),
    )
    times = distinct(line.times, inside.starts, inside.ends, np.array([start_ns], dtype=np.int64))
    times = times[np.searchsorted(times, start_ns) :]
    place = line.at(times)
    kind = line.kind[place].astype(np.int64)
    if len(inside):
        within = np.searchsorted(inside.starts, times, side="right") > np.searchsorted(inside.ends, times, side="right")
        kind = np.where((kind == Kind.NOTHING) & ~within, BETWEEN_STEPS, kind)
    return times, kind * len(host.activities) + line.activity[place]


def _located(times: Int64s, moments: Int64s) -> tuple[Int64s, Floats]:
    """The piece in which each moment lies, and how far inside."""
    place = np.maximum(np.searchsorted(times, moments, side="right") - 1, 0)
    return place, np.maximum(moments - times[place], 0).astype(np.float64)
