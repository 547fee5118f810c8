"""Why a device was idle: every idle nanosecond gets one cause and one activity of the host.

A gap is ended by an operation. Until that operation was launched the host was late: that part, the head, belongs to
what the host was doing. From then on, in the tail, the launch was on its way or the work waited on the device.
Time that the host would have covered had a blocking call not taken its lead belongs to that call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Int64s, Trace
from lightning_perf.measure.analysis import Gap, IdleShare
from lightning_perf.measure.blocking import Lead, repaid
from lightning_perf.measure.gaps import (
    CODE,
    NEVER,
    Booleans,
    Gaps,
    Operations,
    device_operations,
    find_gaps,
    untraced_graphs,
)
from lightning_perf.measure.host import Host, ThreadId, distinct
from lightning_perf.measure.innermost import running_longest
from lightning_perf.measure.intervals import Intervals, union
from lightning_perf.measure.labels import CAUSE_OF_KIND, REFILLING, Kind
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.steps import HostStep
from lightning_perf.measure.thinning import largest, leading
from lightning_perf.names import CAUSES, Cause

HOST_ACTIVITY: Final = "host"
"""The activity where the trace tells none."""

LARGEST_GAPS: Final = 20
DRAWN_GAPS: Final = 800


CODE_OF_KIND: Final = np.array(
    [CODE[CAUSE_OF_KIND.get(kind, "unknown")] for kind in Kind],
    dtype=np.int64,
)
"""Codes of causes by kind of host work."""
_REFILLING: Final = np.array([kind in REFILLING for kind in Kind], dtype=np.bool_)
_INTERRUPTING: Final = np.array(
    [kind in (Kind.ALLOCATION, Kind.MODULE_LOAD, Kind.PROFILER, Kind.GC) for kind in Kind],
    dtype=np.bool_,
)
"""Kinds that keep their name inside a call that launches."""


@dataclass(frozen=True, slots=True)
class DrawnGaps:
    """The :data:`DRAWN_GAPS` longest gaps by start; cause and activity are those with the largest share of each.

    ``cause`` is the code of one of :data:`~lightning_perf.names.CAUSES`, ``activity`` a number of the host's.
    """

    start_ns: Int64s
    end_ns: Int64s
    cause: Int64s
    activity: Int64s


@dataclass(frozen=True, slots=True)
class IdleTime:
    """A device's idle time by cause, by cause and activity, and its longest gaps: few in full, more to be drawn."""

    causes_ns: dict[Cause, int]
    shares: list[IdleShare]
    largest_gaps: list[Gap]
    drawn: DrawnGaps


@dataclass(frozen=True, slots=True)
class Parts:
    """Pieces of gaps with one cause each. ``refilling`` is time for which a blocking call may have to answer."""

    gap: Int64s
    start_ns: Int64s
    length_ns: Int64s
    cause: Int64s
    activity: Int64s
    refilling: Booleans

    def of(self, gap: int) -> Parts:
        """The pieces of one gap."""
        mine = self.gap == gap
        return Parts(
            self.gap[mine],
            self.start_ns[mine],
            self.length_ns[mine],
            self.cause[mine],
            self.activity[mine],
            self.refilling[mine],
        )


def idle_time(
    trace: Trace,
    rows: Int64s,
    busy: Intervals,
    idle: Intervals,
    window_ns: int,
    host: Host,
    steps: Sequence[HostStep],
    launches: Int64s,
) -> IdleTime:
    """Explain a device's idle time.

    Args:
        trace: the trace.
        rows: the device's operations.
        busy: when any of them ran.
        idle: the gaps to explain, by start.
        window_ns: start of the window: blocking calls before it are no reason for what happens in it.
        host: the host.
        steps: the trace's steps.
        launches: the trace's :func:`launch_rows`.
    """
    if len(idle) == 0:
        none = idle.starts
        return IdleTime(causes_ns={}, shares=[], largest_gaps=[], drawn=DrawnGaps(none, none, none, none))
    operations = device_operations(trace, rows, launches)
    graphs = untraced_graphs(trace, launches)
    found = find_gaps(trace, operations, busy, idle, graphs)
    parts = _parts(trace, host, operations, found, steps)
    parts = _untraced(parts, found, operations, graphs)
    parts = _paid_by_blocking_calls(parts, trace, host, busy, operations, window_ns)
    names = (HOST_ACTIVITY, *host.activities[1:])
    totals = _by_cause_and_activity(parts)
    causes: defaultdict[int, int] = defaultdict(int)
    for (cause, _), spent in totals.items():
        causes[cause] += spent
    return IdleTime(
        causes_ns={CAUSES[code]: spent for code, spent in sorted(causes.items(), key=lambda item: (-item[1], item[0]))},
        shares=_shares(totals, names),
        largest_gaps=_largest_gaps(host, operations, found, parts, steps, names),
        drawn=_drawn_gaps(found, parts, names),
    )


def _parts(trace: Trace, host: Host, operations: Operations, found: Gaps, steps: Sequence[HostStep]) -> Parts:
    """Cut the gaps where the host's doing changes, one launching thread after the other."""
    call = np.where(found.operation >= 0, operations.call[found.operation], NO_LAUNCH)
    known = call != NO_LAUNCH
    thread = np.where(known, trace.process[call].astype(np.int64) * len(trace.threads) + trace.thread[call], -1)
    pieces = []
    for one in np.unique(thread).tolist():
        launching = ThreadId(*divmod(one, len(trace.threads))) if one >= 0 else None
        pieces.append(_parts_of_thread(host, operations, found, np.flatnonzero(thread == one), launching, steps))
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    order = np.argsort(columns[1], kind="stable")
    gap, start, length, cause, activity, refilling = (column[order] for column in columns)
    return Parts(gap, start, length, cause, activity, refilling.astype(np.bool_))


def _parts_of_thread(
    host: Host,
    operations: Operations,
    found: Gaps,
    which: Int64s,
    thread: ThreadId | None,
    steps: Sequence[HostStep],
) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int64s]:
    """The parts of gaps whose end one thread launched: gap, start, length, cause, activity, refilling."""
    line = host.together(thread)
    edges = union(*_step_edges(steps))
    released = host.trace.end_ns[host.blocking.rows]  # whoever waited, from then on there is something to refill
    changes = distinct(line.times, edges.starts, edges.ends, released)
    start, end, head_end, tail = found.start_ns[which], found.end_ns[which], found.head_end_ns[which], found.tail[which]
    swept = np.where(tail == CODE["launch"], end, head_end)
    first = np.searchsorted(changes, start, side="right")
    count = np.maximum(np.searchsorted(changes, swept, side="left") - first, 0)
    inner = np.repeat(first - np.concatenate(([0], np.cumsum(count)[:-1])), count) + np.arange(count.sum())
    split = (head_end > start) & (head_end < end)
    at = np.concatenate((start, changes[inner], head_end[split]))
    owner = np.concatenate((np.arange(which.size), np.repeat(np.arange(which.size), count), np.flatnonzero(split)))
    order = np.argsort(at, kind="stable")
    at, owner = at[order], owner[order]
    until = np.where(np.concatenate((owner[1:] == owner[:-1], [False])), np.concatenate((at[1:], [0])), end[owner])
    place = line.at(at)
    kind = line.kind[place].astype(np.int64)
    in_tail = at >= head_end[owner]
    outside = (kind == Kind.NOTHING) & ~_within(edges, at) if len(edges) else np.zeros(at.size, dtype=np.bool_)
    cause = CODE_OF_KIND[np.where((kind == Kind.NOTHING) & (host.rows.size > 0), int(Kind.PYTHON), kind)]
    cause = np.where(outside, CODE["between_steps"], cause)
    refilling = _REFILLING[kind]
    last = found.operation[which][owner] < 0
    cause = np.where(last & refilling, CODE["step_edge"], cause)
    in_call = at < operations.returned_ns[found.operation[which]][owner]
    interrupted = in_call & (tail[owner] == CODE["launch"]) & _INTERRUPTING[kind]
    kept = in_tail & ~interrupted
    cause = np.where(kept, tail[owner], cause)
    refilling = np.where(kept, tail[owner] == CODE["launch"], refilling & ~last)
    operation = found.operation[which]
    launched = line.activity[line.at(operations.call_ns[operation])]  # of the call; none where there is none
    activity = np.where(kept, launched[owner], line.activity[place]).astype(np.int64)
    return which[owner], at, until - at, cause, activity, refilling.astype(np.int64)


def _step_edges(steps: Sequence[HostStep]) -> tuple[Int64s, Int64s]:
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    return starts, np.array([step.end_ns for step in steps], dtype=np.int64)


def _within(one: Intervals, times: Int64s) -> Booleans:
    inside: Booleans = np.searchsorted(one.starts, times, side="right") > np.searchsorted(one.ends, times, side="right")
    return inside


def _untraced(parts: Parts, found: Gaps, operations: Operations, graphs: Int64s) -> Parts:
    """Waiting in a blocking call for a graph that the trace does not show is no waiting for nothing."""
    if graphs.size == 0:
        return parts
    graph = np.concatenate(([NEVER], graphs))[np.searchsorted(graphs, parts.start_ns, side="right")]
    calls = np.concatenate(([NEVER], np.maximum.accumulate(operations.call_ns)))
    before = calls[np.searchsorted(operations.start_ns, found.start_ns, side="left")][parts.gap]
    hidden = (parts.cause == CODE["sync"]) & (graph > before)
    cause = np.where(hidden, CODE["untraced_device_work"], parts.cause)
    return Parts(parts.gap, parts.start_ns, parts.length_ns, cause, parts.activity, parts.refilling)


def _paid_by_blocking_calls(
    parts: Parts, trace: Trace, host: Host, busy: Intervals, operations: Operations, from_ns: int
) -> Parts:
    """Hand idle time over to the blocking calls that took the host's lead."""
    leads = _leads(trace, host, busy, operations, from_ns)
    which = np.flatnonzero(parts.refilling)
    synchronised, moved = repaid(parts.start_ns[which], parts.length_ns[which], leads)
    own = parts.length_ns.copy()
    own[which] -= synchronised + moved
    again = np.concatenate((np.arange(own.size), which, which))
    length = np.concatenate((own, synchronised, moved))
    cause = np.concatenate(
        (
            parts.cause,
            np.full(which.size, CODE["sync"], dtype=np.int64),
            np.full(which.size, CODE["transfer"], dtype=np.int64),
        )
    )
    kept = length > 0
    again = again[kept]
    return Parts(
        gap=parts.gap[again],
        start_ns=parts.start_ns[again],
        length_ns=length[kept],
        cause=cause[kept],
        activity=parts.activity[again],
        refilling=parts.refilling[again],
    )


def _leads(trace: Trace, host: Host, busy: Intervals, operations: Operations, from_ns: int) -> list[Lead]:
    """The blocking calls of the threads that drive a device, and how long they waited while it was busy.

    While it was idle in the call, that idle time is the call's already.
    """
    rows, transfer = host.blocking.rows, host.blocking.transfer
    pair = trace.process.astype(np.int64) * len(trace.threads) + trace.thread
    driving = pair[operations.call[operations.launched]]
    if host.main is not None:
        driving = np.append(driving, host.main.process * len(trace.threads) + host.main.thread)
    kept = np.isin(pair[rows], driving) & (trace.start_ns[rows] >= from_ns)
    rows, transfer = rows[kept], transfer[kept]
    lost = _busy_before(busy, trace.end_ns[rows]) - _busy_before(busy, trace.start_ns[rows])
    order = np.argsort(trace.end_ns[rows], kind="stable")
    return [
        Lead(end_ns=end, lost_ns=ns, transfer=moved)
        for end, ns, moved in zip(
            trace.end_ns[rows][order].tolist(), lost[order].tolist(), transfer[order].tolist(), strict=True
        )
        if ns > 0
    ]


def _busy_before(busy: Intervals, times: Int64s) -> Int64s:
    if len(busy) == 0:  # all operations took no time at all
        return np.zeros_like(times)
    total = np.concatenate(([0], np.cumsum(busy.lengths)))
    begun = np.searchsorted(busy.starts, times, side="right")
    last = np.maximum(begun - 1, 0)
    running = np.where(begun > 0, np.maximum(busy.ends[last] - times, 0), 0)
    before: Int64s = total[begun] - running
    return before


def _by_cause_and_activity(parts: Parts) -> dict[tuple[int, int], int]:
    pair = parts.activity * len(CAUSES) + parts.cause
    totals = np.zeros(int(pair.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(totals, pair, parts.length_ns)
    return {(code % len(CAUSES), code // len(CAUSES)): int(totals[code]) for code in np.flatnonzero(totals).tolist()}


def _shares(totals: dict[tuple[int, int], int], names: Sequence[str]) -> list[IdleShare]:
    largest = sorted(totals.items(), key=lambda item: (-item[1], CAUSES[item[0][0]], names[item[0][1]]))
    return [
        IdleShare(cause=CAUSES[cause], activity=names[activity], idle_us=spent / 1000)
        for (cause, activity), spent in largest
    ]


def _drawn_gaps(found: Gaps, parts: Parts, names: Sequence[str]) -> DrawnGaps:
    """The longest gaps with their largest shares; of equal shares the one whose names come first, as in the list."""
    longest = largest(found.end_ns - found.start_ns, DRAWN_GAPS)
    place = np.full(found.start_ns.size, -1, dtype=np.int64)
    place[longest] = np.arange(longest.size)
    mine = place[parts.gap] >= 0
    causes, activities = _alphabetical(CAUSES), _alphabetical(names)
    pair = np.argsort(causes)[parts.cause[mine]] * len(names) + np.argsort(activities)[parts.activity[mine]]
    cause, activity = np.divmod(leading(place[parts.gap[mine]], pair, parts.length_ns[mine]), len(names))
    return DrawnGaps(found.start_ns[longest], found.end_ns[longest], causes[cause], activities[activity])


def _alphabetical(names: Sequence[str]) -> Int64s:
    """Numbers of names in the names' order."""
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def _largest_gaps(
    host: Host, operations: Operations, found: Gaps, parts: Parts, steps: Sequence[HostStep], names: Sequence[str]
) -> list[Gap]:
    """The longest gaps, the earlier one first where they are as long."""
    trace = host.trace
    gaps = []
    for gap in np.lexsort((found.start_ns, found.start_ns - found.end_ns))[:LARGEST_GAPS].tolist():
        mine = parts.of(gap)
        shares = _shares(_by_cause_and_activity(mine), names)
        start_ns, end_ns, operation = int(found.start_ns[gap]), int(found.end_ns[gap]), int(found.operation[gap])
        call = int(operations.call[operation]) if operation >= 0 else NO_LAUNCH
        longest = int(mine.start_ns[mine.length_ns.argmax()])
        thread = host.in_charge(host.thread_of(call) if call != NO_LAUNCH else None, longest)
        gaps.append(
            Gap(
                start_us=start_ns / 1000,
                duration_us=(end_ns - start_ns) / 1000,
                step=next((step.number for step in steps if step.start_ns <= start_ns < step.end_ns), None),
                cause=shares[0].cause,
                activity=shares[0].activity,
                host=running_longest(host, thread, start_ns, end_ns),
                ended_by=trace.names[trace.name_id[operations.rows[operation]]] if operation >= 0 else None,
                shares=shares,
            )
        )
    return gaps
