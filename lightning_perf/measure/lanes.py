"""What the devices and the host of a trace did over time, few enough blocks for a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

import numpy as np

from lightning_perf.decode.trace import Category, Int64s, Trace
from lightning_perf.measure.causes import CODE_OF_KIND, HOST_ACTIVITY
from lightning_perf.measure.collectives import is_collective
from lightning_perf.measure.devices import DeviceWork, WindowIdle
from lightning_perf.measure.gaps import CODE
from lightning_perf.measure.host import Host, distinct
from lightning_perf.measure.intervals import Intervals, union
from lightning_perf.measure.labels import Kind
from lightning_perf.measure.launches import names_where
from lightning_perf.measure.steps import HostStep
from lightning_perf.measure.thinning import changes, highest, kept_cuts, largest, leading, shared
from lightning_perf.measure.timeline import HostLane, IdleLane, Lane, Timeline, WorkKind
from lightning_perf.names import CAUSES

LANE_BLOCKS: Final = 600
"""Most blocks of one stream."""
ALL_BLOCKS: Final = 1_500
"""Most blocks of all streams together."""
LANES: Final = 100
"""Most streams, those with the most work: no figure shows more."""
ALL_GAPS: Final = 1_600
"""Most gaps of all devices together."""
HOST_BLOCKS: Final = 600
NAME_LENGTH: Final = 300
"""Characters of a name that are kept; those of some kernels are longer than a page."""

_KINDS: Final[tuple[WorkKind, ...]] = get_args(WorkKind)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names by number, each once."""

    places: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> int:
        return self.places.setdefault(name[:NAME_LENGTH], len(self.places))

    def of(self, numbers: Int64s, names: Sequence[str]) -> list[int]:
        """Places of names that are given by other numbers."""
        known = {number: self.place(names[number]) for number in dict.fromkeys(numbers.tolist())}
        return [known[number] for number in numbers.tolist()]


@dataclass(frozen=True, slots=True)
class _Stream:
    """Operations of one stream by start, cut where the range ends; ``covered`` is when any of them ran."""

    device: str
    name: str
    rows: Int64s
    start_ns: Int64s
    length_ns: Int64s
    covered: Intervals


def measure_timeline(
    trace: Trace, work: Sequence[DeviceWork], idle: Sequence[WindowIdle], host: Host, steps: Sequence[HostStep]
) -> Timeline | None:
    """What devices and host did over the complete steps, or None where nothing is to be drawn.

    The range reaches from the first complete step's start to the end of the last device's window. Without complete
    steps it is the host's recorded time, and without a host the devices' span.

    Args:
        trace: the trace.
        work: its devices.
        idle: their idle time.
        host: the host.
        steps: the trace's steps.
    """
    start_ns, end_ns = _range(idle, host, steps)
    if end_ns <= start_ns:
        return None
    names = _Names()
    streams = [stream for device in work for stream in _streams(trace, device, start_ns, end_ns)]
    most_work = largest(np.array([stream.covered.total for stream in streams], dtype=np.int64), LANES)
    streams = [streams[place] for place in most_work.tolist()]
    blocks = shared([len(stream.covered) for stream in streams], most=LANE_BLOCKS, total=ALL_BLOCKS)
    lanes = [_lane(trace, stream, limit, names) for stream, limit in zip(streams, blocks, strict=True)]
    idle_lanes = _idle_lanes(work, idle, host, names)
    host_lane = _host_lane(host, steps, start_ns, end_ns, names)
    return Timeline(
        start_us=start_ns / 1000,
        end_us=end_ns / 1000,
        names=list(names.places),
        lanes=lanes,
        idle=idle_lanes,
        host=host_lane,
    )


def _range(idle: Sequence[WindowIdle], host: Host, steps: Sequence[HostStep]) -> tuple[int, int]:
    """Start and end of what is drawn; they are the same where nothing is."""
    complete = [step for step in steps if step.complete]
    times = [time for one in idle for time in (one.start_ns, one.end_ns)]
    times += [time for step in complete for time in (step.start_ns, step.end_ns)]
    if not times and host.rows.size:
        trace = host.trace
        times = [int(trace.start_ns[host.rows].min()), int(trace.end_ns[host.rows].max())]
    return min(times, default=0), max(times, default=0)


def _streams(trace: Trace, work: DeviceWork, start_ns: int, end_ns: int) -> list[_Stream]:
    """The streams of a device that worked in a range; where the trace tells none, the threads drawn for them."""
    start = np.maximum(trace.start_ns[work.rows], start_ns)
    length = np.minimum(trace.end_ns[work.rows], end_ns) - start
    rows, start, length = (column[length > 0] for column in (work.rows, start, length))
    of_stream = trace.stream[rows]
    if (of_stream < 0).any():
        of_stream = np.where(of_stream >= 0, of_stream, _as_streams(trace.threads)[trace.thread[rows]])
    order = np.argsort(of_stream, kind="stable")
    firsts = np.flatnonzero(changes(of_stream[order]))
    longest = largest(np.add.reduceat(length[order], firsts) if firsts.size else firsts, LANES)
    lasts = np.append(firsts[1:], order.size)
    found = []
    for first, last in zip(firsts[longest].tolist(), lasts[longest].tolist(), strict=True):
        mine = order[first:last]
        number = int(of_stream[mine[0]])
        found.append(
            _Stream(
                device=str(work.index),
                name=str(number) if number >= 0 else trace.threads[-1 - number],
                rows=rows[mine],
                start_ns=start[mine],
                length_ns=length[mine],
                covered=union(start[mine], start[mine] + length[mine]),
            )
        )
    return found


def _as_streams(threads: Sequence[str]) -> Int64s:
    """The stream whose number each thread has for a name; a negative number of its own for any other name."""
    return np.array(
        [
            int(name) if name.isdecimal() and len(name) < 19 and str(int(name)) == name else -1 - place
            for place, name in enumerate(threads)
        ],
        dtype=np.int64,
    )


def _lane(trace: Trace, stream: _Stream, limit: int, names: _Names) -> Lane:
    """A stream in a limited number of blocks: its longest gaps stay."""
    covered = stream.covered
    cuts = largest(covered.starts[1:] - covered.ends[:-1], limit - 1) + 1
    firsts = np.concatenate(([0], cuts))
    starts, ends = covered.starts[firsts], covered.ends[np.concatenate((cuts, [len(covered)])) - 1]
    block = np.searchsorted(starts, stream.start_ns, side="right") - 1  # ascending, as the starts are
    kind = leading(block, _kinds(trace, stream.rows), stream.length_ns)
    longest = highest(block, stream.length_ns)
    return Lane(
        device=stream.device,
        stream=stream.name,
        start_us=_microseconds(starts),
        duration_us=_microseconds(ends - starts),
        busy_us=_microseconds(np.add.reduceat(covered.lengths, firsts)),
        kind=[_KINDS[code] for code in kind.tolist()],
        longest=names.of(trace.name_id[stream.rows[longest]].astype(np.int64), trace.names),
    )


def _kinds(trace: Trace, rows: Int64s) -> Int64s:
    """What device operations do, as places in the list of kinds."""
    copies = (trace.category[rows] == Category.MEMCPY) | (trace.category[rows] == Category.MEMSET)
    communicates = names_where(trace, rows, is_collective)[trace.name_id[rows]]
    communication, copy, compute = (_KINDS.index(kind) for kind in ("communication", "copy", "compute"))
    return np.where(communicates, communication, np.where(copies, copy, compute))


def _idle_lanes(work: Sequence[DeviceWork], idle: Sequence[WindowIdle], host: Host, names: _Names) -> list[IdleLane]:
    """The longest gaps of every device that was idle."""
    activities = (HOST_ACTIVITY, *host.activities[1:])
    devices = [(device, one.explained.drawn) for device, one in zip(work, idle, strict=True) if len(one.gaps)]
    limits = shared([drawn.start_ns.size for _, drawn in devices], most=ALL_GAPS, total=ALL_GAPS)
    lanes = []
    for (device, drawn), limit in zip(devices, limits, strict=True):
        length = drawn.end_ns - drawn.start_ns
        kept = largest(length, limit)
        lanes.append(
            IdleLane(
                device=str(device.index),
                start_us=_microseconds(drawn.start_ns[kept]),
                duration_us=_microseconds(length[kept]),
                cause=[CAUSES[code] for code in drawn.cause[kept].tolist()],
                activity=names.of(drawn.activity[kept], activities),
            )
        )
    return lanes


def _host_lane(host: Host, steps: Sequence[HostStep], start_ns: int, end_ns: int, names: _Names) -> HostLane | None:
    """The main thread over a range, in a limited number of blocks: long activities and long blocks stay."""
    if host.main is None:
        return None
    start, cause, activity = _host_blocks(host, steps, start_ns, end_ns)
    length = np.diff(start, append=end_ns)
    firsts = kept_cuts(length, np.cumsum(changes(activity)) - 1, HOST_BLOCKS)
    block = np.repeat(np.arange(firsts.size), np.diff(firsts, append=start.size))
    main = leading(block, activity, length)
    during = activity == main[block]
    main_cause = leading(block[during], cause[during], length[during])
    return HostLane(
        start_us=_microseconds(start[firsts]),
        duration_us=_microseconds(np.diff(start[firsts], append=end_ns)),
        cause=[CAUSES[code] for code in main_cause.tolist()],
        activity=names.of(main, (HOST_ACTIVITY, *host.activities[1:])),
    )


def _host_blocks(host: Host, steps: Sequence[HostStep], start_ns: int, end_ns: int) -> tuple[Int64s, Int64s, Int64s]:
    """Start, cause and activity of all that the main thread did one after the other.

    As for idle time, the interpreter is what runs where nothing is recorded, and outside all steps nobody knows.
    """
    line = host.together(host.main)
    within = union(
        np.array([step.start_ns for step in steps], dtype=np.int64),
        np.array([step.end_ns for step in steps], dtype=np.int64),
    )
    times = distinct(line.times, within.starts, within.ends)
    inner = times[np.searchsorted(times, start_ns, side="right") : np.searchsorted(times, end_ns, side="left")]
    start = np.concatenate((np.array([start_ns], dtype=np.int64), inner))
    place = line.at(start)
    kind, activity = line.kind[place].astype(np.int64), line.activity[place].astype(np.int64)
    cause = CODE_OF_KIND[np.where(kind == Kind.NOTHING, int(Kind.PYTHON), kind)]
    if len(within):
        begun = np.searchsorted(within.starts, start, side="right")
        outside = begun == np.searchsorted(within.ends, start, side="right")
        cause = np.where(outside & (kind == Kind.NOTHING), CODE["between_steps"], cause)
    changed = changes(cause) | changes(activity)
    return start[changed], cause[changed], activity[changed]


def _microseconds(times_ns: Int64s) -> list[float]:
    """Nanoseconds as microseconds: numbers with no more than three decimals."""
    microseconds: list[float] = (times_ns / 1000).tolist()
    return microseconds
