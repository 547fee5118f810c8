"""A window of host and devices as costs and what waits for what, and how it runs.

Every operation and every blocking call gets limits before which it cannot begin or end. None of them is later than what
was observed, and one is exactly that: run with the costs of the trace, the model gives back the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Floats, Int64s
from lightning_perf.measure.replay_host import Booleans, HostTime

NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations in an order in which each comes after all that it waits for. Times are nanoseconds.

    An operation begins ``latency`` after the host came to its ``anchor`` (at ``known``, where that was before the
    window or it has no anchor), ``gap`` after the one ``before`` it on its stream and ``rest`` after another one that
    it ``awaits``, whichever is last. ``step`` is the complete step in which it was launched on the measured device,
    ``doing`` the code of what the host did then, see :meth:`HostTime.doing`. What was launched before the window is
    ``history``: no change applies to it. Copies that were ``staged`` came out of pageable memory in a call that waited.
    What was ``late`` began as soon as its launch allowed.
    """

    rows: Int64s
    duration: Floats
    anchor: Int64s
    known: Floats
    latency: Floats
    before: Int64s
    gap: Floats
    awaits: Int64s
    rest: Floats
    step: Int64s
    doing: Int64s
    history: Booleans
    staged: Booleans
    late: Booleans

    def __len__(self) -> int:
        return int(self.rows.size)


@dataclass(frozen=True, slots=True)
class Waits:
    """Blocking calls by end: each takes its ``own`` time, and ends ``rest`` after the operation that it ``awaits``.

    ``begin`` and ``end`` are anchors, ``position`` is the number of operations that come before the end, ``doing`` is
    the code of what the host does, see :meth:`HostTime.doing`.
    """

    rows: Int64s
    begin: Int64s
    end: Int64s
    position: Int64s
    own: Floats
    awaits: Int64s
    rest: Floats
    doing: Int64s
    transfer: Booleans
    pageable: Booleans
    profilers: Booleans


@dataclass(frozen=True, slots=True)
class Model:
    """A window that can be run again.

    ``ends`` are the anchors at which steps end on the host, ``start_ns`` is where the window begins on the device.
    ``latency``, ``gap`` and ``call`` are typical of it.
    """

    operations: Operations
    waits: Waits
    host: HostTime
    first_ns: float
    start_ns: float
    end_ns: float
    ends: Int64s
    steps: int
    latency: float
    gap: float
    call: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run costs; those of the trace, or after a change."""

    factors: Floats
    duration: Floats
    latency: Floats
    gap: Floats
    rest: Floats
    deleted: Booleans
    own: Floats
    waiting: Booleans

    def copy(self) -> Costs:
        """The same, to be changed."""
        return Costs(**{name: getattr(self, name).copy() for name in self.__slots__})


def observed_costs(model: Model) -> Costs:
    """The costs of the trace."""
    work = model.operations
    return Costs(
        factors=model.host.unchanged(),
        duration=work.duration,
        latency=work.latency,
        gap=work.gap,
        rest=work.rest,
        deleted=np.zeros(len(work), dtype=np.bool_),
        own=model.waits.own,
        waiting=model.waits.awaits != NONE,
    )


def run(model: Model, costs: Costs) -> Floats:
    """Run a window and return when its steps end: the host's and the device's part of each; nanoseconds."""
    passed = model.host.passed(costs.factors)
    passed[model.waits.end] = costs.own
    clock = model.first_ns + np.cumsum(passed)
    work = model.operations
    begun = work.anchor != NONE
    held = np.zeros(len(work))
    held[begun] = model.host.interrupted(costs.factors)[: np.count_nonzero(begun)]
    ready = np.where(begun, clock[work.anchor] + costs.latency + np.where(work.late, held, 0.0), work.known)
    segment = np.where(begun, np.searchsorted(model.waits.end, work.anchor, side="right"), 0)
    ends, shifts = _run(model, costs, np.where(costs.deleted, -np.inf, ready), segment, clock)
    host = clock[model.ends] + shifts[np.searchsorted(model.waits.end, model.ends, side="right")]
    mine = np.flatnonzero(work.step != NONE)
    np.maximum.at(host, work.step[mine], ends[mine])
    return np.maximum(np.maximum.accumulate(host), model.start_ns)


def _run(model: Model, costs: Costs, ready: Floats, segment: Int64s, clock: Floats) -> tuple[Floats, Floats]:
    """When operations end, and by how much blocking calls have moved the host's clock after each of them."""
    work, waits = model.operations, model.waits
    columns = list(
        zip(
            ready.tolist(),
            segment.tolist(),
            work.before.tolist(),
            costs.gap.tolist(),
            work.awaits.tolist(),
            costs.rest.tolist(),
            costs.duration.tolist(),
            strict=True,
        )
    )
    ends = [-np.inf] * (len(columns) + 1)  # the last stands for no operation
    shifts = [0.0]
    stops = zip(
        waits.position.tolist(),
        clock[waits.end].tolist(),
        np.where(costs.waiting, waits.awaits, NONE).tolist(),
        waits.rest.tolist(),
        strict=True,
    )
    at = 0
    for position, arrives, awaited, rest in (*stops, (len(columns), 0.0, NONE, 0.0)):
        for place, (soonest, passed, before, gap, other, after, lasts) in enumerate(columns[at:position], at):
            start = soonest + shifts[passed]
            queued = ends[before] + gap
            if queued > start:
                start = queued
            if other >= 0:
                queued = ends[other] + after
                if queued > start:
                    start = queued
            ends[place] = start + lasts
        at = position
        shifts.append(max(shifts[-1], ends[awaited] + rest - arrives))
    return np.array(ends[:-1]), np.array(shifts)
