"""What the host did when memory peaked, and growth of small traces, written out beside them. Times in nanoseconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.analysis import MemoryPeak, TraceMemory
from lightning_perf.measure.memory import CURVE_POINTS
from lightning_perf.measure.timeline import MemoryCurve
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_curves
from tests.traces import BACKWARD, TraceBuilder

TRACES = Path(__file__).parents[2] / "../shared/traces"


def measured(trace: TraceBuilder, folder: Path) -> TraceMemory:
    memory = measure_trace(trace.trace(folder)).memory
    assert memory is not None
    return memory


def test_the_moment_of_the_peak(tmp_path):
    """The backward pass allocates on its own thread, inside a phase that the main thread's label names."""
    trace = TraceBuilder().step(4, 0, 1000).step(5, 1000, 2000)
    trace.range("perf/forward", 1000, 1400).range("perf/forward/encoder.1", 1100, 1300).op("aten::mm", 1150, 1250)
    trace.range("perf/backward", 1400, 1900).op("aten::empty", 1500, 1800).op("MmBackward0", 1500, 1800, tid=BACKWARD)
    trace.op("aten::mm", 1550, 1700, tid=BACKWARD).op("aten::empty", 1600, 1600, tid=BACKWARD)
    trace.memory(1200, 100, allocated=100, reserved=400).memory(1600, 200, allocated=300, reserved=480, tid=BACKWARD)
    trace.memory(1650, -200, allocated=100, reserved=480).memory(1650, 50, device=1, allocated=50)
    assert measured(trace, tmp_path).peaks == {
        "0": MemoryPeak(
            time_us=1.6,
            allocated_bytes=300,
            unallocated_bytes=180,
            step=5,
            phase="backward",
            operator="aten::mm",
            module=None,
        ),
        "1": MemoryPeak(
            time_us=1.65,
            allocated_bytes=50,
            unallocated_bytes=None,
            step=5,
            phase="backward",
            operator="aten::empty",
            module=None,
        ),
    }


def forward(*, label: bool) -> TraceBuilder:
    name, category = (
        ("perf/forward/layer.0", "user_annotation") if label else ("nn.Module: Linear_0", "python_function")
    )
    return TraceBuilder().range(name, 10, 90, cat=category).op("aten::linear", 20, 80)


CASES = {
    "inside a module, by label": (
        forward(label=True).memory(30, 1, allocated=9),
        ("forward", "aten::linear", "layer.0"),
    ),
    "inside a module, by frame": (forward(label=False).memory(30, 1, allocated=9), (None, "aten::linear", "Linear_0")),
    "between operators": (forward(label=True).memory(85, 1, allocated=9), ("forward", None, "layer.0")),
    "as the operator ends": (forward(label=False).memory(80, 1, allocated=9), (None, None, "Linear_0")),
    "outside all labels": (forward(label=True).memory(95, 1, allocated=9), ("other", None, None)),
    "the first of equal peaks": (
        forward(label=True).memory(5, 1, allocated=9).memory(30, 1, allocated=9),
        ("other", None, None),
    ),
    "a thread that ran nothing": (
        forward(label=False).range("frame", 0, 99, tid=8).memory(30, 1, allocated=9, tid=8),
        (None, None, None),
    ),
    "a thread that nothing else names: any": (
        forward(label=False).memory(30, 1, allocated=9, tid=8),
        (None, "aten::linear", "Linear_0"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_ran_at_the_peak(tmp_path, case):
    trace, expected = CASES[case]
    peak = measured(trace, tmp_path).peaks["0"]
    assert (peak.step, peak.phase, peak.operator, peak.module) == (None, *expected)


def test_growth_from_step_to_step(tmp_path):
    """The last event before each end counts; the step without a batch, and what is freed in it, do not."""
    trace = TraceBuilder()
    for number in range(4):
        trace.step(number, 100 * number, 100 * number + 100).op("aten::mm", 100 * number + 10, 100 * number + 50)
    trace.step(4, 400, 405)
    for time, size, total in ((110, 50, 1050), (120, -20, 1030), (200, 70, 1100), (402, -1000, 100)):
        trace.memory(time, size, allocated=total, reserved=2048)
    trace.memory(10, 8, device_type=0, device=-1, allocated=8).memory(250, -3, device_type=0, device=-1, allocated=5)
    assert measured(trace, tmp_path).step_growth_bytes == {"0": [30, 70, 0], "cpu": [0, -3, 0]}


def test_growth_needs_two_complete_steps(tmp_path):
    trace = TraceBuilder().step(1, 0, 100).op("aten::mm", 10, 50).memory(20, 5, allocated=5)
    assert measured(trace, tmp_path).step_growth_bytes == {}


def test_without_totals_the_moment_is_known_and_the_size_is_not(tmp_path):
    trace = TraceBuilder().step(1, 0, 100).step(2, 100, 200).op("aten::mm", 10, 50).op("aten::add", 110, 150)
    memory = measured(trace.memory(20, 5).memory(120, 9).memory(170, -14), tmp_path)
    assert memory.peak_allocated_bytes == {}
    assert memory.step_growth_bytes == {"0": [-5]}
    peak = memory.peaks["0"]
    assert (peak.time_us, peak.allocated_bytes, peak.unallocated_bytes) == (0.12, None, None)
    assert (peak.step, peak.operator) == (2, "aten::add")


def test_curves_of_devices_and_host(tmp_path):
    trace = TraceBuilder().op("aten::mm", 0, 100)
    trace.memory(10, 5, allocated=105, reserved=200).memory(20, 9, allocated=114, reserved=300)
    trace.memory(15, 7, device=1, allocated=7).memory(30, 4, device=2).memory(40, -4, device=2)
    trace.memory(12, 8, device_type=0, device=-1, allocated=8).memory(50, -3, device_type=0, device=-1, allocated=5)
    assert measured(trace, tmp_path).curves == [
        MemoryCurve(
            device="0",
            time_us=[0.01, 0.02],
            allocated_bytes=[105, 114],
            reserved_bytes=[200, 300],
            since_start=False,
        ),
        MemoryCurve(device="1", time_us=[0.015], allocated_bytes=[7], reserved_bytes=None, since_start=False),
        MemoryCurve(device="2", time_us=[0.03, 0.04], allocated_bytes=[4, 0], reserved_bytes=None, since_start=True),
        MemoryCurve(device="cpu", time_us=[0.012, 0.05], allocated_bytes=[8, 5], reserved_bytes=None, since_start=True),
    ]


@settings(max_examples=25, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 9), st.integers(-50, 50)), min_size=1, max_size=30),
    repeat=st.sampled_from([1, 70, 200]),
    reserved=st.lists(st.integers(0, 99), min_size=1, max_size=7),
)
def test_a_curve_reaches_the_highest_and_the_lowest_of_many(tmp_path_factory, moves, repeat, reserved):
    trace, time, total, totals = TraceBuilder().op("aten::mm", 0, 100), 10, 10**6, []
    for number, (wait, size) in enumerate(moves * repeat):
        time, total = time + wait, total + size
        totals.append(total)
        trace.memory(time, size, allocated=total, reserved=2 * 10**6 + reserved[number % len(reserved)])
    memory = measured(trace, tmp_path_factory.mktemp("memory"))
    assert_curves(memory)
    (curve,) = memory.curves
    assert len(curve.time_us) <= min(CURVE_POINTS, len(totals))
    assert len(curve.time_us) == len(totals) or len(totals) > CURVE_POINTS
    assert min(curve.allocated_bytes) == min(totals)
    assert (curve.allocated_bytes[0], curve.allocated_bytes[-1]) == (totals[0], totals[-1])
    assert (curve.time_us[0], curve.time_us[-1]) == ((10 + moves[0][0]) / 1000, time / 1000)


def test_a_curve_reaches_the_most_reserved(tmp_path):
    trace = TraceBuilder().op("aten::mm", 0, 100)
    for number in range(2000):  # most is reserved where neither much nor little is allocated
        trace.memory(number, 1, allocated=500 + number % 3, reserved=900 if number == 1000 else 800)
    (curve,) = measured(trace, tmp_path).curves
    assert len(curve.time_us) <= CURVE_POINTS
    assert curve.reserved_bytes is not None
    assert max(curve.reserved_bytes) == 900
    assert curve.time_us[curve.reserved_bytes.index(900)] == 1.0


# Found independently: a plain loop over the events for the largest total, and over those around its time.
REAL = {
    "h100_bert_small": (101_305_344, 20_329_472, 6, "aten::empty", "Linear_25"),
    "h100_vit": (231_332_864, 14_033_920, 6, "aten::gelu", "GELUActivation_1"),
    "mi300_owlv2_dataloader": (2_808_510_976, 165_250_560, 6, "aten::_softmax", "Owlv2Attention_1"),
    "v100_resnet50_workers0": (None, None, 5, "aten::empty", None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces(name):
    path = TRACES / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"{TRACES} is not there: real traces are not part of the project")
    memory = measure_trace(read_trace(path)).memory
    assert memory is not None
    peak = memory.peaks["0"]
    assert (peak.allocated_bytes, peak.unallocated_bytes, peak.step, peak.operator, peak.module) == REAL[name]
