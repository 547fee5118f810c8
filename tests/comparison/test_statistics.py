"""Does the verdict hold what its confidence says: on values of every kind that step times have."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.comparison.statistics import (
    FEWEST,
    _rank_sums,
    _ranks_left_out,
    estimate,
    of_repeats,
    shift,
    typical,
)


def test_typical_is_the_mean_of_the_middle_half() -> None:
    assert typical(np.array([1.0, 10.0, 20.0, 1_000.0])) == 15.0
    assert typical(np.array([7.0])) == 7.0


@pytest.mark.parametrize(("left", "right"), [(1, 1), (2, 3), (4, 4), (3, 6)])
def test_rank_sums_are_counted(left: int, right: int) -> None:
    counts = dict.fromkeys(range(left * right + 1), 0)
    for places in combinations(range(left + right), left):
        counts[sum(places) - left * (left - 1) // 2] += 1
    assert _rank_sums(left, right).tolist() == list(counts.values())


@pytest.mark.parametrize("size", [4, 7, 20, 21, 50])
def test_the_interval_covers_what_it_promises(size: int) -> None:
    random = np.random.default_rng(size)
    missed = 0
    for _ in range(2_000):
        _, low, high = shift(random.standard_normal(size), random.standard_normal(size), 1.0)
        missed += not low <= 0 <= high
    assert missed / 2_000 < 0.065  # 0.05 and three standard errors


def test_exact_and_normal_ranks_agree_where_they_meet() -> None:
    assert _ranks_left_out(20, 20) == pytest.approx(_ranks_left_out(20, 21) * 20 / 21, rel=0.05)


def test_few_steps_have_no_verdict() -> None:
    assert estimate(np.ones(FEWEST - 1), np.ones(100)) is None
    assert of_repeats(np.ones(3), np.ones(3)) is None


@given(
    st.lists(st.floats(1.0, 1e6), min_size=4, max_size=60),
    st.lists(st.floats(1.0, 1e6), min_size=4, max_size=60),
    st.floats(0.1, 10.0),
)
@settings(max_examples=150, deadline=None)
def test_laws(base: list[float], candidate: list[float], factor: float) -> None:
    before, after = np.array(base), np.array(candidate)
    found, back = estimate(before, after), estimate(after, before)
    scaled = estimate(before * factor, after * factor)
    assert found is not None
    assert back is not None
    assert scaled is not None
    assert found.low <= found.ratio <= found.high
    assert back.ratio == pytest.approx(1 / found.ratio)
    assert back.low == pytest.approx(1 / found.high)
    assert scaled.ratio == pytest.approx(found.ratio)
    same = estimate(before, before)
    assert same is not None
    assert same.ratio == pytest.approx(1.0)
    assert not same.differs


def test_more_steps_are_asked_for_where_they_would_help() -> None:
    random = np.random.default_rng(3)
    noise = np.exp(0.2 * random.standard_normal((2, 60)))
    found = estimate(noise[0], noise[1] * 1.02)
    assert found is not None
    assert not found.differs
    assert found.more_steps is not None
    assert found.more_steps > 0


def test_a_few_slow_steps_do_not_decide() -> None:
    random = np.random.default_rng(4)
    base = np.exp(0.03 * random.standard_normal(200))
    spiky = np.exp(0.03 * random.standard_normal(200))
    spiky[::25] *= 30
    found = estimate(base, spiky)
    assert found is not None
    assert math.isclose(found.ratio, 1.0, abs_tol=0.03)
    assert spiky.mean() > 2 * base.mean()
