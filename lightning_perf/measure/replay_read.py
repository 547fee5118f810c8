"""From a trace to the model of its window: what each operation and each blocking call waited for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Floats, Int64s, Trace
from lightning_perf.measure.blocking import pageable_to_device
from lightning_perf.measure.collectives import is_collective
from lightning_perf.measure.devices import DeviceWork, window_bounds
from lightning_perf.measure.gaps import SHORTEST_WAIT_NS
from lightning_perf.measure.host import Host
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.nesting import thread_of
from lightning_perf.measure.replay_host import Anchors, Booleans, HostTime, read_host_time
from lightning_perf.measure.replay_model import NONE, Model, Operations, Waits
from lightning_perf.measure.steps import HostStep

_LATENCY_NS: Final = 6_000.0
"""From a launch to the operation's start on an idle stream, where a window shows no other."""
_GAP_NS: Final = 1_000.0
"""Between two queued operations of a stream, where a window shows no other."""
_CALL_NS: Final = 10_000.0
"""Duration of a call that launches, where a window shows no other."""
_SKEW_NS: Final = 10_000
"""How long after a blocking call's return the operation that it waited for may seem to end: clocks differ."""

_WAIT_EVENT: Final = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
_NEVER: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class _Found:
    """The operations that matter to a window, each after all that it can wait for. Integer nanoseconds.

    ``call`` is the row of the call that launched an operation, :data:`NO_LAUNCH` where it was not recorded. Such an
    operation counts as launched when it begins, unless it was queued: then ``called`` is :data:`_NEVER`.
    """

    rows: Int64s
    start: Int64s
    end: Int64s
    call: Int64s
    called: Int64s
    returned: Int64s
    thread: Int64s
    before: Int64s
    history: Booleans

    def free(self) -> Int64s:
        """When the stream of each operation came free for it."""
        return np.where(self.before == NONE, _NEVER, self.end[self.before])


def read_model(
    trace: Trace,
    device: DeviceWork,
    work: Sequence[DeviceWork],
    steps: Sequence[HostStep],
    launches: Int64s,
    host: Host,
) -> Model:
    """Find the costs of a device's window of complete steps and what waits for what; all devices' work is in it.

    Args:
        trace: the trace.
        device: the device whose steps are measured.
        work: all devices.
        steps: the trace's steps.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
        host: its host.
    """
    complete = [step for step in steps if step.complete]
    start_ns, end_ns = window_bounds(trace, device, steps, launches)
    first_ns = complete[0].start_ns if complete else start_ns
    last_ns = complete[-1].end_ns if complete else end_ns
    main = NONE if host.main is None else host.main.process * len(trace.threads) + host.main.thread
    found = _found(trace, np.concatenate([one.rows for one in work]), launches, main, (first_ns, last_ns, end_ns))
    calls = _blocking(trace, host, found, main, first_ns, last_ns)
    begin_ns = np.maximum(trace.start_ns[calls], first_ns)
    step_ends = np.array([step.end_ns for step in complete] or [end_ns], dtype=np.int64)
    anchored = np.flatnonzero(~found.history & (found.called != _NEVER))
    waiting = thread_of(trace, calls)
    anchors, (_, end, begin, launch, ends) = _in_order(
        # At the same time calls return before others begin.
        (np.array([first_ns]), np.array([main])),
        (trace.end_ns[calls], waiting),
        (begin_ns, waiting),
        (found.called[anchored], found.thread[anchored]),
        (step_ends, np.full(step_ends.size, main)),
    )
    time = read_host_time(trace, host, steps, anchors, _calls(found, anchored, begin_ns, waiting))
    mine = trace.device[found.rows] == device.index
    latency, gap = _typical(found)
    step = np.where(mine, _steps(found, complete, end_ns), NONE)
    return Model(
        operations=_operations(trace, host, found, time, (anchored, launch), step, (latency, gap)),
        waits=_waits(trace, host, found, calls, begin_ns, anchors, (begin, end), time.doing()[anchored.size :]),
        host=time,
        first_ns=float(first_ns),
        start_ns=float(start_ns),
        end_ns=float(end_ns),
        ends=ends,
        steps=len(complete),
        latency=latency,
        gap=gap,
        call=_launching(trace, found, calls),
    )


def _found(trace: Trace, rows: Int64s, launches: Int64s, main: int, bounds: tuple[int, int, int]) -> _Found:
    """The operations launched while the host ran the window, and those that were still to end when it began."""
    first_ns, last_ns, end_ns = bounds
    launched = launches[rows] != NO_LAUNCH
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    called = np.where(launched, trace.start_ns[launches[rows]], start)
    kept = (called < np.where(launched, last_ns, end_ns)) & ((called >= first_ns) | (end > first_ns))
    order = np.flatnonzero(kept)
    order = order[np.lexsort((called[order], start[order], np.maximum(start, called)[order]))]
    rows, start, end, called, launched = rows[order], start[order], end[order], called[order], launched[order]
    call = launches[rows]
    before = _before(trace, rows)
    free = np.where(before == NONE, _NEVER, end[before])
    queued = ~launched & (start - free < SHORTEST_WAIT_NS)
    return _Found(
        rows=rows,
        start=start,
        end=end,
        call=call,
        called=np.where(queued, _NEVER, called),
        returned=np.where(launched, trace.end_ns[call], start),
        thread=np.where(launched, thread_of(trace, call), main),
        before=before,
        history=called < first_ns,
    )


def _before(trace: Trace, rows: Int64s) -> Int64s:
    """Of operations in order, the place of the one before each on its stream."""
    order = np.lexsort((np.arange(rows.size), trace.stream[rows], trace.device[rows]))
    same = (np.diff(trace.stream[rows][order]) == 0) & (np.diff(trace.device[rows][order]) == 0)
    before = np.full(rows.size, NONE, dtype=np.int64)
    before[order[1:][same]] = order[:-1][same]
    return before


def _steps(found: _Found, complete: Sequence[HostStep], end_ns: int) -> Int64s:
    """The complete step in which each operation was launched; without steps, whether it ended in the window."""
    if not complete:
        return np.where(found.end <= end_ns, 0, NONE)
    starts = np.array([step.start_ns for step in complete], dtype=np.int64)
    ends = np.array([step.end_ns for step in complete], dtype=np.int64)
    step = np.searchsorted(starts, found.called, side="right") - 1
    inside = (found.call != NO_LAUNCH) & (step >= 0) & (found.called < ends[np.maximum(step, 0)])
    return np.where(inside, step, NONE)


def _in_order(*groups: tuple[Int64s, Int64s]) -> tuple[Anchors, list[Int64s]]:
    """Anchors of several groups in time order, earlier groups first, and where those of each group are."""
    times = np.concatenate([times for times, _ in groups])
    threads = np.concatenate([threads for _, threads in groups])
    order = np.argsort(times, kind="stable")
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    return Anchors(times[order], threads[order]), np.split(place, np.cumsum([one.size for one, _ in groups])[:-1])


def _calls(found: _Found, anchored: Int64s, begin_ns: Int64s, waiting: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Calls that launch and then those that block: their begin, how long they can hold work up, and their thread."""
    until = np.maximum(np.minimum(found.returned, found.start), found.called)
    return (
        np.concatenate((found.called[anchored], begin_ns)),
        np.concatenate((until[anchored], begin_ns)),
        np.concatenate((found.thread[anchored], waiting)),
    )


def _typical(found: _Found) -> tuple[float, float]:
    """Time from a launch to a start on an idle stream, and between two operations that were queued."""
    free = found.free()
    since_call, since_free = found.start - found.called, found.start - free
    launched = found.call != NO_LAUNCH
    late = launched & (found.called >= free)
    latency = float(np.median(np.maximum(since_call[late], 0))) if late.any() else _LATENCY_NS
    queued = launched & (found.called + 2 * latency <= free) & (since_free < SHORTEST_WAIT_NS)
    gap = float(np.median(np.maximum(since_free[queued], 0))) if queued.any() else _GAP_NS
    return latency, gap


def _launching(trace: Trace, found: _Found, blocking: Int64s) -> float:
    """Time in a call that launches and does not block."""
    calls = np.setdiff1d(found.call[found.call != NO_LAUNCH], blocking)
    return float(np.median(trace.duration_ns[calls])) if calls.size else _CALL_NS


def _operations(
    trace: Trace,
    host: Host,
    found: _Found,
    time: HostTime,
    launched: tuple[Int64s, Int64s],
    step: Int64s,
    typical: tuple[float, float],
) -> Operations:
    """Decide what each operation waited for: that limit is as observed, and the others are no later."""
    anchored, places = launched
    free = found.free()
    since_call = (found.start - found.called).astype(np.float64)
    since_free = (found.start - free).astype(np.float64)
    latency, gap = np.minimum(typical[0], since_call), np.minimum(typical[1], since_free)
    waited = np.minimum(since_call - latency, since_free - gap) >= SHORTEST_WAIT_NS
    awaits, rest = _awaited(trace, found, waited, typical[1])
    explained = waited & (awaits != NONE)
    late = ~explained & (since_call - latency <= since_free - gap)
    staged = pageable_to_device(trace)[found.rows] & np.isin(found.call, host.blocking.rows) & ~explained
    latency = np.where(late, since_call, latency)
    gap = np.where(~late & ~explained, since_free, gap)
    staging = np.minimum(since_call, since_free)
    anchor = np.full(found.rows.size, NONE, dtype=np.int64)
    anchor[anchored] = places
    doing = np.full(found.rows.size, NONE, dtype=np.int64)
    doing[anchored] = time.doing()[: anchored.size]
    held = np.zeros(found.rows.size)
    held[anchored] = time.interrupted(time.unchanged())[: anchored.size]
    latency = np.where(staged, staging, latency)
    begun = found.history & (found.start < time.first_ns)
    known = np.where(found.history & (found.called != _NEVER), found.called + latency, -np.inf)
    return Operations(
        rows=found.rows,
        duration=(found.end - found.start).astype(np.float64),
        anchor=anchor,
        known=np.where(begun, found.start, known),
        latency=np.where(late, latency - held, latency),
        before=np.where(begun, NONE, found.before),
        gap=np.where(staged, staging, gap),
        awaits=np.where(begun, NONE, awaits),
        rest=rest,
        step=step,
        doing=doing,
        history=found.history,
        staged=staged,
        late=late,
    )


def _awaited(trace: Trace, found: _Found, waited: Booleans, gap: float) -> tuple[Int64s, Floats]:
    """An operation of another stream for which each one waits, and how long after its end it begins.

    Nothing in a trace says so. An operation that waited though its stream was free and its launch was done, and that
    began when another one had just ended, waited for that. A collective always waits for what its thread launched
    before it, and what a thread launches after it has made a stream wait waits for the latest collective.
    """
    by_end = np.argsort(found.end, kind="stable")
    last = by_end[np.maximum(np.searchsorted(found.end[by_end], found.start, side="right") - 1, 0)]
    place = np.arange(found.rows.size)
    since = found.start - found.end[last]
    just = waited & (last < place) & (since >= 0) & (since < SHORTEST_WAIT_NS)
    just &= found.end[last] > np.maximum(found.called, found.free())
    ordered = _ordered(trace, found)
    apart = found.start - found.end[ordered]
    holds = ~just & ~waited & (ordered != NONE) & (ordered < place) & (apart >= 0)
    awaits = np.where(just, last, np.where(holds, ordered, NONE))
    rest = np.where(just, since, np.where(holds, np.minimum(apart, gap), 0)).astype(np.float64)
    return awaits, rest


def _ordered(trace: Trace, found: _Found) -> Int64s:
    """What each operation must come after by the order of calls, whether or not it had to wait; see above."""
    names = np.array([is_collective(name) for name in trace.names], dtype=np.bool_)
    collective = names[trace.name_id[found.rows]]
    ordered = np.full(found.rows.size, NONE, dtype=np.int64)
    if not collective.any():
        return ordered
    event = np.array([_WAIT_EVENT.match(name) is not None for name in trace.names], dtype=np.bool_)
    events = np.flatnonzero(event[trace.name_id])
    launched = np.flatnonzero(found.called != _NEVER)
    group = launched[collective[launched]]
    group = group[np.argsort(found.called[group], kind="stable")]
    for thread in np.unique(found.thread[launched]).tolist():
        mine = launched[found.thread[launched] == thread]
        mine = mine[np.argsort(found.called[mine], kind="stable")]
        own = mine[~collective[mine]]
        theirs = mine[collective[mine]]
        ordered[theirs] = _latest(own, found.called[own], found.called[theirs])
        waits = np.sort(trace.start_ns[events[thread_of(trace, events) == thread]])
        called = found.called[own]
        made = np.concatenate(([_NEVER], waits))[np.searchsorted(waits, called, side="right")]
        previous = np.concatenate(([_NEVER], called[:-1]))
        latest = _latest(group, found.called[group], called)
        after = np.where(latest == NONE, np.iinfo(np.int64).max, found.called[latest])
        ordered[own] = np.where((made > after) & (made >= previous), latest, NONE)
    return ordered


def _latest(which: Int64s, times: Int64s, before: Int64s) -> Int64s:
    """Of some operations by time the latest before each of other times; :data:`NONE` where there is none."""
    return np.concatenate(([NONE], which))[np.searchsorted(times, before, side="left")]


def _blocking(trace: Trace, host: Host, found: _Found, main: int, first_ns: int, last_ns: int) -> Int64s:
    """Rows of the blocking calls of threads that drive a device, by end; none that lies in another one."""
    rows = np.union1d(host.blocking.rows, host.blocking.profilers)
    threads = np.union1d(found.thread, np.array([main]))
    inside = (trace.end_ns[rows] > first_ns) & (trace.start_ns[rows] < last_ns) & (trace.duration_ns[rows] > 0)
    rows = rows[np.isin(thread_of(trace, rows), threads) & inside]
    outermost = []
    for thread in np.unique(thread_of(trace, rows)).tolist():
        mine = rows[thread_of(trace, rows) == thread]
        reached = np.maximum.accumulate(np.concatenate(([_NEVER], trace.end_ns[mine])))[:-1]
        outermost.append(mine[trace.end_ns[mine] > reached])
    kept = np.concatenate([rows[:0], *outermost])
    return kept[np.argsort(trace.end_ns[kept], kind="stable")]


def _waits(
    trace: Trace,
    host: Host,
    found: _Found,
    calls: Int64s,
    begin_ns: Int64s,
    anchors: Anchors,
    at: tuple[Int64s, Int64s],
    doing: Int64s,
) -> Waits:
    """What blocking calls waited for, and what they take without that."""
    end_ns, (begin, end) = trace.end_ns[calls], at
    awaits = _last_ended(found, calls, begin_ns, end_ns)
    awaited_ns = np.where(awaits == NONE, _NEVER, found.end[awaits])
    since = anchors.time_ns[end - 1]
    waited = awaited_ns > since
    rest = np.where(waited, end_ns - awaited_ns, end_ns - since)
    pageable = pageable_to_device(trace)[found.rows]
    transfer = np.isin(calls, host.blocking.rows[host.blocking.transfer])
    return Waits(
        rows=calls,
        begin=begin,
        end=end,
        position=np.searchsorted(np.maximum(found.start, found.called), end_ns, side="left"),
        own=np.clip(rest, 0, end_ns - since).astype(np.float64),
        awaits=awaits,
        rest=rest.astype(np.float64),
        doing=doing,
        transfer=transfer,
        pageable=transfer & _launched_before(trace, found, calls, pageable),
        profilers=np.isin(calls, host.blocking.profilers),
    )


def _last_ended(found: _Found, calls: Int64s, begin_ns: Int64s, end_ns: Int64s) -> Int64s:
    """The operation that a call waited for: the last to end that it launched itself, else of those launched before."""
    by_end = np.argsort(found.end, kind="stable")
    ends, called, started = found.end[by_end], found.called[by_end], found.start[by_end]
    own: dict[int, int] = {}
    for place in by_end[np.isin(found.call[by_end], calls)].tolist():
        own[int(found.call[place])] = place
    awaits = np.full(calls.size, NONE, dtype=np.int64)
    candidates = np.searchsorted(ends, end_ns + _SKEW_NS, side="right") - 1
    for index, (call, begin, end, latest) in enumerate(
        zip(calls.tolist(), begin_ns.tolist(), end_ns.tolist(), candidates.tolist(), strict=True)
    ):
        mine = own.get(call)
        if mine is not None:
            awaits[index] = mine if found.end[mine] <= end + _SKEW_NS and found.start[mine] < end else NONE
            continue
        place = latest
        while place >= 0 and (called[place] >= begin or started[place] >= end):
            place -= 1
        if place >= 0:
            awaits[index] = by_end[place]
    return awaits


def _launched_before(trace: Trace, found: _Found, calls: Int64s, wanted: Booleans) -> Booleans:
    """Whether the latest operation that a call's thread launched before it, or that it launched itself, is wanted."""
    result = np.zeros(calls.size, dtype=np.bool_)
    threads = thread_of(trace, calls)
    launched = np.flatnonzero(found.call != NO_LAUNCH)
    for thread in np.unique(threads).tolist():
        mine = launched[found.thread[launched] == thread]
        mine = mine[np.argsort(found.called[mine], kind="stable")]
        theirs = threads == thread
        place = np.searchsorted(found.called[mine], trace.start_ns[calls[theirs]], side="right")
        result[theirs] = np.concatenate(([False], wanted[mine]))[place]
    return result
