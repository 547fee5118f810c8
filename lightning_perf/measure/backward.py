"""Which operator of the forward pass made the gradient node that an operator of the backward pass runs.

torch counts gradient nodes per thread. It writes the count at an operator's start as its ``Sequence number``, so
several operators in a row have the same, and only the last of them made that node: kineto draws its arrows between
the passes by the same rule (torch/csrc/profiler/collection.cpp, ``ForwardBackwardLinks``). Operators of the backward
pass have their node's number and torch's own number of the thread that made it, which is no thread id of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Category, Int64s, Trace
from lightning_perf.measure.nesting import NO_RANGE, Nesting, nest, thread_of
from lightning_perf.measure.tally import BackwardWork, DeviceCalls

NO_FORWARD: Final = -1


@dataclass(frozen=True, slots=True)
class Backward:
    """Operators of the backward pass and the one of the forward pass that made the node of each: rows, ascending."""

    rows: Int64s
    forward: Int64s

    def __len__(self) -> int:
        return int(self.rows.size)

    def forward_of(self, rows: Int64s) -> Int64s:
        """Row of the operator that made the node of each of some rows; :data:`NO_FORWARD` for others than ours."""
        if not len(self):
            return np.full(rows.size, NO_FORWARD, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
        return np.where(self.rows[place] == rows, self.forward[place], NO_FORWARD)


def match_backward(trace: Trace) -> Backward:
    """Match the operators of the backward pass whose number an earlier operator of their forward thread has.

    torch's number of a forward thread stands for the thread of the trace whose operators match most. Where two
    match equally well the trace does not tell, and none is matched.
    """
    numbered = (trace.category == Category.CPU_OP) & (trace.sequence >= 0)
    forward = np.flatnonzero(numbered & (trace.forward_thread == 0))
    backward = np.flatnonzero(numbered & (trace.forward_thread > 0))
    if not forward.size or not backward.size:
        return Backward(rows=forward[:0], forward=forward[:0])
    made = np.full(backward.size, NO_FORWARD, dtype=np.int64)
    threads, processes = thread_of(trace, forward), trace.process[forward]
    numbers, makers = np.unique(trace.forward_thread[backward], return_inverse=True)
    makers = trace.process[backward] * np.int64(numbers.size) + makers.reshape(-1)
    for maker in np.unique(makers).tolist():
        mine = np.flatnonzero(makers == maker)
        candidates = [
            _last_begun(trace, forward[threads == thread], backward[mine])
            for thread in np.unique(threads[processes == maker // numbers.size]).tolist()
        ]
        ranked = sorted(candidates, key=_matches)
        if ranked and (len(ranked) == 1 or _matches(ranked[-2]) < _matches(ranked[-1])):
            made[mine] = ranked[-1]
    known = made != NO_FORWARD
    return Backward(rows=backward[known], forward=made[known])


def _matches(made: Int64s) -> int:
    return int(np.count_nonzero(made != NO_FORWARD))


def _last_begun(trace: Trace, forward: Int64s, backward: Int64s) -> Int64s:
    """The last of the forward operators that began before each one and has its number. Rows are ordered by start."""
    numbers, place = np.unique(trace.sequence[np.concatenate((forward, backward))], return_inverse=True)
    keys = place.reshape(-1) * np.int64(len(trace)) + np.concatenate((forward, backward))
    made = np.sort(keys[: forward.size])
    found = made[np.maximum(np.searchsorted(made, keys[forward.size :]) - 1, 0)]
    row, number = found % len(trace), found // len(trace)
    matches = (numbers[number] == trace.sequence[backward]) & (row < backward)
    return np.where(matches, row, NO_FORWARD)


def origins(trace: Trace, backward: Backward, nesting: Nesting, rows: Int64s) -> Int64s:
    """Where to ask what events ran in: the events themselves, or what they are the backward pass of.

    Args:
        trace: the trace.
        backward: its :func:`match_backward`.
        nesting: ranges, the operators of ``backward`` among them.
        rows: rows of events.

    Returns:
        One row per event. As long as the innermost range around it is an operator of the backward pass, it is the
        operator that made its node (which the backward pass may have run too, where it computes activations again).
    """
    found: Int64s = rows.copy()
    places = np.arange(rows.size)
    while places.size:
        around = nesting.innermost(trace, found[places])
        places, around = places[around != NO_RANGE], around[around != NO_RANGE]
        made = backward.forward_of(nesting.rows[around])
        places, made = places[made != NO_FORWARD], made[made != NO_FORWARD]
        found[places] = made
    return found


def backward_work(trace: Trace, backward: Backward, calls: DeviceCalls) -> BackwardWork:
    """Host time and device work of the backward pass by operators that made its nodes: each by the innermost match.

    Args:
        trace: the trace.
        backward: its :func:`match_backward`.
        calls: its :func:`~lightning_perf.measure.tally.device_calls`.
    """
    return _work(trace, backward, calls, nest(trace, backward.rows))


def backward_work_around(trace: Trace, backward: Backward, calls: DeviceCalls, ranges: Int64s) -> BackwardWork:
    """The same for the sake of ranges around operators, such as modules: work that has one inside is left out to it.

    Operators of the forward pass that the backward pass ran are replaced by what it is the backward pass of, unless
    one of the ranges is around them.

    Args:
        trace: the trace.
        backward: its :func:`match_backward`.
        calls: its :func:`~lightning_perf.measure.tally.device_calls`.
        ranges: rows of the ranges, ascending.
    """
    nesting = nest(trace, np.union1d(ranges, backward.rows))
    work = _work(trace, backward, calls, nesting)
    return replace(
        work,
        forward=origins(trace, backward, nesting, work.forward),
        aside=backward.rows,
        aside_forward=origins(trace, backward, nesting, backward.forward),
    )


def _work(trace: Trace, backward: Backward, calls: DeviceCalls, nesting: Nesting) -> BackwardWork:
    owner = nesting.innermost(trace, calls.rows)
    owned = owner != NO_RANGE
    device_ns = np.bincount(owner[owned], weights=calls.device_ns[owned], minlength=nesting.rows.size).astype(np.int64)
    made = backward.forward_of(nesting.rows)
    mine = made != NO_FORWARD
    return BackwardWork(
        forward=made[mine],
        host_ns=nesting.self_ns[mine],
        device_ns=device_ns[mine],
        aside=made[:0],
        aside_forward=made[:0],
    )
