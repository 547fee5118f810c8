"""What is drawn of small traces, written out beside them, and how much of large ones. Times in nanoseconds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure import lanes
from lightning_perf.measure.timeline import HostLane, IdleLane, Lane, Timeline
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved, assert_drawn
from tests.traces import BACKWARD, TraceBuilder, training

TRACES = Path(__file__).parents[2] / "../shared/traces"


def drawn(trace: TraceBuilder, folder: Path) -> Timeline | None:
    return measure_trace(trace.trace(folder)).timeline


def blocks(lane: Lane, names: list[str]) -> list[tuple[float, float, float, str, str]]:
    """Start, duration, busy time, kind and longest operation of each."""
    longest = [names[place] for place in lane.longest]
    return list(zip(lane.start_us, lane.duration_us, lane.busy_us, lane.kind, longest, strict=True))


def host(timeline: Timeline | None) -> list[tuple[float, float, str, str]]:
    """Start, duration, cause and activity of what the host did."""
    assert timeline is not None
    assert timeline.host is not None
    lane, names = timeline.host, timeline.names
    activities = [names[place] for place in lane.activity]
    return list(zip(lane.start_us, lane.duration_us, lane.cause, activities, strict=True))


def test_a_small_training(tmp_path):
    """The last step holds no batch; its device's work ends 100 us after the second step, in the range."""
    timeline = drawn(training(), tmp_path)
    names = ["gemm", "ncclKernel", "data", "host"]
    data, other = names.index("data"), names.index("host")
    assert timeline == Timeline(
        start_us=0,
        end_us=2100,
        names=names,
        lanes=[
            Lane(
                device="0",
                stream="7",
                start_us=[330, 1330],
                duration_us=[200, 200],
                busy_us=[200, 200],
                kind=["compute", "compute"],
                longest=[0, 0],
            ),
            Lane(
                device="0",
                stream="9",
                start_us=[900, 1900],
                duration_us=[200, 200],
                busy_us=[200, 200],
                kind=["communication", "communication"],
                longest=[1, 1],
            ),
        ],
        idle=[
            IdleLane(
                device="0",
                start_us=[0, 530, 1100, 1530],
                duration_us=[330, 370, 230, 370],
                cause=["data_loading", "device_wait", "data_loading", "device_wait"],
                activity=[data, other, data, other],
            )
        ],
        host=HostLane(
            start_us=[0, 10, 210, 300, 400, 1010, 1210, 1300, 1400, 2010],
            duration_us=[10, 200, 90, 100, 610, 200, 90, 100, 610, 90],
            cause=[
                "python",
                "data_loading",
                "python",
                "launch",
                "python",
                "data_loading",
                "python",
                "launch",
                "python",
                "between_steps",
            ],
            activity=[other, data, other, other, other, data, other, other, other, other],
        ),
    )


def stream(*spans: tuple[int, int, str, str]) -> TraceBuilder:
    """A step of 1,000 with operations: start, end, name, category."""
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 10)
    for start, end, name, category in spans:
        trace.kernel(start, end, name=name, cat=category)
    return trace


def test_blocks_of_a_stream_end_at_its_longest_gaps(tmp_path, monkeypatch):
    trace = stream(
        (100, 150, "gemm", "kernel"),
        (150, 200, "add", "kernel"),  # touches
        (210, 280, "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
        (260, 300, "add", "kernel"),  # overlaps
        (400, 410, "ncclAllReduce", "kernel"),
        (430, 500, "Memset (Device)", "gpu_memset"),
        (600, 700, "gemm", "kernel"),
        (999, 1400, "late", "kernel"),  # not launched in the step: ends with the window
    )
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    (lane,) = timeline.lanes
    assert blocks(lane, timeline.names) == [
        (0.1, 0.1, 0.1, "compute", "gemm"),
        (0.21, 0.09, 0.09, "copy", "Memcpy HtoD (Pinned -> Device)"),
        (0.4, 0.01, 0.01, "communication", "ncclAllReduce"),
        (0.43, 0.07, 0.07, "copy", "Memset (Device)"),
        (0.6, 0.1, 0.1, "compute", "gemm"),
        (0.999, 0.001, 0.001, "compute", "late"),
    ]
    monkeypatch.setattr(lanes, "LANE_BLOCKS", 3)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    (lane,) = timeline.lanes
    assert blocks(lane, timeline.names) == [  # of the two gaps of 100 the first one stays
        (0.1, 0.2, 0.19, "compute", "Memcpy HtoD (Pinned -> Device)"),
        (0.4, 0.3, 0.18, "compute", "gemm"),
        (0.999, 0.001, 0.001, "compute", "late"),
    ]


def test_streams_share_the_blocks_and_the_busiest_are_drawn(tmp_path, monkeypatch):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 10)
    for number, count in ((7, 1), (8, 20), (9, 30), (10, 2)):
        for place in range(count):
            trace.kernel(100 + 20 * place, 110 + 20 * place, stream=number, device=number % 2)
    trace.kernel(500, 500, stream=11)  # took no time: nothing to draw
    monkeypatch.setattr(lanes, "ALL_BLOCKS", 15)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    found = [(lane.device, lane.stream, len(lane.start_us)) for lane in timeline.lanes]
    assert found == [("0", "8", 6), ("0", "10", 2), ("1", "7", 1), ("1", "9", 6)]
    monkeypatch.setattr(lanes, "LANES", 2)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    assert [(lane.stream, len(lane.start_us)) for lane in timeline.lanes] == [("8", 7), ("9", 8)]


def test_devices_share_the_gaps(tmp_path, monkeypatch):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 10)
    for device in (0, 1):
        for start, end in ((100, 200), (210, 300), (500, 600)):
            trace.kernel(start, end, device=device, stream=device)
    monkeypatch.setattr(lanes, "ALL_GAPS", 5)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    assert [(lane.device, lane.start_us) for lane in timeline.idle] == [("0", [0.3, 0.6]), ("1", [0, 0.3, 0.6])]


def test_a_stream_without_a_number_is_the_thread_that_is_drawn_for_it(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 10)
    trace.complete("one", 100, 200, cat="kernel", pid=0, tid="stream A", device=0)
    trace.complete("two", 150, 300, cat="kernel", pid=0, tid="stream B", device=0)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    assert sorted((lane.stream, lane.busy_us) for lane in timeline.lanes) == [
        ("stream A", [0.1]),
        ("stream B", [0.15]),
    ]


def test_names_are_cut_and_kept_once(tmp_path):
    long = "x" * 400
    trace = stream((100, 200, long + "1", "kernel"), (300, 400, long + "2", "kernel"), (500, 600, "short", "kernel"))
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    assert timeline.names == [long[:300], "short", "host"]
    assert timeline.lanes[0].longest == [0, 0, 1]


def labelled() -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 1000).range("perf/data", 0, 300).range("perf/forward", 300, 600)
    for start in (310, 330, 350):
        trace.op("aten::mm", start, start + 15)
    return trace.range("perf/backward", 600, 900).op("aten::mm", 700, 720).range("perf/optimizer", 900, 1000)


def test_the_host_in_full(tmp_path):
    assert host(drawn(labelled(), tmp_path)) == [
        (0, 0.3, "data_loading", "data"),
        (0.3, 0.01, "python", "forward"),
        (0.31, 0.015, "launch", "forward"),
        (0.325, 0.005, "python", "forward"),
        (0.33, 0.015, "launch", "forward"),
        (0.345, 0.005, "python", "forward"),
        (0.35, 0.015, "launch", "forward"),
        (0.365, 0.235, "python", "forward"),
        (0.6, 0.1, "python", "backward"),
        (0.7, 0.02, "launch", "backward"),
        (0.72, 0.18, "python", "backward"),
        (0.9, 0.1, "optimizer", "optimizer"),
    ]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (
            6,
            [
                (0, 0.3, "data_loading", "data"),
                (0.3, 0.065, "launch", "forward"),  # 45 of 65
                (0.365, 0.235, "python", "forward"),
                (0.6, 0.12, "python", "backward"),
                (0.72, 0.18, "python", "backward"),
                (0.9, 0.1, "optimizer", "optimizer"),
            ],
        ),
        (
            4,
            [
                (0, 0.3, "data_loading", "data"),
                (0.3, 0.3, "python", "forward"),
                (0.6, 0.3, "python", "backward"),
                (0.9, 0.1, "optimizer", "optimizer"),
            ],
        ),
        (1, [(0, 1, "python", "forward")]),  # three activities are as long
    ],
)
def test_the_host_in_few_blocks(tmp_path, monkeypatch, limit, expected):
    monkeypatch.setattr(lanes, "HOST_BLOCKS", limit)
    assert host(drawn(labelled(), tmp_path)) == expected


def test_the_cause_is_that_of_most_of_the_activity(tmp_path, monkeypatch):
    """Data loading is the longest part of one cause, and forward the longest activity."""
    monkeypatch.setattr(lanes, "HOST_BLOCKS", 1)
    trace = TraceBuilder().step(1, 0, 1000).range("perf/data", 0, 400).range("perf/forward", 400, 1000)
    trace.op("aten::mm", 600, 950)
    assert host(drawn(trace, tmp_path)) == [(0, 1, "launch", "forward")]


def test_without_a_device_the_complete_steps_are_drawn(tmp_path):
    trace = TraceBuilder().op("aten::ones", 0, 50).step(1, 100, 300).op("aten::mm", 150, 200)
    trace.op("aten::zeros", 302, 306).step(2, 310, 400).op("aten::mm", 320, 330).step(3, 400, 420)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    assert (timeline.lanes, timeline.idle) == ([], [])
    assert host(timeline) == [
        (0.1, 0.05, "python", "host"),
        (0.15, 0.05, "launch", "host"),
        (0.2, 0.1, "python", "host"),
        (0.3, 0.002, "between_steps", "host"),
        (0.302, 0.004, "launch", "host"),
        (0.306, 0.004, "between_steps", "host"),
        (0.31, 0.01, "python", "host"),
        (0.32, 0.01, "launch", "host"),
        (0.33, 0.07, "python", "host"),
    ]


def test_without_steps_the_recorded_time_is_drawn(tmp_path):
    trace = TraceBuilder().op("aten::mm", 0, 100).op("aten::mm", 150, 300, tid=BACKWARD)
    assert host(drawn(trace, tmp_path)) == [(0, 0.1, "launch", "host"), (0.1, 0.2, "python", "host")]


def test_without_a_host_the_devices_span_is_drawn(tmp_path):
    trace = TraceBuilder().kernel(0, 100).kernel(300, 400).kernel(350, 500, device=1)
    timeline = drawn(trace, tmp_path)
    assert timeline is not None
    assert (timeline.start_us, timeline.end_us, timeline.host) == (0, 0.5, None)
    assert [lane.device for lane in timeline.lanes] == ["0", "1"]
    assert [lane.start_us for lane in timeline.idle] == [[0.1]]


@pytest.mark.parametrize("trace", [TraceBuilder().op("aten::mm", 5, 5), TraceBuilder().kernel(5, 5)])
def test_nothing_to_draw(tmp_path, trace):
    assert drawn(trace, tmp_path) is None


def real(name: str) -> tuple[int, Timeline | None]:
    window = measure_trace(read_trace(TRACES / name))
    nothing = msgspec.structs.replace(window, timeline=None)
    if window.memory is not None:
        nothing = msgspec.structs.replace(nothing, memory=msgspec.structs.replace(window.memory, curves=[]))
    return len(msgspec.json.encode(window)) - len(msgspec.json.encode(nothing)), window.timeline


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the folder of real traces beside the checkout")
@pytest.mark.parametrize("name", sorted(path.name for path in TRACES.glob("*.gz")))
def test_real_traces_stay_small_and_measure_the_same_again(name):
    size, timeline = real(name)
    assert timeline is not None
    assert 0 < size < 200_000
    assert real(name) == (size, timeline)


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the folder of real traces beside the checkout")
@pytest.mark.parametrize("name", ["v100_ddp_dataloader", "mi300_owlv2_dataloader", "ddp_rank0", "b200_eager"])
def test_the_laws_hold_however_few_blocks_there_may_be(monkeypatch, name):
    trace = read_trace(TRACES / f"{name}.pt.trace.json.gz")
    for limit in ("LANE_BLOCKS", "HOST_BLOCKS"):
        monkeypatch.setattr(lanes, limit, 7)
        monkeypatch.setattr(f"tests.measure.laws.{limit}", 7)
    window = measure_trace(trace)
    assert_conserved(window)
    assert_drawn(trace, window)
