"""Operators and modules of small traces, tables written out beside them. Times in nanoseconds."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Category
from lightning_perf.measure import nesting
from lightning_perf.measure.backward import match_backward
from lightning_perf.measure.intervals import union
from lightning_perf.measure.launches import launch_rows
from lightning_perf.measure.operators import NO_OPERATOR, measure_modules, measure_operators
from lightning_perf.measure.tally import OTHERS, device_calls
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import ns
from tests.traces import BACKWARD, TraceBuilder


def operators(trace, **options):
    """Name, shapes, calls, self, total, launches, self device and device time of every row, times in nanoseconds."""
    calls, backward = device_calls(trace, launch_rows(trace)), match_backward(trace)
    rows = measure_operators(trace, calls, backward, **{"by_shape": False, "limit": None, **options})
    return [
        (row.name, row.shapes, row.calls, ns(row.self_us), ns(row.total_us), row.launches, *device_times(row))
        for row in rows
    ]


def modules(trace):
    calls, backward = device_calls(trace, launch_rows(trace)), match_backward(trace)
    return [
        (row.name, row.source, row.calls, ns(row.self_us), ns(row.total_us), row.launches, *device_times(row))
        for row in measure_modules(trace, calls, backward, limit=None)
    ]


def device_times(row):
    return tuple(None if time is None else ns(time) for time in (row.self_device_us, row.device_us))


def test_forward_and_backward(tmp_path):
    trace = TraceBuilder()
    trace.op("aten::linear", 0, 100).op("aten::addmm", 20, 90).launch(1, 30, 40).launch(2, 50, 60)
    trace.launch(3, 95, 98).launch(4, 150, 160)  # in linear itself; in no operator
    trace.op("AddmmBackward0", 200, 300, tid=BACKWARD).op("aten::mm", 210, 260, tid=BACKWARD)
    trace.launch(5, 220, 230, tid=BACKWARD)
    trace.op("aten::item", 200, 250)  # at the same time on another thread
    for correlation, duration in ((1, 1000), (2, 200), (3, 30), (4, 4), (5, 500), (99, 7)):  # the last was not launched
        trace.kernel(10_000 * correlation, 10_000 * correlation + duration, correlation=correlation)
    assert operators(trace.trace(tmp_path)) == [
        ("aten::addmm", None, 1, 70, 70, 2, 1200, 1200),
        ("aten::mm", None, 1, 50, 50, 1, 500, 500),
        ("aten::linear", None, 1, 30, 100, 1, 30, 1230),
        ("AddmmBackward0", None, 1, 50, 100, 0, 0, 500),
        ("aten::item", None, 1, 50, 50, 0, 0, 0),
        (NO_OPERATOR, None, 0, 0, 0, None, 11, 11),
    ]


def test_recursion_counts_once(tmp_path):
    """to inside copy inside to: the outer call holds all time, but each call is a call."""
    trace = TraceBuilder().op("to", 0, 100).op("copy", 10, 90).op("to", 20, 80).launch(1, 30, 40).op("to", 200, 210)
    assert operators(trace.kernel(500, 600, correlation=1).trace(tmp_path)) == [
        ("to", None, 3, 20 + 60 + 10, 110, 1, 100, 100),
        ("copy", None, 1, 20, 80, 0, 0, 100),
    ]


def test_a_graph_launch_causes_all_its_kernels(tmp_path):
    trace = TraceBuilder().op("replay", 0, 50)
    trace.range("cudaGraphLaunch", 10, 20, cat="cuda_runtime", correlation=8)
    for start in (100, 200, 300):
        trace.kernel(start, start + 40, correlation=8)
    assert operators(trace.trace(tmp_path)) == [("replay", None, 1, 50, 50, 1, 120, 120)]


def test_without_a_device_its_figures_are_unknown(tmp_path):
    trace = TraceBuilder().op("a", 0, 30).op("instant", 10, 10)
    assert operators(trace.trace(tmp_path)) == [
        ("a", None, 1, 30, 30, None, None, None),
        ("instant", None, 1, 0, 0, None, None, None),
    ]
    assert modules(trace.trace(tmp_path)) == []


@pytest.mark.parametrize("cat", ["cpu_op", "Operator"])
def test_ranges_of_old_traces_are_no_operators(tmp_path, cat):
    trace = TraceBuilder()
    for name in ("ProfilerStep#1", "enumerate(DataLoader)#X.__next__", "Optimizer.step#SGD.step", "aten::add"):
        trace.range(name, 0, 10, cat=cat)
    assert [row[0] for row in operators(trace.trace(tmp_path))] == ["aten::add"]


def test_shapes(tmp_path):
    trace = TraceBuilder()
    for start, shapes in ((0, [[2, 3], []]), (100, [[4, 3], []]), (300, [[2, 3], []]), (500, None)):
        args = {} if shapes is None else {"Input Dims": shapes}
        trace.range("aten::add", start, start + 10 + start // 100, cat="cpu_op", **args)
    path = trace.write(tmp_path)
    assert [row[:5] for row in operators(read_trace(path, inputs=True), by_shape=True)] == [
        ("aten::add", "[[2, 3], []]", 2, 23, 23),
        ("aten::add", None, 1, 15, 15),
        ("aten::add", "[[4, 3], []]", 1, 11, 11),
    ]
    assert [row[:5] for row in operators(read_trace(path, inputs=True))] == [("aten::add", None, 4, 49, 49)]
    assert read_trace(path).inputs == ()


def test_shapes_of_a_damaged_file(tmp_path):
    trace = TraceBuilder().range("aten::add", 0, 10, cat="cpu_op", **{"Input Dims": [[2, 3], []]})
    (tmp_path / "cut.json").write_text(trace.op("aten::mul", 20, 30).text()[:-40])
    assert [row[:3] for row in operators(read_trace(tmp_path / "cut.json", inputs=True), by_shape=True)] == [
        ("aten::add", "[[2, 3], []]", 1)
    ]


def test_the_cheapest_are_summed(tmp_path):
    trace = TraceBuilder().launch(1, 5, 6).kernel(100, 107, correlation=1)
    for number in range(5):
        trace.op(f"op{number}", 100 * number, 100 * number + 50 - number)
    assert operators(trace.trace(tmp_path), limit=2) == [
        ("op0", None, 1, 50, 50, 1, 7, 7),
        ("op1", None, 1, 49, 49, 0, 0, 0),
        (OTHERS, None, 3, 48 + 47 + 46, 48 + 47 + 46, 0, 0, 0),
    ]
    assert len(operators(trace.trace(tmp_path), limit=5)) == 5


def test_modules_from_labels_and_frames(tmp_path):
    trace = TraceBuilder()
    trace.range("perf/forward", 0, 1000).range("perf/forward/net", 100, 900).range("perf/forward/net.conv", 200, 500)
    trace.range("nn.Module: Net_0", 110, 890, cat="python_function").range(
        "f.py(1): f", 150, 400, cat="python_function"
    )
    trace.range("nn.Module: Conv2d_0", 210, 490, cat="python_function")
    trace.op("aten::conv2d", 220, 400).launch(1, 300, 310).launch(2, 600, 610).launch(3, 950, 960)
    for correlation, duration in ((1, 70), (2, 5), (3, 1)):
        trace.kernel(2000 * correlation, 2000 * correlation + duration, correlation=correlation)
    trace.range("perf/forward/net", 100, 900, cat="gpu_user_annotation")  # the device's copy
    assert modules(trace.trace(tmp_path)) == [
        ("net", "label", 1, 500, 800, 1, 5, 75),
        ("net.conv", "label", 1, 300, 300, 1, 70, 70),
        ("Net_0", "frame", 1, 500, 780, 1, 5, 75),
        ("Conv2d_0", "frame", 1, 280, 280, 1, 70, 70),
    ]


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.sampled_from([1, 2])), min_size=1, max_size=14)


@given(ranges=RANGES, times=st.lists(st.tuples(st.integers(0, 45), st.sampled_from([1, 2, 3])), max_size=8))
def test_the_innermost_range_is_the_open_one_that_began_last(tmp_path_factory, ranges, times):
    """Any ranges, also such as overlap in part: every instant is counted for one range, and launches agree."""
    trace = TraceBuilder()
    for number, (start, length, thread) in enumerate(ranges):
        trace.op(f"op{number}", start, start + length, tid=thread)
    for time, thread in times:
        trace.range("launch", time, time, cat="cuda_runtime", tid=thread)
    decoded = trace.trace(tmp_path_factory.mktemp("t"))
    rows = np.flatnonzero(decoded.category == Category.CPU_OP)
    found = nesting.nest(decoded, rows)

    def expected(time, thread):
        """The last in the trace's order (by start, the longer first) of those that are open."""
        is_open = (decoded.start_ns[rows] <= time) & (time < decoded.end_ns[rows]) & (decoded.thread[rows] == thread)
        return int(rows[is_open][-1]) if is_open.any() else None

    owners = [
        expected(time, thread) for thread in set(decoded.thread.tolist()) for time in range(int(decoded.end_ns.max()))
    ]
    self_ns = dict(zip(found.rows.tolist(), found.self_ns.tolist(), strict=True))
    assert {row: spent for row, spent in self_ns.items() if spent} == {
        row: owners.count(row) for row in owners if row is not None
    }
    calls = np.flatnonzero(decoded.category == Category.RUNTIME)
    innermost = [None if place < 0 else int(found.rows[place]) for place in found.innermost(decoded, calls).tolist()]
    assert innermost == [expected(int(decoded.start_ns[row]), int(decoded.thread[row])) for row in calls.tolist()]


def assert_tables_conserved(trace, window):
    """What must hold of the tables of any trace."""
    device = trace.category <= Category.MEMSET
    own = sum(ns(row.self_us) for row in window.operators)
    operator = np.flatnonzero(trace.category == Category.CPU_OP)
    ranges = ("ProfilerStep", "enumerate(", "Optimizer.", "perf/", "[pl]")
    rows = np.array([row for row in operator if not trace.names[trace.name_id[row]].startswith(ranges)], dtype=np.int64)
    threads = trace.process[rows] * len(trace.threads) + trace.thread[rows]
    assert own == sum(
        union(trace.start_ns[rows[threads == thread]], trace.end_ns[rows[threads == thread]]).total
        for thread in np.unique(threads)
    )
    assert sum(row.calls for row in window.operators) == rows.size
    if device.any():
        assert sum(ns(row.self_device_us) for row in window.operators) == trace.duration_ns[device].sum()
    for row in [*window.operators, *window.modules]:
        assert ns(row.self_us) <= ns(row.total_us) or row.name == OTHERS
        assert row.device_us is None or ns(row.self_device_us) <= ns(row.device_us) or row.name == OTHERS
    kernels = trace.category == Category.KERNEL
    assert sum(ns(row.total_us) for row in window.kernels) == trace.duration_ns[kernels].sum()
    assert sum(row.calls for row in window.kernels) == kernels.sum()
    assert sum(ns(row.total_us) for row in window.copies) == trace.duration_ns[device & ~kernels].sum()
    for row in window.collectives:
        assert ns(row.exposed_us) + ns(row.overlapped_us) == ns(row.total_us)
        assert 0 <= ns(row.exposed_us) <= ns(row.total_us)
    # No two collectives run at once in any of these traces.
    assert sum(ns(row.exposed_us) for row in window.collectives) == sum(
        ns(device.exposed_communication_us) for device in window.devices
    )


def test_laws_on_a_small_trace(tmp_path):
    from tests.traces import training

    trace = training().trace(tmp_path)
    assert_tables_conserved(trace, measure_trace(trace))


def test_agrees_with_torch(tmp_path):
    """torch's own table of the same recording: calls and self times of every operator."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).pow(2).mean().backward()
            optimizer.step()
    path = tmp_path / "t.json"
    recording.export_chrome_trace(str(path))
    kinds = {event["name"]: event.get("cat") for event in json.loads(path.read_text())["traceEvents"]}
    wanted = {row.key: row for row in recording.key_averages() if kinds.get(row.key) == "cpu_op"}
    counts = Counter(event.name() for event in recording.profiler.kineto_results.events())
    trace = read_trace(path, inputs=True)
    found = {row.name: row for row in measure_trace(trace, limit=None).operators}
    assert found.keys() == wanted.keys()
    assert len(found) > 20
    for name, row in found.items():
        assert row.calls == counts[name], name
        # torch drops a call that is all that a call of the same name does, and adds its time to that one.
        assert wanted[name].count <= row.calls, name
        assert row.self_us == pytest.approx(wanted[name].self_cpu_time_total, abs=row.calls), name
        # torch adds up calls inside calls of the same name.
        assert row.total_us <= wanted[name].cpu_time_total + row.calls, name
    by_shape = measure_trace(trace, by_shape=True, limit=None).operators
    shaped = {(row.key, str(row.input_shapes)) for row in recording.key_averages(group_by_input_shape=True)}
    shaped = {(name, shapes) for name, shapes in shaped if kinds.get(name) == "cpu_op" and shapes not in ("", "[]")}
    assert len(shaped) > 20
    assert shaped <= {(row.name, row.shapes) for row in by_shape}


TRACES = Path(__file__).parents[2] / "../shared/traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.name.split(".")[0])
def test_laws_on_real_traces(path):
    trace = read_trace(path, inputs=True)
    assert_tables_conserved(trace, measure_trace(trace))
    assert_tables_conserved(trace, measure_trace(trace, by_shape=True, limit=None))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
def test_collectives_and_copies_of_a_real_trace():
    """Counted from the file's JSON."""
    path = TRACES / "mi300_resnet_training.pt.trace.json.gz"
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    calls = Counter(
        (args["Collective name"], args["dtype"], args["In msg nelems"], args["Group size"])
        for args in (event["args"] for event in events if event["cat"] == "kernel")
        if "Collective name" in args
    )
    window = measure_trace(read_trace(path))
    told = [row for row in window.collectives if row.collective is not None]
    assert {(row.collective, row.dtype, row.in_elements, row.group_size): row.calls for row in told} == calls
    copies = Counter(event["cat"] for event in events)
    assert {row.kind: row.calls for row in window.copies} == {
        "DtoD": copies["gpu_memcpy"],
        "Memset": copies["gpu_memset"],
    }
