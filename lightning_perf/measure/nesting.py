"""Which range of a thread lies in which, and which is the innermost at a time: by time alone, vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Int64s, Trace

NO_RANGE: Final = -1


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges of host threads and how they nest. Ranges that took no time hold nothing and are left out.

    ``rows`` are the trace's rows of the ranges, thread by thread, by start within each. ``parent`` is the place in
    ``rows`` of the range around each one, :data:`NO_RANGE` where there is none. ``self_ns`` is the time during
    which a range was the innermost one of its thread: over the ranges of a thread it adds up to their union.
    """

    rows: Int64s
    parent: Int64s
    self_ns: Int64s
    _threads: dict[int, tuple[int, _Thread]]

    def innermost(self, trace: Trace, events: Int64s) -> Int64s:
        """Place in ``rows`` of the innermost range open on the event's thread when it starts, or :data:`NO_RANGE`."""
        found = np.full(events.size, NO_RANGE, dtype=np.int64)
        threads = thread_of(trace, events)
        for thread in np.unique(threads).tolist():
            if thread in self._threads:
                first, ranges = self._threads[thread]
                mine = threads == thread
                inside = ranges.innermost(trace.start_ns[events[mine]])
                found[mine] = np.where(inside == NO_RANGE, NO_RANGE, inside + first)
        return found


@dataclass(frozen=True, slots=True)
class _Thread:
    """The ranges of one thread. ``places`` holds depth * size + place of every range, sorted."""

    starts: Int64s
    ends: Int64s
    sorted_ends: Int64s
    places: Int64s
    parent: Int64s

    def innermost(self, times_ns: Int64s) -> Int64s:
        """The range open at each time that began last. Of the open ones, that one is the deepest."""
        begun = np.searchsorted(self.starts, times_ns, side="right")
        depth = begun - np.searchsorted(self.sorted_ends, times_ns, side="right") - 1
        latest = np.searchsorted(self.places, depth * self.starts.size + begun - 1, side="right") - 1
        return np.where(depth < 0, NO_RANGE, self.places[latest] % self.starts.size)


def nest(trace: Trace, rows: Int64s) -> Nesting:
    """Nest ranges of the host.

    Args:
        trace: the trace.
        rows: rows of the ranges, ascending.
    """
    rows = rows[trace.duration_ns[rows] > 0]
    thread = thread_of(trace, rows)
    order = np.argsort(thread, kind="stable")
    rows, thread = rows[order], thread[order]
    starts, ends = trace.start_ns[rows], trace.end_ns[rows]
    parent = np.full(rows.size, NO_RANGE, dtype=np.int64)
    threads: dict[int, tuple[int, _Thread]] = {}
    edges = np.flatnonzero(np.diff(thread, prepend=-1, append=-1))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        ranges = _nested(starts[first:last], ends[first:last])
        threads[int(thread[first])] = (first, ranges)
        parent[first:last] = np.where(ranges.parent == NO_RANGE, NO_RANGE, ranges.parent + first)
        ends[first:last] = ranges.ends
    lengths = ends - starts
    inner = np.flatnonzero(parent != NO_RANGE)
    self_ns = lengths - np.bincount(parent[inner], weights=lengths[inner], minlength=rows.size).astype(np.int64)
    return Nesting(rows=rows, parent=parent, self_ns=self_ns, _threads=threads)


def thread_of(trace: Trace, rows: Int64s) -> Int64s:
    """One number per thread of a process."""
    return trace.process[rows].astype(np.int64) * len(trace.threads) + trace.thread[rows]


def _nested(starts: Int64s, ends: Int64s) -> _Thread:
    found = _by_depth(starts, ends)
    inner = np.flatnonzero(found.parent != NO_RANGE)
    if np.any(ends[found.parent[inner]] < ends[inner]):  # some ranges overlap in part: old traces round to 1 us
        found = _by_depth(starts, _stretched(starts, ends))
    return found


def _by_depth(starts: Int64s, ends: Int64s) -> _Thread:
    """How ranges nest that are disjoint or inside each other; starts ascend, the longer range first on ties.

    A range's depth is the number of ranges open at its start. The latest one before it that is one less deep is
    around it.
    """
    size = starts.size
    sorted_ends = np.sort(ends)
    place = np.arange(size)
    depth = place - np.searchsorted(sorted_ends, starts, side="right")
    key = depth * size + place
    places = np.sort(key)
    around = places[np.searchsorted(places, key - size, side="left") - 1] % size
    parent = np.where(depth > 0, around, NO_RANGE)
    return _Thread(starts=starts, ends=ends, sorted_ends=sorted_ends, places=places, parent=parent)


def _stretched(starts: Int64s, ends: Int64s) -> Int64s:
    """Ends moved back until each range holds the whole of every range that begins in it.

    The time by which a range is stretched belongs to a range that began later, so no innermost range changes.
    """
    begin, end = starts.tolist(), ends.tolist()
    following = [0] * len(begin)
    for place in reversed(range(len(begin))):
        reached, inner = end[place], place + 1
        while inner < len(begin) and begin[inner] < reached:
            reached = max(reached, end[inner])
            inner = following[inner]
        end[place], following[place] = reached, inner
    return np.array(end, dtype=np.int64)
