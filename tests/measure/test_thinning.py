"""Thinning against plain Python."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.measure.thinning import highest, kept_cuts, largest, leading, shared

numbers = st.integers(-5, 20)
amounts = st.integers(1, 20)


def column(values) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(st.lists(numbers, max_size=30), st.integers(-1, 40))
def test_largest(values, count):
    ranked = sorted(range(len(values)), key=lambda place: (-values[place], place))
    assert largest(column(values), count).tolist() == sorted(ranked[: max(count, 0)])


@pytest.mark.parametrize(
    ("wanted", "most", "total", "expected"),
    [
        ([], 10, 30, []),
        ([5, 7], 10, 30, [5, 7]),
        ([50, 7], 10, 30, [10, 7]),
        ([50, 7, 60], 30, 30, [11, 7, 12]),
        ([9, 9, 9], 9, 2, [1, 1, 1]),
    ],
)
def test_shared(wanted, most, total, expected):
    assert shared(wanted, most=most, total=total) == expected


@given(st.lists(amounts, max_size=12), st.integers(1, 15), st.integers(12, 60))
def test_all_share_fairly(wanted, most, total):
    granted = shared(wanted, most=most, total=total)
    assert sum(granted) <= total
    assert all(1 <= got <= min(want, most) for got, want in zip(granted, wanted, strict=True))
    short = [got for got, want in zip(granted, wanted, strict=True) if got < min(want, most)]
    if short:  # nobody gets more than one who goes short, and nothing is left over
        assert max(granted) <= min(short) + 1
        assert sum(granted) == total


@pytest.mark.parametrize(
    ("length", "run", "limit", "expected"),
    [
        ([7], [0], 1, [0]),
        ([1, 1, 1], [0, 0, 0], 5, [0, 1, 2]),
        ([1, 9, 1, 1, 1], [0, 0, 0, 0, 0], 3, [0, 1, 2]),  # the long block stays by itself
        ([4, 4, 6, 1, 1], [0, 0, 1, 1, 2], 2, [0, 2]),  # two runs of 8 and 7; the block of 6 is inside the second
        ([9, 1, 9, 1, 9], [0, 1, 2, 3, 4], 3, [0, 1, 2]),
        ([2, 3, 2], [0, 1, 2], 1, [0]),
    ],
)
def test_kept_cuts(length, run, limit, expected):
    assert kept_cuts(column(length), column(run), limit).tolist() == expected


blocks = st.lists(st.tuples(amounts, st.booleans()), min_size=1, max_size=40)


@given(blocks, st.integers(1, 45))
def test_the_longest_blocks_and_runs_stay(drawn, limit):
    length = [one for one, _ in drawn]
    run = list(accumulate((int(new) for _, new in drawn[1:]), initial=0))
    kept = kept_cuts(column(length), column(run), limit).tolist()
    assert kept[0] == 0
    assert kept == sorted(set(kept))
    assert len(kept) == min(limit, len(length))
    of_run = Counter()
    for number, one in zip(run, length, strict=True):
        of_run[number] += one
    weight = {
        place: max(of_run[run[place - 1]], of_run[run[place]])
        if run[place - 1] != run[place]
        else max(length[place - 1 : place + 1])
        for place in range(1, len(length))
    }
    lost = [weight[place] for place in weight if place not in kept]
    assert max(lost, default=0) <= min((weight[place] for place in kept[1:]), default=10**9)


groups = st.lists(st.lists(st.tuples(st.integers(0, 4), amounts), min_size=1, max_size=6), max_size=6)


@given(groups, st.randoms(use_true_random=False))
def test_leading(members, random):
    rows = [(group, code, amount) for group, own in enumerate(members) for code, amount in own]
    random.shuffle(rows)
    expected = []
    for own in members:
        total = Counter()
        for code, amount in own:
            total[code] += amount
        expected.append(min(total, key=lambda code: (-total[code], code)))
    found = leading(*(column([row[place] for row in rows]) for place in range(3)))
    assert found.tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 5), numbers), max_size=20))
def test_highest(rows):
    rows = sorted(rows, key=lambda row: row[0])
    places = [[place for place, _ in own] for _, own in groupby(enumerate(rows), key=lambda item: item[1][0])]
    expected = [max(own, key=lambda place: (rows[place][1], -place)) for own in places]
    found = highest(column([group for group, _ in rows]), column([value for _, value in rows])).tolist()
    assert found == expected
    assert all(one < other for one, other in pairwise(found))
