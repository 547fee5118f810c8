"""Gaps of a device: what ended each, until when the host was late, and why the device waited from then on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Int64s, Trace
from lightning_perf.measure.blocking import pageable_to_device
from lightning_perf.measure.intervals import Intervals
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.names import CAUSES, Cause

SHORTEST_WAIT_NS: Final = 20_000
"""Queued work that starts sooner than this after the work before it waited for nothing but the device itself."""

_GRAPH_LAUNCH: Final = re.compile(r"\w*GraphLaunch")
NEVER: Final = int(np.iinfo(np.int64).min)
CODE: Final[dict[Cause, int]] = {cause: code for code, cause in enumerate(CAUSES)}
"""Causes as numbers, for columns."""

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Operations:
    """A device's operations by start; of those that start together the first one launched comes first.

    ``call_ns`` and ``returned_ns`` are start and end of the call that launched each, where ``launched``.
    """

    rows: Int64s
    start_ns: Int64s
    launched: Booleans
    call: Int64s
    call_ns: Int64s
    returned_ns: Int64s


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of a window and, for each, what ended it.

    ``from_ns`` and ``to_ns`` are the gap's true bounds, also where the window cuts it: ``from_ns`` is far in the past
    if nothing ran before. ``operation`` indexes :class:`Operations`, -1 where nothing ran afterwards. ``head_end_ns``
    is where the host stops being late, ``tail`` the code of the cause from there on.
    """

    start_ns: Int64s
    end_ns: Int64s
    from_ns: Int64s
    to_ns: Int64s
    operation: Int64s
    head_end_ns: Int64s
    tail: Int64s


def device_operations(trace: Trace, rows: Int64s, launches: Int64s) -> Operations:
    """A device's operations and the calls that launched them."""
    call = launches[rows]
    launched = call != NO_LAUNCH
    order_id = np.where(launched, trace.correlation[rows], np.iinfo(np.int64).max)
    order = np.lexsort((order_id, trace.start_ns[rows]))
    rows, call, launched = rows[order], call[order], launched[order]
    return Operations(
        rows=rows,
        start_ns=trace.start_ns[rows],
        launched=launched,
        call=call,
        call_ns=np.where(launched, trace.start_ns[call], NEVER),
        returned_ns=np.where(launched, trace.end_ns[call], NEVER),
    )


def untraced_graphs(trace: Trace, launches: Int64s) -> Int64s:
    """When graphs were launched of which the trace shows no operation (older drivers)."""
    wanted = np.array([_GRAPH_LAUNCH.match(name) is not None for name in trace.names], dtype=np.bool_)
    calls = np.flatnonzero(wanted[trace.name_id])
    starts: Int64s = trace.start_ns[np.setdiff1d(calls, launches[launches != NO_LAUNCH])]
    return starts


def find_gaps(trace: Trace, operations: Operations, busy: Intervals, idle: Intervals, graphs: Int64s) -> Gaps:
    """Find what ended each gap, and split it into head and tail."""
    start, end = idle.starts, idle.ends
    next_one = np.searchsorted(operations.start_ns, end, side="left")
    ended = next_one < operations.rows.size
    operation = np.where(ended, next_one, -1)
    from_ns = _last_end(trace, operations, busy, start)
    to_ns = np.where(ended, operations.start_ns[operation], end)
    launched = ended & operations.launched[operation]
    call_ns = operations.call_ns[operation]
    queued = launched & (call_ns <= from_ns)
    late = launched & ~queued
    head_end = np.where(late, np.clip(call_ns, start, end), np.where(ended, start, end))
    waited = to_ns - np.maximum(from_ns, 0)
    returned = operations.returned_ns[operation] <= from_ns
    staged = launched & pageable_to_device(trace)[operations.rows[operation]]
    known = operations.start_ns[operations.launched]
    first_launched = int(known[0]) if known.size else NEVER
    hidden = launched & (waited >= SHORTEST_WAIT_NS) & _graph_between(operations, operation, graphs)
    behind = hidden & late & (to_ns - operations.returned_ns[operation] >= SHORTEST_WAIT_NS)
    head_end = np.where(behind, np.clip(_latest(graphs, call_ns), start, head_end), head_end)
    tail = np.select(
        [
            behind | (hidden & queued & returned),
            staged & (late | (waited >= SHORTEST_WAIT_NS)),
            late,
            waited < SHORTEST_WAIT_NS,
            queued & ~returned,
            queued | (to_ns < first_launched),  # the latter was launched before recording began
        ],
        [
            CODE["untraced_device_work"],
            CODE["transfer"],
            CODE["launch"],
            CODE["device_gap"],
            CODE["launch"],
            CODE["device_wait"],
        ],
        CODE["unknown"],
    )
    return Gaps(start, end, from_ns, to_ns, operation, head_end, tail)


def _last_end(trace: Trace, operations: Operations, busy: Intervals, start: Int64s) -> Int64s:
    """When the device was last busy before each gap: its start, unless the window cuts it."""
    ends = np.concatenate((busy.ends, operations.start_ns[trace.duration_ns[operations.rows] == 0]))
    ends = np.concatenate(([NEVER], np.sort(ends)))
    return ends[np.searchsorted(ends, start, side="right") - 1]


def _graph_between(operations: Operations, operation: Int64s, graphs: Int64s) -> Booleans:
    """Whether a graph without operations was launched between an operation and the one launched before it."""
    if graphs.size == 0:
        return np.zeros(operation.size, dtype=np.bool_)
    call_ns = operations.call_ns[operation]
    between: Booleans = _latest(graphs, call_ns) > _latest(np.unique(operations.call_ns[operations.launched]), call_ns)
    return between


def _latest(times: Int64s, before: Int64s) -> Int64s:
    """The latest of some sorted times before each of others, or :data:`NEVER`."""
    latest: Int64s = np.concatenate(([NEVER], times))[np.searchsorted(times, before, side="left")]
    return latest
