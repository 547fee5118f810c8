"""Ranges of the host by name: how often, how long, and what device work they launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Int64s, Trace
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.nesting import NO_RANGE, nest

ROWS: Final = 200
"""Rows that a table of the analysis holds; the rest is summed in one more."""

OTHERS: Final = "(others)"
"""Name of the row that sums those beyond :data:`ROWS`."""


@dataclass(frozen=True, slots=True)
class DeviceCalls:
    """The runtime and driver calls that launched device work, and how much: rows of calls, nanoseconds of work."""

    rows: Int64s
    device_ns: Int64s


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over the ranges of one key; over all ranges beyond the limit where ``key`` is None.

    ``self_ns`` is the time as innermost range of the thread, ``total_ns`` the whole time, where a range inside one
    of the same key is not counted again. ``launches`` and ``self_device_ns`` count the calls made, and the device
    work launched, while the range was the innermost one; ``device_ns`` is all device work launched inside.
    """

    key: int | None
    calls: int
    self_ns: int
    total_ns: int
    launches: int
    self_device_ns: int
    device_ns: int


def device_calls(trace: Trace, launches: Int64s) -> DeviceCalls:
    """What launched device work. Operations that run at once count each for itself, as torch sums them.

    Args:
        trace: the trace.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
    """
    operations = np.flatnonzero(launches != NO_LAUNCH)
    device_ns = _sums(launches[operations], trace.duration_ns[operations], len(trace))
    rows = np.unique(launches[operations])
    return DeviceCalls(rows=rows, device_ns=device_ns[rows])


def tally(trace: Trace, rows: Int64s, keys: Int64s, calls: DeviceCalls, limit: int | None) -> list[Tally]:
    """Sum ranges by key: the keys that cost most first, by host and device time of their own.

    Args:
        trace: the trace.
        rows: rows of the ranges, ascending.
        keys: a number per range, such as that of its name: ranges with the same are one line of the result.
        calls: the trace's :func:`device_calls`.
        limit: number of keys to keep apart. What is left is summed in one more entry.
    """
    if rows.size == 0:
        return []
    distinct, group = np.unique(keys, return_inverse=True)
    nesting = nest(trace, rows)
    group_of_row = np.full(len(trace), NO_RANGE, dtype=np.int64)
    group_of_row[rows] = group
    groups, size = group_of_row[nesting.rows], distinct.size

    owner = nesting.innermost(trace, calls.rows)
    owned = owner != NO_RANGE
    owner, device_ns = owner[owned], calls.device_ns[owned]
    inside_ns = np.zeros(groups.size, dtype=np.int64)
    up, work_ns = owner, device_ns
    while up.size:
        inside_ns += _sums(up, work_ns, groups.size)
        up = nesting.parent[up]
        up, work_ns = up[up != NO_RANGE], work_ns[up != NO_RANGE]

    outer = ~_in_same(nesting.parent, groups)
    self_ns = _sums(groups, nesting.self_ns, size)
    self_device_ns = _sums(groups[owner], device_ns, size)
    columns = (
        np.bincount(group, minlength=size),
        self_ns,
        _sums(groups[outer], trace.duration_ns[nesting.rows[outer]], size),
        np.bincount(groups[owner], minlength=size),
        self_device_ns,
        _sums(groups[outer], inside_ns[outer], size),
    )
    order = ranked(self_ns + self_device_ns)
    kept, rest = order[:limit], order[len(order) if limit is None else limit :]
    found = [
        Tally(int(key), *values)
        for key, *values in zip(distinct[kept].tolist(), *(column[kept].tolist() for column in columns), strict=True)
    ]
    return [*found, Tally(None, *(int(column[rest].sum()) for column in columns))] if rest.size else found


def ranked(costs: Int64s) -> Int64s:
    """Places by cost, the largest first; equal ones stay in their order."""
    return np.argsort(-costs, kind="stable")


def _in_same(parent: Int64s, groups: Int64s) -> npt.NDArray[np.bool_]:
    """Which ranges lie, at any depth, in one of their own group."""
    inside = np.zeros(parent.size, dtype=np.bool_)
    below, up = np.arange(parent.size), parent
    while True:
        known = up != NO_RANGE
        below, up = below[known], up[known]
        if not up.size:
            return inside
        inside[below[groups[up] == groups[below]]] = True
        up = parent[up]


def _sums(index: Int64s, values: Int64s, size: int) -> Int64s:
    """Sums of values by index: exact, since float64 holds every integer up to 104 days of nanoseconds."""
    return np.bincount(index, weights=values, minlength=size).astype(np.int64)
