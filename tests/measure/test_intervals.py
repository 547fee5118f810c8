"""The interval algebra against a bitmap: one bool per nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.measure.intervals import Intervals, clip, gaps, intersect, split, subtract, union

LENGTH = 40
pairs = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted), max_size=12)
bounds = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted)


def made(raw: list[list[int]]) -> Intervals:
    array = np.array(raw, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


def bitmap(one: Intervals) -> np.ndarray:
    bits = np.zeros(LENGTH, dtype=bool)
    for start, end in listed(one):
        bits[start:end] = True
    return bits


def listed(one: Intervals) -> list[tuple[int, int]]:
    return list(zip(one.starts.tolist(), one.ends.tolist(), strict=True))


def assert_set(one: Intervals) -> None:
    """Sorted, not empty, not touching."""
    assert (one.starts < one.ends).all()
    assert (one.ends[:-1] < one.starts[1:]).all()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([], []),
        ([[3, 3]], []),
        ([[0, 2], [2, 5]], [(0, 5)]),
        ([[4, 6], [0, 2]], [(0, 2), (4, 6)]),
        ([[0, 10], [2, 3], [10, 11], [13, 14]], [(0, 11), (13, 14)]),
    ],
)
def test_union(raw, expected):
    assert listed(made(raw)) == expected


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], [(0, 10), (12, 14)]),
        ([0, 10, 11, 14, 20], [(0, 10), (12, 14)]),
        ([4, 4, 13], [(0, 4), (4, 10), (12, 13), (13, 14)]),
    ],
)
def test_split(times, expected):
    assert listed(split(made([[0, 10], [12, 14]]), np.array(times, dtype=np.int64))) == expected


@given(pairs)
def test_union_covers_what_its_intervals_cover(raw):
    result = made(raw)
    bits = np.zeros(LENGTH, dtype=bool)
    for start, end in raw:
        bits[start:end] = True
    assert_set(result)
    assert (bitmap(result) == bits).all()
    assert result.total == bits.sum()


@given(pairs, pairs)
def test_intersect_and_subtract(raw, other_raw):
    one, other = made(raw), made(other_raw)
    for result, bits in (
        (intersect(one, other), bitmap(one) & bitmap(other)),
        (subtract(one, other), bitmap(one) & ~bitmap(other)),
    ):
        assert_set(result)
        assert (bitmap(result) == bits).all()


@given(pairs, bounds)
def test_clip_and_gaps_are_all_of_the_window(raw, window):
    one, (start, end) = made(raw), window
    inside, outside = clip(one, start, end), gaps(one, start, end)
    bits = np.zeros(LENGTH, dtype=bool)
    bits[start:end] = True
    for result in (inside, outside):
        assert_set(result)
    assert (bitmap(inside) == (bits & bitmap(one))).all()
    assert (bitmap(outside) == (bits & ~bitmap(one))).all()
    assert inside.total + outside.total == end - start


@given(pairs, st.lists(st.integers(0, LENGTH), max_size=6))
def test_split_loses_nothing(raw, times):
    one = made(raw)
    result = split(one, np.array(times, dtype=np.int64))
    inside = {time for time in times if any(start < time < end for start, end in listed(one))}
    assert len(result) == len(one) + len(inside)
    assert (result.starts < result.ends).all()
    assert (bitmap(result) == bitmap(one)).all()
