"""Whether two series of step times differ: a robust estimate, an interval that holds for what step times are.

Step times depend on the steps before them (caches, queues, another job on the machine), and some are much longer than
the others. So each series is cut into batches in the order in which its steps ran, and each batch summed up by its
interquartile mean, which a quarter of slow steps cannot move. Batches are compared by ranks: the estimate is that of
Hodges and Lehmann (1963), the median of all ratios between a batch of one series and one of the other, and its interval
that of the rank-sum test of Wilcoxon, Mann and Whitney, which assumes no distribution. Batch means are the classical
way to intervals from series that depend on themselves (Law, Simulation Modeling and Analysis, 9.5.3).

Batches still depend on each other where a machine slows down for a while. Two things make the interval wider then: the
correlation of neighbouring batches, and how much quarters of one series differ. A machine that changed from one quarter
of a run to the next will have changed as much from one run to the other. What steps of one recording cannot tell, how
much a machine changes between two, is added as a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.95

BATCHES: Final = 10
"""Batches that a series is cut into, if it has as many steps twice. Fewer make intervals wide, more depend on each
other."""

LONG_ENOUGH: Final = 40
"""Steps from which on quarters are long enough to tell a change of the machine from a slow step."""

DRIFT: Final = 1.0
"""Half of the interval is at least so many times what neighbouring quarters of a series differ (root mean square)."""

MACHINE: Final = 0.02
"""How much faster or slower a machine is from one recording to the next, with steps that do not tell.

Clocks and caches change, other jobs come and go: neighbouring pieces of real runs, each as steady as can be, differed
by 1 to 2 % (benchmarks/compare.py). The interval of one recording of each side is wider by this; repeats tell instead.
"""

MOST_CORRELATED: Final = 0.9

FEWEST: Final = 4
"""Values on each side from which on the rank-sum test can reach the confidence: 2 of 70 orders, 2.9 %."""

MOST_STEPS: Final = 1_000_000

_EXACT: Final = 20
"""Up to so many values on a side the distribution of ranks is counted; the normal one is as good above."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much longer the candidate's typical step is: ``ratio`` - 1, within ``low`` - 1 and ``high`` - 1.

    ``batch`` is how many steps were put together, ``more_steps`` how many more of each side would show a difference
    of this size if none is shown; None if one is, or if only repeats of both sides could show it.
    """

    ratio: float
    low: float
    high: float
    batch: int
    more_steps: int | None

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.low <= 1 <= self.high


def typical(values: Floats) -> float:
    """The interquartile mean: that of the middle half."""
    ordered = np.sort(values)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def estimate(base: Floats, candidate: Floats) -> Estimate | None:
    """The change of the typical step from one series to the other; None with fewer than four steps on a side.

    Args:
        base: step times in the order in which they ran, larger than 0.
        candidate: the same of the other side, in the same unit.
    """
    shorter = min(base.size, candidate.size)
    if shorter < FEWEST:
        return None
    batch = max(1, shorter // BATCHES)
    before, after = _batches(base, batch), _batches(candidate, batch)
    correlation = max(0.0, min(MOST_CORRELATED, (_autocorrelation(before) + _autocorrelation(after)) / 2))
    # As the variance of a mean of an AR(1) series grows with its correlation.
    middle, low, high = shift(before, after, math.sqrt((1 + correlation) / (1 - correlation)))
    drift = DRIFT * _drift(base, candidate) if shorter >= LONG_ENOUGH else 0.0
    low, high = min(low, middle - drift) - MACHINE, max(high, middle + drift) + MACHINE
    found = Estimate(math.exp(middle), math.exp(low), math.exp(high), batch, None)
    if found.differs:
        return found
    beyond = abs(middle) - MACHINE  # what is left for more steps to show: the machine's share does not shrink with them
    width = (high - low) / 2 - MACHINE
    needed = shorter * (width / beyond) ** 2 if beyond > 0 else math.inf
    more = math.ceil(max(0.0, needed - shorter)) if needed < MOST_STEPS else None
    return Estimate(found.ratio, found.low, found.high, batch, more)


def of_repeats(base: Floats, candidate: Floats) -> Estimate | None:
    """The same from one typical step for each of several runs of both sides; None with fewer than four runs a side."""
    if min(base.size, candidate.size) < FEWEST:
        return None
    middle, low, high = shift(np.log(base), np.log(candidate), 1.0)
    return Estimate(math.exp(middle), math.exp(low), math.exp(high), 1, None)


def shift(before: Floats, after: Floats, wider: float) -> tuple[float, float, float]:
    """The Hodges-Lehmann estimate of how much larger ``after`` is, with its interval, ``wider`` times as wide."""
    differences = np.sort((after[:, None] - before[None, :]).ravel())
    middle = float(np.median(differences))
    skip = _ranks_left_out(before.size, after.size)
    low, high = float(differences[skip]), float(differences[differences.size - 1 - skip])
    return middle, middle - wider * (middle - low), middle + wider * (high - middle)


def _drift(base: Floats, candidate: Floats) -> float:
    """Root mean square of what neighbouring quarters of a series differ, of both series, in logarithms."""
    quarters = [_batches(values, values.size // 4) for values in (base, candidate)]
    return math.sqrt(float(np.mean([np.diff(values) ** 2 for values in quarters])))


def _batches(values: Floats, size: int) -> Floats:
    """Logarithms of the typical step of each whole batch; what is left over at the start is left out."""
    whole = values[values.size % size :].reshape(-1, size)
    cut = size // 4
    middle: Floats = np.log(np.sort(whole, axis=1)[:, cut : size - cut].mean(axis=1))
    return middle


def _autocorrelation(values: Floats) -> float:
    """Of neighbours, by ranks: a few slow batches do not hide that the others depend on each other."""
    if values.size < FEWEST:
        return 0.0
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    centred = ranks - ranks.mean()
    # Of independent values it is -1/n on average.
    return float((centred[:-1] * centred[1:]).sum() / (centred**2).sum()) + 1 / values.size


@cache
def _ranks_left_out(left: int, right: int) -> int:
    """How many of the smallest (and of the largest) of all pairs lie outside the interval."""
    tail = (1 - CONFIDENCE) / 2
    if max(left, right) > _EXACT:
        mean = left * right / 2
        deviation = math.sqrt(left * right * (left + right + 1) / 12)
        return max(0, math.floor(mean + NormalDist().inv_cdf(tail) * deviation) - 1)
    counts = _rank_sums(left, right)
    cumulative = np.cumsum(counts) / counts.sum()
    return max(0, int(np.searchsorted(cumulative, tail, side="right")) - 1)


def _rank_sums(left: int, right: int) -> Floats:
    """Number of orders of ``left`` and ``right`` values for each value of the Mann-Whitney statistic."""
    # The coefficients of the Gaussian binomial: multiply by 1 - x**(right + i), divide by 1 - x**i.
    size = left * right + 1
    counts = np.zeros(size)
    counts[0] = 1.0
    for i in range(1, left + 1):
        step = right + i
        if step < size:
            counts[step:] -= counts[: size - step].copy()
        for at in range(i, size):
            counts[at] += counts[at - i]
    return counts
