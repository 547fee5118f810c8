"""The backward pass by what it is the backward pass of, tables written out beside it. Times in nanoseconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Category
from lightning_perf.measure.backward import match_backward
from lightning_perf.measure.launches import NO_LAUNCH, launch_rows
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import ns
from tests.traces import BACKWARD, MAIN, TraceBuilder

TRACES = Path(__file__).parents[2] / "../shared/traces"


class Passes(TraceBuilder):
    """A trace of a forward and a backward pass."""

    def forward(self, name: str, sequence: int, start: int, end: int, *, tid: int = MAIN):
        return self.range(name, start, end, cat="cpu_op", tid=tid, **{"Sequence number": sequence, "Fwd thread id": 0})

    def backward(self, name: str, sequence: int, start: int, end: int, *, tid: int = BACKWARD, thread: int = 1):
        args = {"Sequence number": sequence, "Fwd thread id": thread}
        return self.range(name, start, end, cat="cpu_op", tid=tid, **args)

    def work(self, correlation: int, start: int, duration: int, *, tid: int = MAIN):
        """A launch and its kernel, which runs much later."""
        self.launch(correlation, start, start + 1, tid=tid)
        begin = 100_000 * correlation
        return self.kernel(begin, begin + duration, correlation=correlation)


def matches(trace):
    """Start of every matched operator and of the one that made its node."""
    found = match_backward(trace)
    return list(zip(trace.start_ns[found.rows].tolist(), trace.start_ns[found.forward].tolist(), strict=True))


def modules(trace, source="label"):
    """Calls, self and device times of every module, then self and whole host time, self and whole device time."""
    return {
        row.name: (
            row.calls,
            ns(row.self_us),
            ns(row.self_device_us),
            ns(row.device_us),
            ns(row.self_backward_us),
            ns(row.backward_us),
            ns(row.self_backward_device_us),
            ns(row.backward_device_us),
        )
        for row in measure_trace(trace).modules
        if row.source == source
    }


def operators(trace):
    return {row.name: (ns(row.backward_us), ns(row.backward_device_us)) for row in measure_trace(trace).operators}


@pytest.fixture
def passes() -> Passes:
    """net holds net.conv; a loss follows. The backward pass runs on its own thread."""
    trace = Passes().range("perf/forward/net", 0, 100).range("perf/forward/net.conv", 10, 50)
    trace.forward("aten::conv2d", 7, 20, 40).forward("aten::cudnn_convolution", 7, 25, 35).work(1, 30, 1000)
    trace.forward("aten::relu", 8, 60, 80).work(2, 70, 200)
    trace.forward("aten::loss", 9, 120, 140).work(3, 130, 30)
    trace.backward("evaluate: Loss", 9, 200, 220).backward("LossBackward0", 9, 205, 215).work(4, 210, 4, tid=BACKWARD)
    trace.backward("ReluBackward0", 8, 230, 250).op("aten::threshold", 235, 245, tid=BACKWARD)
    trace.work(5, 240, 50, tid=BACKWARD)
    trace.backward("ConvBackward0", 7, 260, 290).work(6, 270, 600, tid=BACKWARD).work(7, 280, 7000, tid=BACKWARD)
    return trace.op("AccumulateGrad", 300, 310, tid=BACKWARD).work(8, 305, 80_000, tid=BACKWARD)


def test_modules(passes, tmp_path):
    assert modules(passes.trace(tmp_path)) == {
        "net": (1, 60, 200, 1200, 20, 50, 50, 7650),
        "net.conv": (1, 40, 1000, 1000, 30, 30, 7600, 7600),
    }


def test_operators(passes, tmp_path):
    found = operators(passes.trace(tmp_path))
    assert found["aten::conv2d"] == found["aten::cudnn_convolution"] == (30, 7600)
    assert found["aten::relu"] == (20, 50)
    assert found["aten::loss"] == (20, 4)
    assert found["ConvBackward0"] == found["AccumulateGrad"] == (0, 0)


def test_the_last_operator_before_the_backward_pass_made_the_node(tmp_path):
    trace = Passes().forward("no_grad", 7, 0, 10).forward("outer", 7, 20, 50).forward("maker", 7, 30, 40)
    trace.backward("B", 7, 100, 110).backward("B, kept graph", 7, 120, 130)
    trace.forward("after", 7, 200, 210)
    trace.backward("not in the trace", 6, 300, 310)
    assert matches(trace.trace(tmp_path)) == [(100, 30), (120, 30)]


def test_numbers_count_per_thread(tmp_path):
    """Thread 2 of torch is the one that has most of its numbers; the trace cannot tell which thread is torch's 3."""
    trace = Passes().op("first", 0, 1)
    for number in (1, 2, 3):
        trace.forward("main", number, 10 * number, 10 * number + 5)
    for number in (2, 3, 4):
        trace.forward("worker", number, 10 * number, 10 * number + 5, tid=77)
        trace.backward("B", number, 100 + number, 101 + number, thread=2)
    trace.backward("B", 2, 200, 210, thread=3)
    (worker,) = {row[1] for row in matches(trace.trace(tmp_path)) if row[0] == 104}
    assert worker == 40
    decoded = trace.trace(tmp_path)
    found = match_backward(decoded)
    assert {decoded.threads[thread] for thread in decoded.thread[found.forward].tolist()} == {"77"}
    assert len(found) == 3


def test_on_the_forward_pass_own_thread(tmp_path):
    """As on CPUs. A backward pass inside a module's call is in its whole time, and in nobody's own forward time."""
    trace = Passes().range("perf/forward/net", 0, 500).range("perf/forward/net.conv", 10, 50)
    trace.forward("aten::conv2d", 0, 20, 40).work(1, 30, 1000)
    trace.backward("ConvBackward0", 0, 100, 300, tid=MAIN).work(2, 200, 70).work(3, 400, 5)
    assert modules(trace.trace(tmp_path)) == {
        "net": (1, 500 - 40 - 200, 5, 1075, 0, 200, 0, 70),
        "net.conv": (1, 40, 1000, 1000, 200, 200, 70, 70),
    }


def test_activations_computed_again(tmp_path):
    """Activation checkpoints: the backward pass runs a forward pass, whose modules are labelled or not."""
    trace = (
        Passes().range("perf/forward/net", 0, 100).forward("Checkpoint", 5, 10, 90).range("perf/forward/net.a", 20, 60)
    )
    trace.work(1, 30, 1000)
    trace.backward("CheckpointBackward", 5, 200, 400)
    trace.range("perf/forward/net.a", 210, 250, tid=BACKWARD).forward("again", 0, 220, 240, tid=BACKWARD)
    trace.work(2, 230, 200, tid=BACKWARD)
    trace.forward("again, not labelled", 1, 260, 280, tid=BACKWARD).work(3, 270, 30, tid=BACKWARD)
    trace.backward("B1", 1, 300, 320, thread=2).work(4, 310, 4, tid=BACKWARD)
    trace.backward("B0", 0, 330, 350, thread=2).work(5, 340, 50_000, tid=BACKWARD)
    assert modules(trace.trace(tmp_path)) == {
        "net": (1, 60, 0, 1000, 200 - 40 - 20, 200 - 40, 34, 34 + 50_000),
        "net.a": (2, 40 + 40, 1200, 1200, 20, 20, 50_000, 50_000),
    }


@pytest.mark.parametrize("seen", ["no numbers", "no forward pass", "no backward pass"])
def test_unknown_without_a_match(seen, tmp_path):
    trace = Passes().range("perf/forward/net", 0, 100).op("aten::relu", 10, 20).work(1, 15, 10)
    if seen == "no forward pass":
        trace.backward("B", 3, 200, 300)
    elif seen == "no backward pass":
        trace.forward("F", 3, 30, 40)
    measured = measure_trace(trace.trace(tmp_path))
    for row in measured.operators:
        assert (row.backward_us, row.backward_device_us) == (None, None)
    for module in measured.modules:
        assert (module.self_backward_us, module.backward_us) == (None, None)
        assert (module.self_backward_device_us, module.backward_device_us) == (None, None)


def test_without_a_device_only_host_time_is_known(tmp_path):
    trace = Passes().range("perf/forward/net", 0, 100).forward("aten::relu", 1, 10, 20)
    (module,) = measure_trace(trace.backward("B", 1, 200, 300).trace(tmp_path)).modules
    assert (module.backward_us, module.backward_device_us, module.self_backward_device_us) == (0.1, None, None)


def device_work_of_modules(trace):
    """A slow count over frames of modules: device work by (module, pass), and what is outside of them."""
    named = np.array([name.startswith("nn.Module: ") for name in trace.names])
    matched = match_backward(trace)
    made = dict(zip(matched.rows.tolist(), matched.forward.tolist(), strict=True))
    ranges = np.union1d(np.flatnonzero((trace.category == Category.PYTHON) & named[trace.name_id]), matched.rows)

    def innermost(row):
        around = ranges[
            (trace.thread[ranges] == trace.thread[row])
            & (trace.start_ns[ranges] <= trace.start_ns[row])
            & (trace.start_ns[row] < trace.end_ns[ranges])
        ]
        return int(around[-1]) if around.size else None

    sums: dict[tuple[str | None, bool], int] = {}
    launches = launch_rows(trace)
    for operation in np.flatnonzero(trace.category <= Category.MEMSET).tolist():
        around = innermost(launches[operation]) if launches[operation] != NO_LAUNCH else None
        backward = around in made
        while around in made:
            around = innermost(made[around])
        key = (None if around is None else trace.names[trace.name_id[around]], backward)
        sums[key] = sums.get(key, 0) + int(trace.duration_ns[operation])
    return sums


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
def test_device_time_of_a_real_training():
    """Forward, backward and what is outside of modules add up to the work of the device."""
    trace = read_trace(TRACES / "mi300_resnet_training.pt.trace.json.gz")
    rows = measure_trace(trace, limit=None).modules
    expected = device_work_of_modules(trace)
    outside = sum(expected.pop(key, 0) for key in ((None, False), (None, True)))
    found = {(f"nn.Module: {row.name}", False): ns(row.self_device_us) for row in rows}
    found |= {(f"nn.Module: {row.name}", True): ns(row.self_backward_device_us) for row in rows}
    assert {key: time for key, time in found.items() if time} == {key: time for key, time in expected.items() if time}
    assert sum(found.values()) + outside == trace.duration_ns[trace.category <= Category.MEMSET].sum()
    assert sum(time for (_, backward), time in found.items() if backward) > 9_000_000
    (whole,) = [row for row in rows if row.name == "DistributedDataParallel_0"]
    assert ns(whole.backward_device_us) == sum(time for (_, backward), time in found.items() if backward)


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.name.split(".")[0])
def test_matches_of_real_traces(path):
    """Against a plain loop over the operators, which in these traces all have one forward thread."""
    trace = read_trace(path)
    last: dict[int, int] = {}
    expected = {}
    for row in np.flatnonzero((trace.category == Category.CPU_OP) & (trace.sequence >= 0)).tolist():
        number = int(trace.sequence[row])
        if trace.forward_thread[row] == 0:
            last[number] = row
        elif number in last:
            expected[row] = last[number]
    found = match_backward(trace)
    assert dict(zip(found.rows.tolist(), found.forward.tolist(), strict=True)) == expected


def test_a_real_training_on_cpu(tmp_path):
    """Every node of the backward pass is matched, to the module that it is the gradient of."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    class Labelled(torch.nn.Module):
        def __init__(self, name, inner):
            super().__init__()
            self.name, self.inner = name, inner

        def forward(self, x):
            with record_function(f"perf/forward/{self.name}"):
                return self.inner(x)

    first, last = Labelled("net.first", torch.nn.Conv1d(3, 8, 3)), Labelled("net.last", torch.nn.Linear(8, 2))
    net = Labelled(
        "net", torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.AdaptiveAvgPool1d(1), torch.nn.Flatten(), last)
    )
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        for _ in range(2):
            net(torch.randn(4, 3, 64)).pow(2).mean().backward()
    recording.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read_trace(tmp_path / "t.json")
    window = measure_trace(trace, limit=None)
    matched = match_backward(trace)
    assert set(matched.rows.tolist()) == set(np.flatnonzero(trace.forward_thread > 0).tolist())
    by_name = {row.name: row for row in window.operators}
    convolution = by_name["autograd::engine::evaluate_function: ConvolutionBackward0"]
    found = {row.name: row for row in window.modules}
    assert found.keys() == {"net", "net.first", "net.last"}
    assert found["net.first"].backward_us == pytest.approx(convolution.total_us, abs=0.01)
    assert by_name["aten::conv1d"].backward_us >= found["net.first"].backward_us
    tanh = by_name["autograd::engine::evaluate_function: TanhBackward0"]
    assert found["net"].self_backward_us > tanh.total_us
    parts = sum(ns(row.self_backward_us) for row in found.values())
    assert ns(found["net"].backward_us) == parts
    power = by_name["autograd::engine::evaluate_function: PowBackward0"]  # of the loss, in no module
    mean = by_name["autograd::engine::evaluate_function: MeanBackward0"]
    numbered = sum(ns(row.total_us) for row in window.operators if row.name.startswith("autograd::engine::evaluate"))
    accumulate = by_name["autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"]
    assert parts == numbered - ns(power.total_us) - ns(mean.total_us) - ns(accumulate.total_us)
