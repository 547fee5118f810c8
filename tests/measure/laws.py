"""What must hold of every window, whatever the trace: nothing is lost and nothing is counted twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Trace
from lightning_perf.measure.analysis import DeviceWindow, TraceMemory, Window
from lightning_perf.measure.lanes import ALL_BLOCKS, ALL_GAPS, HOST_BLOCKS, LANE_BLOCKS, NAME_LENGTH
from lightning_perf.measure.memory import CURVE_POINTS
from lightning_perf.measure.timeline import HostLane, IdleLane, Lane, Timeline


def ns(microseconds: float) -> int:
    """The integer nanoseconds that a figure was divided from."""
    return round(microseconds * 1000)


def assert_conserved(window: Window) -> None:
    """Assert that all parts add up to their wholes, to the nanosecond."""
    assert [step.start_us for step in window.steps] == sorted(step.start_us for step in window.steps)
    assert len({step.number for step in window.steps}) == len(window.steps)
    for step in window.steps:
        if step.phases_us:
            assert sum(map(ns, step.phases_us.values())) == ns(step.duration_us)
            assert all(ns(spent) > 0 for spent in step.phases_us.values())
        assert 0 <= ns(step.data_loading_us) <= ns(step.duration_us)
        assert set(step.device_busy_us) == {device.index for device in window.devices}
        assert all(0 <= ns(busy) <= ns(step.duration_us) for busy in step.device_busy_us.values())
    for device in window.devices:
        busy, idle = ns(device.busy_us), ns(device.idle_us)
        compute, communication = ns(device.compute_us), ns(device.communication_us)
        assert device.operations > 0
        assert busy + idle == ns(device.span_us)
        assert (device.gaps == 0) == (idle == 0)
        assert 0 <= ns(device.exposed_communication_us) <= communication <= busy
        assert max(compute, ns(device.copy_us)) <= busy <= ns(window.duration_us)
        assert compute + ns(device.exposed_communication_us) <= busy
        assert device.window is not None
        assert ns(device.window.busy_us) + ns(device.window.idle_us) == ns(device.window.duration_us)
        assert ns(device.window.busy_us) <= busy
        assert (device.window.gaps == 0) == (ns(device.window.idle_us) == 0)
        assert ns(device.window.largest_gap_us) * device.window.gaps >= ns(device.window.idle_us)
        assert device.window.steps in (0, sum(step.complete for step in window.steps))
        assert_explained(device.window)
    if window.timeline is not None:
        assert_timeline(window, window.timeline)
    if window.memory is not None:
        assert_curves(window.memory)


def assert_explained(window: DeviceWindow) -> None:
    """Every idle nanosecond has one cause and one activity, in total and in every gap that is listed."""
    assert sum(map(ns, window.idle_causes_us.values())) == ns(window.idle_us)
    assert all(ns(spent) > 0 for spent in window.idle_causes_us.values())
    by_cause: Counter[str] = Counter()
    for share in window.idle_shares:
        by_cause[share.cause] += ns(share.idle_us)
    assert by_cause == {cause: ns(spent) for cause, spent in window.idle_causes_us.items()}
    assert len(window.largest_gaps) == min(20, window.gaps)
    assert [gap.duration_us for gap in window.largest_gaps] == sorted(
        (gap.duration_us for gap in window.largest_gaps), reverse=True
    )
    for gap in window.largest_gaps:
        assert sum(ns(share.idle_us) for share in gap.shares) == ns(gap.duration_us)
        assert (gap.cause, gap.activity) == (gap.shares[0].cause, gap.shares[0].activity)
    if window.largest_gaps:
        assert window.largest_gaps[0].duration_us == window.largest_gap_us


def assert_timeline(window: Window, timeline: Timeline) -> None:
    """What is drawn is the window: few blocks, in order, none over another, and as long as what they stand for."""
    start, end = ns(timeline.start_us), ns(timeline.end_us)
    assert start < end
    used = {place for lane in timeline.lanes for place in lane.longest}
    used |= {place for lane in timeline.idle for place in lane.activity}
    used |= set(timeline.host.activity) if timeline.host is not None else set()
    assert used == set(range(len(timeline.names)))
    assert len(set(timeline.names)) == len(timeline.names)
    assert all(len(name) <= NAME_LENGTH for name in timeline.names)
    assert sum(len(lane.start_us) for lane in timeline.lanes) <= ALL_BLOCKS
    assert sum(len(lane.start_us) for lane in timeline.idle) <= ALL_GAPS
    places = [(lane.device, lane.stream) for lane in timeline.lanes]
    assert len(set(places)) == len(places)
    for lane in timeline.lanes:
        assert_lane(lane, start, end)
    assert [lane.device for lane in timeline.idle] == [
        device.index for device in window.devices if device.window is not None and device.window.gaps
    ]
    for device in window.devices:
        assert device.window is not None
        lanes = [lane for lane in timeline.lanes if lane.device == device.index]
        idle = next((lane for lane in timeline.idle if lane.device == device.index), None)
        busy = [sum(map(ns, lane.busy_us)) for lane in lanes]
        assert max(busy, default=0) <= ns(device.busy_us)
        assert ns(device.window.busy_us) <= sum(busy)
        if idle is not None:
            assert_idle_lane(idle, lanes, device.window, timeline)
    if timeline.host is not None:
        assert_host_lane(timeline.host, window, timeline)


def assert_lane(lane: Lane, start: int, end: int) -> None:
    """Blocks of a stream are in order, lie in the range, and have time between them."""
    spans = drawn(lane.start_us, lane.duration_us)
    assert 0 < len(spans) == len(lane.busy_us) == len(lane.kind) == len(lane.longest) <= LANE_BLOCKS
    assert start <= spans[0][0]
    assert spans[-1][1] <= end
    assert all(one[1] < other[0] for one, other in pairwise(spans))
    assert all(0 < ns(busy) <= until - since for busy, (since, until) in zip(lane.busy_us, spans, strict=True))


def assert_idle_lane(idle: IdleLane, lanes: list[Lane], window: DeviceWindow, timeline: Timeline) -> None:
    """The longest gaps, each once, with the causes of the list; no stream of the device is busy in one."""
    gaps = drawn(idle.start_us, idle.duration_us)
    assert 0 < len(gaps) == len(idle.cause) == len(idle.activity)
    assert len(gaps) == min(800, window.gaps) or len(timeline.idle) > 1
    assert ns(timeline.start_us) <= gaps[0][0]
    assert gaps[-1][1] <= ns(timeline.end_us)
    assert all(one[1] <= other[0] for one, other in pairwise(gaps))
    lengths = sorted((until - since for since, until in gaps), reverse=True)
    assert sum(lengths) == ns(window.idle_us) if len(gaps) == window.gaps else sum(lengths) < ns(window.idle_us)
    assert lengths[:20] == [ns(gap.duration_us) for gap in window.largest_gaps][: len(lengths)]
    listed = {gap.start_us: (gap.duration_us, gap.cause, gap.activity[:NAME_LENGTH]) for gap in window.largest_gaps}
    for since, *gap, activity in zip(idle.start_us, idle.duration_us, idle.cause, idle.activity, strict=True):
        assert listed.pop(since, None) in (None, (*gap, timeline.names[activity]))
    assert not listed or len(gaps) < len(window.largest_gaps)
    for lane in lanes:
        for (since, until), busy in zip(drawn(lane.start_us, lane.duration_us), lane.busy_us, strict=True):
            idle_ns = sum(max(0, min(until, gap[1]) - max(since, gap[0])) for gap in gaps)
            assert idle_ns <= until - since - ns(busy)


def assert_host_lane(host: HostLane, window: Window, timeline: Timeline) -> None:
    """The host's blocks add up to the range; where none were merged, they say of the steps what the shares say."""
    blocks = drawn(host.start_us, host.duration_us)
    assert 0 < len(blocks) == len(host.cause) == len(host.activity) <= HOST_BLOCKS
    assert (blocks[0][0], blocks[-1][1]) == (ns(timeline.start_us), ns(timeline.end_us))
    assert all(one[1] == other[0] for one, other in pairwise(blocks))
    assert all(since < until for since, until in blocks)
    if len(blocks) == HOST_BLOCKS:
        return
    spent: Counter[tuple[str, str]] = Counter()
    for (since, until), cause, activity in zip(blocks, host.cause, host.activity, strict=True):
        for step in window.steps:
            first, last = ns(step.start_us), ns(step.start_us) + ns(step.duration_us)
            if step.complete and min(until, last) > max(since, first):
                spent[cause, timeline.names[activity]] += min(until, last) - max(since, first)
    shares: Counter[tuple[str, str]] = Counter()
    for share in window.host:
        shares[share.cause, share.activity[:NAME_LENGTH]] += ns(share.time_us)
    assert spent == shares


def assert_curves(memory: TraceMemory) -> None:
    """Curves reach the peaks."""
    curves = {curve.device: curve for curve in memory.curves}
    assert len(curves) == len(memory.curves)
    assert set(curves) == set(memory.peaks) | ({"cpu"} if memory.cpu_growth_bytes is not None else set())
    for device, curve in curves.items():
        assert 0 < len(curve.time_us) == len(curve.allocated_bytes) <= CURVE_POINTS
        assert curve.time_us == sorted(curve.time_us)
        assert curve.since_start == (device not in memory.peak_allocated_bytes)
        if device == "cpu":
            assert max(0, *curve.allocated_bytes, 0) == memory.cpu_growth_bytes
            continue
        highest = max(curve.allocated_bytes)
        assert curve.time_us[curve.allocated_bytes.index(highest)] == memory.peaks[device].time_us
        assert memory.peak_allocated_bytes.get(device, highest) == highest
        if curve.reserved_bytes is not None:
            assert max(curve.reserved_bytes) == memory.peak_reserved_bytes[device]


def assert_drawn(trace: Trace, window: Window) -> None:
    """Every stream that worked in the range is drawn, for as long as any of its operations ran, and where they did."""
    timeline = window.timeline
    if timeline is None:
        return
    operations: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    devices: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in (trace.category <= LAST_DEVICE_OPERATION).nonzero()[0].tolist():
        since = max(int(trace.start_ns[row]), ns(timeline.start_us))
        until = min(int(trace.end_ns[row]), ns(timeline.end_us))
        if since < until:
            operations[str(trace.device[row]), str(trace.stream[row])].append((since, until))
            devices[str(trace.device[row])].append((since, until))
    assert {(lane.device, lane.stream) for lane in timeline.lanes} == set(operations)
    for lane in timeline.lanes:
        busy = covered(operations[lane.device, lane.stream])
        assert sum(map(ns, lane.busy_us)) == sum(until - since for since, until in busy)
        blocks = drawn(lane.start_us, lane.duration_us)
        assert {block[0] for block in blocks} <= {since for since, _ in busy}
        assert {block[1] for block in blocks} <= {until for _, until in busy}
        gaps = sorted((other[0] - one[1] for one, other in pairwise(busy)), reverse=True)
        assert sorted((other[0] - one[1] for one, other in pairwise(blocks)), reverse=True) == gaps[: len(blocks) - 1]
    for idle in timeline.idle:
        gaps_and_work = [*drawn(idle.start_us, idle.duration_us), *covered(devices[idle.device])]
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(gaps_and_work)))


def drawn(start_us: list[float], duration_us: list[float]) -> list[tuple[int, int]]:
    """Start and end of every block, nanoseconds."""
    return [(ns(start), ns(start) + ns(length)) for start, length in zip(start_us, duration_us, strict=True)]


def covered(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of spans, one after the other."""
    found: list[tuple[int, int]] = []
    for since, until in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((since, until))
    return found
