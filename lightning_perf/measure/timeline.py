"""What the figures of a window draw over time, thinned until it fits a screen: records, no arithmetic.

Times are microseconds from the trace's first event, as everywhere in an ``Analysis``.
"""

from __future__ import annotations

from typing import Literal

from lightning_perf.names import Cause
from lightning_perf.runinfo import Record

WorkKind = Literal["compute", "communication", "copy"]


class Lane(Record, frozen=True, kw_only=True):
    """What one stream of a device did: blocks of work in the order of their starts, one entry of each list per block.

    Operations with short gaps between them are one block, as many as it takes to have few enough: ``busy_us`` is how
    much of ``duration_us`` the stream worked. ``kind`` is that of most of this time, ``longest`` the place of the
    longest operation's name in ``Timeline.names``.
    """

    device: str
    stream: str
    start_us: list[float]
    duration_us: list[float]
    busy_us: list[float]
    kind: list[WorkKind]
    longest: list[int]


class IdleLane(Record, frozen=True, kw_only=True):
    """The longest gaps of a device in the order of their starts, each with what caused most of it."""

    device: str
    start_us: list[float]
    duration_us: list[float]
    cause: list[Cause]
    activity: list[int]


class HostLane(Record, frozen=True, kw_only=True):
    """What the thread that runs the loop did, one after the other, with nothing between the blocks.

    A block's ``cause`` is what an idle device would have waited for then, and ``activity`` the place in
    ``Timeline.names`` of what the host was in; both are those of most of the block.
    """

    start_us: list[float]
    duration_us: list[float]
    cause: list[Cause]
    activity: list[int]


class Timeline(Record, frozen=True, kw_only=True):
    """Devices and host of a window over time. ``names`` are those of operations and activities, each once."""

    start_us: float
    end_us: float
    names: list[str]
    lanes: list[Lane]
    idle: list[IdleLane]
    host: HostLane | None


class MemoryCurve(Record, frozen=True, kw_only=True):
    """Memory of a device over time, thinned so that peaks remain; entries of the lists belong together.

    For the host, and in traces without totals, ``allocated_bytes`` counts from where recording began
    (``since_start``). ``reserved_bytes`` is None where the trace does not tell.
    """

    device: str
    time_us: list[float]
    allocated_bytes: list[int]
    reserved_bytes: list[int] | None
    since_start: bool
