"""Ranges of the host by name: how often, how long, and what device work they launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Int64s, Trace
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.nesting import NO_RANGE, Nesting, nest

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
class BackwardWork:
    """What the backward pass cost, nanoseconds, by row of the operator that made the gradient's node.

    Rows may be there more than once. ``aside`` are rows of operators that did the work, ascending: time and launches
    inside them are not those of the ranges around them. ``aside_forward`` are the operators that made their nodes: what
    the backward pass of a range inside one of them took, that of the ranges around its maker took too.
    """

    forward: Int64s
    host_ns: Int64s
    device_ns: Int64s
    aside: Int64s
    aside_forward: Int64s


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over the ranges of one key; over all ranges beyond the limit where ``key`` is None.

    ``self_ns`` is the time as innermost range of the thread, ``total_ns`` the whole time, where a range inside one
    of the same key is not counted again. ``launches`` and ``self_device_ns`` count the calls made, and the device
    work launched, while the range was the innermost one; ``device_ns`` is all device work launched inside.

    ``backward_ns`` is what the backward pass took for operators of the forward pass that ran inside, in host time,
    ``self_backward_ns`` for those that ran while the range was the innermost one; ``backward_device_ns`` and
    ``self_backward_device_ns`` are that of device work.
    """

    key: int | None
    calls: int
    self_ns: int
    total_ns: int
    launches: int
    self_device_ns: int
    device_ns: int
    self_backward_ns: int = 0
    backward_ns: int = 0
    self_backward_device_ns: int = 0
    backward_device_ns: int = 0


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


def tally(
    trace: Trace,
    rows: Int64s,
    keys: Int64s,
    calls: DeviceCalls,
    limit: int | None,
    backward: BackwardWork | None = None,
) -> list[Tally]:
    """Sum ranges by key: the keys that cost most first, by host and device time of their own.

    Args:
        trace: the trace.
        rows: rows of the ranges, ascending.
        keys: a number per range, such as that of its name: ranges with the same are one line of the result.
        calls: the trace's :func:`device_calls`.
        limit: number of keys to keep apart. What is left is summed in one more entry.
        backward: the backward pass's work; without it, its figures are 0.
    """
    if rows.size == 0:
        return []
    distinct, group = np.unique(keys, return_inverse=True)
    size = distinct.size
    group_of_row = np.full(len(trace), size, dtype=np.int64)
    group_of_row[rows] = group
    nesting = nest(trace, np.union1d(rows, backward.aside) if backward and backward.aside.size else rows)
    groups = _Groups(group_of_row[nesting.rows], size, nesting.parent)

    owner = nesting.innermost(trace, calls.rows)
    owned = owner != NO_RANGE
    owner, device_ns = owner[owned], calls.device_ns[owned]
    every = np.arange(nesting.rows.size)
    self_ns, self_device_ns = groups.own(every, nesting.self_ns), groups.own(owner, device_ns)
    columns = [
        np.bincount(group, minlength=size),
        self_ns,
        groups.outermost(every, trace.duration_ns[nesting.rows]),
        groups.own(owner, np.ones_like(owner)),
        self_device_ns,
        groups.inside(owner, device_ns),
    ]
    if backward is not None and backward.forward.size:
        if backward.aside.size:
            groups = _Groups(groups.of, size, _recomputed_in(trace, nesting, backward))
        maker = _place_of(trace, nesting, backward.forward)
        known = maker != NO_RANGE
        for values in (backward.host_ns[known], backward.device_ns[known]):
            columns += [groups.own(maker[known], values), groups.inside(maker[known], values)]
    order = ranked(self_ns + self_device_ns)
    kept, rest = order[:limit], order[len(order) if limit is None else limit :]
    found = [
        Tally(int(key), *values)
        for key, *values in zip(distinct[kept].tolist(), *(column[kept].tolist() for column in columns), strict=True)
    ]
    return [*found, Tally(None, *(int(column[rest].sum()) for column in columns))] if rest.size else found


class _Groups:
    """Sums over ranges by group. Those of group ``size`` are not wanted."""

    def __init__(self, of: Int64s, size: int, parent: Int64s) -> None:
        self.of = of
        self._size = size
        self._parent = parent
        self._outer = ~_in_same(parent, of)

    def own(self, places: Int64s, values: Int64s) -> Int64s:
        """Values at ranges, summed by the range's group."""
        return _sums(self.of[places], values, self._size + 1)[: self._size]

    def outermost(self, places: Int64s, values: Int64s) -> Int64s:
        """The same without ranges inside others of their group."""
        return self.own(places[self._outer[places]], values[self._outer[places]])

    def inside(self, places: Int64s, values: Int64s) -> Int64s:
        """Values at ranges, summed by the groups of the range and of all around it, once for each group."""
        sums = np.zeros(self._size, dtype=np.int64)
        while places.size:
            sums += self.outermost(places, values)
            places = self._parent[places]
            places, values = places[places != NO_RANGE], values[places != NO_RANGE]
        return sums


def _recomputed_in(trace: Trace, nesting: Nesting, backward: BackwardWork) -> Int64s:
    """Parents of ranges, where an operator that was set aside lies in what is around the one that made its node."""
    parent: Int64s = nesting.parent.copy()
    place = np.searchsorted(backward.aside, nesting.rows)
    place = np.minimum(place, backward.aside.size - 1)
    aside = backward.aside[place] == nesting.rows
    parent[aside] = nesting.innermost(trace, backward.aside_forward[place[aside]])
    return parent


def _place_of(trace: Trace, nesting: Nesting, rows: Int64s) -> Int64s:
    """Place of each row if it is one of the ranges, else of the innermost range around its start."""
    places = np.full(len(trace), NO_RANGE, dtype=np.int64)
    places[nesting.rows] = np.arange(nesting.rows.size)
    return np.where(places[rows] != NO_RANGE, places[rows], nesting.innermost(trace, rows))


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
