"""What the thread that runs the loop did with its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.window import measure_trace
from tests.traces import BACKWARD, TraceBuilder, training

TRACES = Path(__file__).parents[2] / "../shared/traces"


def shares(trace: TraceBuilder, folder: Path) -> dict[tuple[str, str], int]:
    window = measure_trace(trace.trace(folder))
    return {(share.cause, share.activity): round(share.time_us * 1000) for share in window.host}


def test_each_nanosecond_of_the_steps_is_in_one_share(tmp_path):
    trace = TraceBuilder()
    for number, zero in ((1, 0), (2, 1_000)):
        trace.step(number, zero, zero + 1_000)
        trace.range("perf/data", zero, zero + 300)
        trace.range("perf/forward", zero + 300, zero + 600)
        trace.op("aten::mm", zero + 350, zero + 450)
        trace.range("perf/callbacks/Slow.on_train_batch_end", zero + 600, zero + 900)
    found = shares(trace, tmp_path)
    assert found == {
        ("data_loading", "data"): 600,
        ("callbacks", "Slow.on_train_batch_end"): 600,
        ("python", "forward"): 400,
        ("launch", "forward"): 200,
        ("python", "host"): 200,
    }


def test_other_threads_do_not_count(tmp_path):
    trace = TraceBuilder().step(1, 0, 100).range("perf/data", 0, 50).range("perf/forward", 50, 100)
    trace.op("aten::mm", 0, 100, tid=BACKWARD)
    assert shares(trace, tmp_path) == {("data_loading", "data"): 50, ("python", "forward"): 50}


def test_incomplete_steps_do_not_count(tmp_path):
    trace = training()
    window = measure_trace(trace.trace(tmp_path))
    steps_us = sum(step.duration_us for step in window.steps if step.complete)
    assert len(window.steps) > sum(step.complete for step in window.steps)
    assert sum(share.time_us for share in window.host) == pytest.approx(steps_us, abs=1e-6)


def test_without_steps_nobody_knows(tmp_path):
    assert shares(TraceBuilder().op("aten::mm", 0, 100), tmp_path) == {}


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the folder of real traces beside the checkout")
@pytest.mark.parametrize("name", ["cpu_only_step", "no_gpu_events", "v100_resnet50_workers0", "mi300_owlv2_dataloader"])
def test_real_traces(name):
    window = measure_trace(read_trace(TRACES / f"{name}.pt.trace.json.gz"))
    steps_us = sum(step.duration_us for step in window.steps if step.complete)
    assert sum(share.time_us for share in window.host) == pytest.approx(steps_us, abs=1e-3)
