"""Rules about a host that cannot keep its device, or itself, busy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_perf.measure.analysis import HostShare
from lightning_perf.recommend.host import alloc, launch_bound, module_load, python
from tests.recommend.cases import evidence_of, window_of
from tests.recommend.tracing import gap, kernel, quality, ran, replay, steps, traced

LAUNCH = {("launch", "forward"): 300.0, ("python", "forward"): 100.0}


def test_half_of_dispatching_is_saved():
    found = launch_bound(traced(LAUNCH, kernels=[kernel("gemm", 1.0, calls=700)]))
    assert found is not None
    assert (found.rule, found.severity) == ("host.launch_bound", "high")
    assert found.saving_us_per_step == pytest.approx(200)  # half of 400
    assert found.saving_range_us == pytest.approx((120, 400))
    assert "40 %" in found.title
    assert found.evidence[0] == "The device is busy for 60 % of the recorded time."
    assert "700 kernels" in found.evidence[1]
    assert "forward" in found.evidence[2]


def test_a_replay_knows_better():
    found = launch_bound(traced(LAUNCH, replay=replay(launch_half=250.0, graph=390.0)))
    assert found.saving_us_per_step == pytest.approx(250)
    assert found.saving_range_us == pytest.approx((150, 390))


def test_no_more_than_the_idle_time_by_a_replay():
    assert launch_bound(traced(LAUNCH, replay=replay(launch_half=700.0))).saving_us_per_step == pytest.approx(400)


def test_what_the_profiler_adds_is_left_out():
    idle = {("launch", "forward"): 1_000.0, ("python", "forward"): 400.0, ("data_loading", "data"): 50.0}
    of_window = {"duration_us": 2_000.0}
    evidence = replace(ran(idle, of_window=of_window), inflation=2.0)  # 1 ms more, all of it for dispatching
    assert launch_bound(evidence).saving_us_per_step == pytest.approx(200)  # half of 1,400 - 1,000
    sped_up = replace(ran(idle, of_window={**of_window, "replay": replay(launch_half=1_200.0)}), inflation=2.0)
    assert launch_bound(sped_up).saving_us_per_step == pytest.approx(450)  # all that is left of idle time
    only_then = replace(ran(idle, of_window=of_window), inflation=2.35)
    assert launch_bound(only_then) is None  # 50 us are left of 1 ms


def test_what_is_compiled_already_needs_graphs():
    evidence = ran(LAUNCH, flags={"compiled": True})
    assert 'mode="reduce-overhead"' in launch_bound(evidence).action


@pytest.mark.parametrize(
    "evidence",
    [
        traced({("launch", "forward"): 99.0}),  # below 10 %
        traced({("launch", "forward"): 100.0, ("python", "forward"): 201.0}),  # that is host.python
        traced(LAUNCH, quality=quality("graphs_without_kernels")),
        evidence_of({"forward": 1_000}),
    ],
)
def test_not_launch_bound(evidence):
    assert launch_bound(evidence) is None


def test_a_slow_launch_call_loads_code():
    idle = {("launch", "backward"): 2_000.0}
    evidence = traced(idle, gaps=[gap("launch", 1_400.0, "hipLaunchKernel")], duration_us=4_000.0)
    assert module_load(evidence).saving_us_per_step == pytest.approx(1_400)
    assert launch_bound(evidence).saving_us_per_step == pytest.approx(300)  # half of the other 600


def test_modules_that_are_loaded():
    found = module_load(traced({("module_load", "forward"): 80.0}))
    assert (found.rule, found.confidence) == ("host.module_load", "low")
    assert found.saving_us_per_step == pytest.approx(80)


def test_a_long_call_that_launches_nothing_loads_no_code():
    evidence = traced(
        {("launch", "forward"): 2_000.0}, gaps=[gap("launch", 1_400.0, "aten::slice")], duration_us=4_000.0
    )
    assert module_load(evidence).saving_us_per_step == 0


def test_memory_that_is_allocated_in_the_loop():
    found = alloc(traced({("allocation", "forward"): 70.0}))
    assert found.rule == "host.alloc"
    assert found.saving_us_per_step == pytest.approx(70)
    assert alloc(traced({("allocation", "forward"): 70.0}, quality=quality("negative_launch_latency"))) is None
    assert alloc(evidence_of({"forward": 1_000})) is None


def test_a_device_that_waits_for_python():
    idle = {("python", "forward"): 250.0, ("python", "Logger.on_step"): 50.0, ("launch", "forward"): 100.0}
    found = python(traced(idle, gaps=[gap("python", 90.0, "metrics.py(12): rank")]))
    assert found.rule == "host.python"
    assert found.saving_us_per_step == pytest.approx(200)  # 0.8 * 250: hooks have rules of their own
    assert found.saving_range_us == pytest.approx((125, 250))
    assert found.where == "metrics.py(12): rank"


def test_python_between_many_launches_is_launch_bound():
    assert python(traced({("python", "forward"): 199.0, ("launch", "forward"): 100.0})) is None


def on_cpu(python_us: float, operators_us: float):
    shares = [
        HostShare(cause="python", activity="forward", time_us=2 * python_us),
        HostShare(cause="launch", activity="forward", time_us=2 * operators_us),
        HostShare(cause="python", activity="backward", time_us=5_000.0),
    ]
    return evidence_of({"forward": 1_000}, window=window_of(host=shares, steps=steps(1_000.0, 1_000.0)))


def test_python_in_the_forward_pass_of_a_cpu():
    found = python(on_cpu(500.0, 200.0))
    assert found.saving_us_per_step == pytest.approx(475)  # more than twice 200: all of it but a twentieth
    assert found.saving_range_us == pytest.approx((300, 500))
    assert found.where == "training_step"
    assert python(on_cpu(400.0, 200.0)).saving_us_per_step == pytest.approx(300)  # 400 - half of 200


def test_modules_own_code_is_none_too_many():
    assert python(on_cpu(100.0, 200.0)) is None
