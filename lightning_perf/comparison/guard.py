"""Limits that a candidate must keep: for continuous integration."""

from __future__ import annotations

import re
from typing import Final

from lightning_perf.comparison.records import Comparison
from lightning_perf.errors import CompareError, ConfigError
from lightning_perf.runinfo import Record

STEP_TIME: Final = "step_time"
"""The metric whose limit is held against the estimated change of the typical step, and only if there is one."""

_LIMIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


class Breach(Record, frozen=True, kw_only=True):
    """A metric that got worse by more than its limit; both are ratios (0.05 is 5 %)."""

    metric: str
    change: float
    limit: float


def limit_of(text: str) -> float:
    """``"5%"`` as 0.05.

    Raises:
        ConfigError: it is no percentage.
    """
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no limit; expected a percentage such as 5%")
    return float(match.group(1)) / 100


def breaches(comparison: Comparison, limits: dict[str, float]) -> list[Breach]:
    """The limits that the candidate does not keep.

    A step time counts as worse by the estimated change of the typical step, if the data can show one. Other metrics
    are single values, which are compared as they are; ratios by their difference.

    Raises:
        CompareError: a limited metric is not known on both sides, or there are too few steps for a verdict.
    """
    metrics = {metric.name: metric for metric in comparison.metrics}
    found = []
    for name, limit in limits.items():
        if name == STEP_TIME:
            worse = _step_time(comparison)
        else:
            metric = metrics.get(name)
            if metric is None or metric.change is None:
                known = ", ".join(one.name for one in comparison.metrics if one.change is not None)
                raise CompareError(
                    f"{name} is not known on both sides, so its limit cannot be held; known are: {known}"
                )
            worse = metric.change if metric.lower_is_better else -metric.change
        if worse > limit:
            found.append(Breach(metric=name, change=worse, limit=limit))
    return found


def _step_time(comparison: Comparison) -> float:
    change = comparison.step
    if change.verdict is None or change.ratio is None:
        raise CompareError("there are too few steps for a verdict on the step time; record at least 4 on each side")
    return change.ratio - 1 if change.verdict == "slower" else 0.0
