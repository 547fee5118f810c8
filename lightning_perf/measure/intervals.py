"""Exact algebra on sets of half-open intervals ``[start, end)`` of integer nanoseconds.

A set is sorted, its intervals are not empty and do not touch: intervals that touch are one. All functions are
vectorised and take and return such sets; only :func:`union` takes any intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.decode.trace import Int64s


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of points in time, as sorted, disjoint intervals that do not touch."""

    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return int(self.starts.size)

    @property
    def lengths(self) -> Int64s:
        """Length of every interval."""
        return self.ends - self.starts

    @property
    def total(self) -> int:
        """Length of all intervals together."""
        return int(self.lengths.sum())


def union(starts: Int64s, ends: Int64s) -> Intervals:
    """The set covered by any intervals, in any order; empty ones add nothing."""
    filled = ends > starts
    if not filled.all():
        starts, ends = starts[filled], ends[filled]
    if starts.size == 0:
        return Intervals(starts.astype(np.int64), ends.astype(np.int64))
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(starts[first], reached[last])


def intersect(one: Intervals, other: Intervals) -> Intervals:
    """The points that are in both sets."""
    times = np.concatenate((one.starts, other.starts, one.ends, other.ends))
    steps = np.ones(times.size, dtype=np.int64)
    steps[len(one) + len(other) :] = -1
    order = np.lexsort((steps, times))  # ends first: half-open intervals that meet have no point in common
    both = np.flatnonzero(np.cumsum(steps[order]) == 2)
    times = times[order]
    return Intervals(times[both], times[both + 1])


def clip(one: Intervals, start: int, end: int) -> Intervals:
    """The part of a set inside ``[start, end)``."""
    if len(one) == 0 or end <= start:
        return Intervals(one.starts[:0], one.ends[:0])
    first = int(np.searchsorted(one.ends, start, side="right"))
    last = int(np.searchsorted(one.starts, end, side="left"))
    return Intervals(np.maximum(one.starts[first:last], start), np.minimum(one.ends[first:last], end))


def gaps(one: Intervals, start: int, end: int) -> Intervals:
    """The points of ``[start, end)`` that are not in the set: with the set's part of it, they are all of it."""
    inside = clip(one, start, end)
    starts = np.concatenate((np.array([start], dtype=np.int64), inside.ends))
    ends = np.concatenate((inside.starts, np.array([end], dtype=np.int64)))
    filled = ends > starts
    return Intervals(starts[filled], ends[filled])


def split(one: Intervals, times: Int64s) -> Intervals:
    """The same set cut at times strictly inside its intervals; only here do pieces touch."""
    times = np.unique(times)
    place = np.searchsorted(one.starts, times, side="left") - 1  # the interval that begins before the time
    times = times[(place >= 0) & (times < one.ends[np.maximum(place, 0)])] if len(one) else times[:0]
    return Intervals(np.sort(np.concatenate((one.starts, times))), np.sort(np.concatenate((one.ends, times))))


def subtract(one: Intervals, other: Intervals) -> Intervals:
    """The points of the first set that are not in the second."""
    if len(one) == 0:
        return one
    return intersect(one, gaps(other, int(one.starts[0]), int(one.ends[-1])))
