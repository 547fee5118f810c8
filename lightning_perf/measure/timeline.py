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

    Operations that touch or overlap are one block, and so are those with the shortest gaps between them, as many as it
    takes to have few enough: the longest gaps stay. ``busy_us`` is how much of ``duration_us`` the stream worked.
    ``kind`` is that of most of the operations' time, ``longest`` the place of the longest one's name in
    ``Timeline.names``. ``stream`` is the stream's number; where the trace has none, the thread that it draws.
    """

    device: str
    stream: str
    start_us: list[float]
    duration_us: list[float]
    busy_us: list[float]
    kind: list[WorkKind]
    longest: list[int]


class IdleLane(Record, frozen=True, kw_only=True):
    """The longest gaps of a device's window in the order of their starts, each with its largest share.

    They are those of ``DeviceWindow``. The other gaps are not here, nor what lies before and after the device's window.
    """

    device: str
    start_us: list[float]
    duration_us: list[float]
    cause: list[Cause]
    activity: list[int]


class HostLane(Record, frozen=True, kw_only=True):
    """What the thread that runs the loop did, one after the other, with nothing between the blocks.

    A block's ``cause`` is what an idle device would have waited for then (``between_steps`` where nothing is recorded
    outside all steps), and ``activity`` the place in ``Timeline.names`` of what the host was in. Neighbours are one
    block where there would be too many, the shortest first. The activity is then that of most of the block, the cause
    that of most of this activity's time.
    """

    start_us: list[float]
    duration_us: list[float]
    cause: list[Cause]
    activity: list[int]


class Timeline(Record, frozen=True, kw_only=True):
    """Devices and host over the complete steps, or over the recorded time where there are none.

    Lanes come by device and stream, those with the most work if there are very many. ``names`` are those of operations
    and activities, each once and cut to 300 characters.
    """

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
