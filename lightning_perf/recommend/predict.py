"""Closed forms: what is left of a step after a change. All times are microseconds per mean step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from lightning_perf.names import Cause
from lightning_perf.recommend.evidence import Evidence

MOST_WORKERS: Final = 16
"""More worker processes per rank than these cost memory and start-up time before they bring anything."""

NEARLY: Final = 1.05
"""A worker process is not worth a step that is shorter by less than this."""

CONTENDED: Final = 1.2
"""How much longer computing takes where all processors compute: they share caches, memory and, as hyperthreads, units.

1.0, 1.2 and 1.4 in three trainings with workers on two hyperthreads."""

HAND_OVER_US: Final = 1_000.0
"""What a batch costs the loop that a worker process has made: reading the queue, opening the tensors' shared memory.

Measured on Linux with batches of some tensors below a megabyte: 0.95 to 1.2 ms in each step of a loader that keeps up.
A device has work queued meanwhile."""

MOST_HAND_OVER_US: Final = 1_500.0
"""A fetch that always takes longer waits for a worker."""

WORKERS_LONGER: Final = 1.17
"""How much longer a step with workers was than the formula says, at most, in two pairs of traces with and without
them: workers share the processors with the loop, hand their batches over, and are not equally fast."""

WARM_REST: Final = 0.05
"""Share of the rest of a step that warm caches save, see :func:`without`."""

WARM_SHARE: Final = 0.1
"""Most that warm caches save, over what the interruption takes itself."""

SOUND_REPLAY: Final = 0.02
"""A replay that misses the measured step by more says nothing about changes."""

_DEVICE_WORKS: Final = frozenset({"validation"})
"""Activities that are also the device's work: idle time tells only a part of what they cost."""


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


def without(evidence: Evidence, us: float, assumption: str, *, high: float = 1.0) -> Saving:
    """A saving of work that comes between the passes of training: without it they find their caches as they left them.

    On a CPU, the rest of the step was shorter by a twentieth (median; up to a fifth, and longer in the two cases that
    touched all weights) without such work in 14 planted cases. A tenth of the work itself is counted at most. A device
    has caches of its own.
    """
    warm_us = min(WARM_SHARE * us, WARM_REST * max(0.0, evidence.step_us - us)) if evidence.device is None else 0.0
    return Saving(us + warm_us, 0.8 * us, max(high * us, us + warm_us), assumption)


def between(low_us: float, us: float, high_us: float, assumption: str) -> Saving:
    """A saving with the ends of its range, in whatever order they come out; none is less than nothing."""
    ends = sorted(max(0.0, end) for end in (low_us, us, high_us))
    return Saving(max(0.0, us), ends[0], ends[-1], assumption)


def saving_with_workers(step_us: float, left_us: float, assumption: str, *, least_us: float | None = None) -> Saving:
    """A saving from more worker processes: what is left of the step is mostly longer than the formula says.

    ``least_us`` is what is left if processors are as fast busy as idle.
    """
    us = step_us - left_us
    high_us = us if least_us is None else step_us - least_us
    return between(min(0.8 * us, step_us - WORKERS_LONGER * left_us), us, high_us, assumption)


def left_with_workers(
    fetch_us: float, rest_us: float, workers: int, *, cpu_us: float, cores: int, contended: float = CONTENDED
) -> float:
    """A step whose batches come from worker processes.

    The loop waits for what is slowest: itself, or its workers, each of which makes every ``workers``-th batch. No
    schedule can be shorter than the processor time of everything over the cores, which get slower when all are busy.

    Args:
        fetch_us: making one batch, in one process.
        rest_us: the step without it.
        workers: worker processes.
        cpu_us: processor time of a step, the batch's included.
        cores: processors for all of it.
        contended: how much longer computing takes on busy processors.
    """
    return max(rest_us, fetch_us / workers, contended * cpu_us / cores)


def workers_needed(fetch_us: float, rest_us: float, *, cores: int, cpu_ratio: float) -> int:
    """The fewest workers that keep up with the loop, or as many as can work at once.

    A worker that mostly waits (for a disk, say) takes ``cpu_ratio`` of a processor. The loop's own processor counts
    too: it waits for the workers if these are slower, and what all of them compute is in :func:`left_with_workers`.
    One that is hardly too slow is enough.
    """
    enough = math.ceil(fetch_us / max(NEARLY * rest_us, 1.0))
    at_once = math.floor(cores / max(cpu_ratio, 1 / MOST_WORKERS))
    return max(1, min(enough, at_once, MOST_WORKERS))


def round_up(number: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ...: numbers that people choose."""
    size = 1
    while True:
        for step in (1, 2, 5):
            if step * size >= number:
                return step * size
        size *= 10


def host_us(evidence: Evidence, cause: Cause, activity: str | None = None) -> float:
    """What the host spent per recorded step in a trace with this cause, or in this activity whatever its cause."""
    shares = evidence.window.host if evidence.window is not None else []
    spent = sum(
        share.time_us for share in shares if (share.cause == cause if activity is None else share.activity == activity)
    )
    return spent / max(1, evidence.steps_recorded)


def exposed(
    evidence: Evidence, cause: Cause, spent_us: float, *, activity: str | None = None, calls: float = 1.0
) -> float:
    """The part of the host's time that a step gets shorter by without it.

    Without a device that is all of it. A device has work queued while the host does something else: what the host then
    spends costs nothing. The trace tells which share of it does: what the replay of the window saves without it, or how
    long the device was idle for it, over what the host spent in the same window. A share, because how often something
    happens in the window is not how often it happens in the run. For what the window did not see,
    :func:`beyond_the_queue` is taken.

    Args:
        evidence: the run or the trace.
        cause: what an idle device waits for while the host does this.
        spent_us: the host's time.
        activity: the name of what the host does, for one activity alone.
        calls: how often it happens in a step.
    """
    window = evidence.window
    if evidence.device is None or window is None:
        return spent_us
    seen_us = host_us(evidence, cause, activity)
    if window.host and not seen_us:
        return beyond_the_queue(evidence, spent_us, calls=calls)
    freed_us = replayed(evidence, cause, activity)
    if freed_us is None:
        if cause in _DEVICE_WORKS:
            return spent_us
        freed_us = _idle_us(evidence, cause, activity)
    return spent_us * min(1.0, freed_us / seen_us) if seen_us else min(spent_us, freed_us)


def beyond_the_queue(evidence: Evidence, spent_us: float, *, calls: float) -> float:
    """The host's time for something rare, without a step of work that a device may have had queued whenever it began.

    Args:
        evidence: the run or the trace.
        spent_us: the host's time per step.
        calls: how often it happens in a step.
    """
    if evidence.device is None:
        return spent_us
    return max(0.0, spent_us - min(1.0, calls) * evidence.step_us)


def replayed(evidence: Evidence, change: str, activity: str | None = None) -> float | None:
    """What the replay of the window saves per step by a change, or by the part of it that is one activity.

    None where there is no replay that can be trusted, or it has not tried that.
    """
    replay = evidence.window.replay if evidence.window is not None else None
    if replay is None or replay.error_ratio > SOUND_REPLAY:
        return None
    rows = {row.changes[0]: row.saving_us_per_step for row in replay.what_if if len(row.changes) == 1}
    single = f"{change}:{activity}"
    if activity is None or single in rows:
        return rows.get(change if activity is None else single)
    several = any(name.startswith(f"{change}:") for name in rows)
    return None if several else rows.get(change)


def _idle_us(evidence: Evidence, cause: Cause, activity: str | None) -> float:
    """Idle time of the device per recorded step with a cause, or during an activity whatever its cause."""
    measured = evidence.device.window if evidence.device is not None else None
    if measured is None:
        return 0.0
    spent = sum(
        share.idle_us
        for share in measured.idle_shares
        if (share.cause == cause if activity is None else share.activity == activity)
    )
    return spent / max(1, measured.steps)
