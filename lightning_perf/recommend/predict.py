"""Closed forms: what is left of a step after a change. All times are microseconds per mean step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_WORKERS: Final = 16
"""More worker processes per rank than these cost memory and start-up time before they bring anything."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A prediction: the most likely value, the range that it lies in, and what it rests on."""

    us: float
    low_us: float
    high_us: float
    assumption: str


def saving(us: float, assumption: str, *, low: float = 0.8, high: float = 1.0) -> Saving:
    """A saving whose range is given as shares of it."""
    return Saving(us, low * us, high * us, assumption)


def left_with_workers(fetch_us: float, rest_us: float, workers: int, *, cpu_us: float, cores: int) -> float:
    """A step whose batches come from worker processes.

    The loop waits for what is slowest: itself, or its workers, each of which makes every ``workers``-th batch. No
    schedule can be shorter than the processor time of everything over the cores.

    Args:
        fetch_us: making one batch, in one process.
        rest_us: the step without it.
        workers: worker processes.
        cpu_us: processor time of a step, the batch's included.
        cores: processors for all of it.
    """
    return max(rest_us, fetch_us / workers, cpu_us / cores)


def workers_needed(fetch_us: float, rest_us: float, *, cores: int, cpu_ratio: float) -> int:
    """The fewest workers that keep up with the loop, or as many as can work at once.

    One processor is the loop's own. A worker that mostly waits (for a disk, say) takes ``cpu_ratio`` of another.
    """
    enough = math.ceil(fetch_us / max(rest_us, 1.0))
    at_once = math.floor(max(1, cores - 1) / max(cpu_ratio, 1 / MOST_WORKERS))
    return max(1, min(enough, at_once, MOST_WORKERS))
