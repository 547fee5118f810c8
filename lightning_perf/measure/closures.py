"""The forward and backward pass that an optimizer's step runs itself, where no label tells them apart.

In Lightning's automatic optimization, as with torch's LBFGS, ``Optimizer.step#`` encloses the closure that it calls.
Autograd's events tell where that is: what lies before the last of them is the closure, what follows is the optimizer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Category, Int8s, Int64s, Trace
from lightning_perf.measure.blocking import matching
from lightning_perf.measure.labels import Kind
from lightning_perf.names import LABEL_PREFIX

_STEP: Final = re.compile(r"^Optimizer\.step#")
_LABEL: Final = re.compile(rf"^({LABEL_PREFIX}|\[pl\]|##)")
"""Names of ranges that say what they enclose; ``DistributedDataParallel.forward`` does not enclose the loss."""


class Part(IntEnum):
    """A part of an optimizer's step, in the order in which parts of no time follow each other."""

    UPDATE = 0
    FORWARD = 1
    BACKWARD = 2


@dataclass(frozen=True, slots=True)
class Closures:
    """Rows of the steps that run a closure, and which part runs from each time to the next."""

    rows: Int64s
    times: Int64s
    part: Int8s

    def at(self, times: Int64s) -> Int8s:
        """The part that runs at any times inside the steps."""
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place < 0, np.int8(Part.UPDATE), self.part[place])


def closures(trace: Trace, own: Int8s, rows: Int64s, others: Int64s) -> Closures | None:
    """Find the closures in the optimizer's steps of one thread; None where there are none.

    A backward pass begins with an event of autograd's, and goes on until the last one before the thread runs an
    operator outside of them: that one belongs to the next forward pass, as does what LBFGS computes between two calls
    of its closure. A step with labels inside is left to them. Of steps inside each other, one of autograd's events
    counts for the one that began last.

    Args:
        trace: the trace.
        own: kind of every row of the trace, as its name tells it.
        rows: rows of the thread's events, by start.
        others: rows of all threads' events, by start: autograd has threads of its own.
    """
    optimizer = rows[own[rows] == Kind.OPTIMIZER]
    if optimizer.size == 0:
        return None
    steps = optimizer[matching(trace, optimizer, _STEP)]
    passes = rows[own[rows] == Kind.BODY]
    labels = trace.start_ns[passes[matching(trace, passes, _LABEL)]]
    steps = steps[_starting(labels, trace.start_ns[steps], trace.end_ns[steps]) == 0]
    start, end = trace.start_ns[steps], trace.end_ns[steps]
    autograd = others[own[others] == Kind.AUTOGRAD]
    autograd = autograd[(trace.duration_ns[autograd] > 0) & (trace.process[autograd] == trace.process[rows[0]])]
    begun = trace.start_ns[autograd]
    owner = _latest_around(start, end, begun)
    inside = owner >= 0
    if not inside.any():
        return None
    owner, begun, ended = owner[inside], begun[inside], trace.end_ns[autograd[inside]]
    if np.any(owner[1:] < owner[:-1]):  # a step inside another one
        order = np.argsort(owner, kind="stable")
        owner, begun, ended = owner[order], begun[order], ended[order]
    # When the events of a step so far have ended: a running maximum for each step.
    shift = owner * int((end - start).max() + 1) - start[owner]
    ended = np.maximum.accumulate(np.minimum(ended, end[owner]) + shift) - shift
    first = np.concatenate(([True], owner[1:] != owner[:-1]))
    last = np.concatenate((first[1:], [True]))
    before = np.where(first, start[owner], np.concatenate(([0], ended[:-1])))
    apart = np.flatnonzero(first | (begun > before))  # not inside the event before
    operators = trace.start_ns[rows[trace.category[rows] == Category.CPU_OP]]
    anew = apart[first[apart] | (_starting(operators, before[apart], begun[apart]) > 0)]
    times = np.concatenate((ended[last], before[anew], begun[anew]))
    part = np.repeat(np.array(Part, dtype=np.int8), [last.sum(), anew.size, anew.size])
    order = np.lexsort((part, times))
    return Closures(rows=steps[owner[first]], times=times[order], part=part[order])


def _starting(times: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """How many of some sorted times lie in each ``[start, end)``."""
    count: Int64s = np.searchsorted(times, end, side="left") - np.searchsorted(times, start, side="left")
    return count


def _latest_around(start: Int64s, end: Int64s, times: Int64s) -> Int64s:
    """Which of some ranges, sorted by start, began last of those around each of some sorted times; -1 if none is."""
    latest = np.full(times.size, -1, dtype=np.int64)
    first, last = np.searchsorted(times, start, side="left"), np.searchsorted(times, end, side="left")
    for place, (one, other) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        latest[one:other] = place
    return latest
