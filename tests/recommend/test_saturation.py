"""Rules about how full a working device is."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import Module
from lightning_perf.recommend.findings import ranked
from lightning_perf.recommend.saturation import compute_bound, low_occupancy, small_kernels
from lightning_perf.recommend.sync import explicit
from tests.recommend.cases import evidence_of
from tests.recommend.tracing import efficiency, kernel, operator, quality, ran, replay, traced

GAPS = {("device_gap", "forward"): 100.0}


def test_small_kernels():
    kernels = [kernel("add", 0.5, calls=60, mean_us=4.0, shorter_than_launch=50), kernel("gemm", 0.5, calls=40)]
    found = small_kernels(traced({**GAPS, ("launch", "forward"): 40.0}, kernels=kernels))
    assert found is not None
    assert found.rule == "gpu.small_kernels"
    assert found.title == "60 % of the kernels take less than 10.0 µs."
    assert found.saving_us_per_step == pytest.approx(70)
    assert "50 of 100 kernels" in found.evidence[1]


def test_kernels_of_a_graph_are_launched_together():
    kernels = [kernel("add", 0.5, calls=60, mean_us=4.0, graph_calls=60), kernel("gemm", 0.5, calls=40)]
    assert small_kernels(traced(GAPS, kernels=kernels)) is None


def test_small_kernels_of_a_device_that_waits():
    assert small_kernels(traced({("launch", "forward"): 400.0}, kernels=[kernel("add", 0.5, mean_us=4.0)])) is None


def test_few_multiprocessors():
    found = low_occupancy(traced(GAPS, efficiency=[efficiency(sm_efficiency=0.36, occupancy=0.2)]))
    assert (found.rule, found.severity) == ("gpu.low_occupancy", "note")
    assert "40 %" in found.title  # 0.36 of 1 ms, over 900 us busy


@pytest.mark.parametrize(
    "evidence",
    [
        traced(GAPS, efficiency=[efficiency(sm_efficiency=0.46)]),  # 51 %
        traced({("sync", "forward"): 300.0}, efficiency=[efficiency(sm_efficiency=0.1)]),  # it waits
        traced(GAPS, efficiency=[efficiency(sm_efficiency=0.1)], communication_us=100.0, exposed_us=100.0),
        traced(GAPS, efficiency=[efficiency()]),
    ],
)
def test_enough_multiprocessors(evidence):
    assert low_occupancy(evidence) is None


def test_a_device_that_computes():
    module = Module(
        name="layer4",
        source="label",
        calls=1,
        self_us=1.0,
        total_us=1.0,
        launches=1,
        self_device_us=500.0,
        device_us=500.0,
    )
    rows = [operator("aten::mm", 1, 1.0, self_device_us=600.0), operator("aten::add", 1, 1.0, self_device_us=200.0)]
    found = compute_bound(traced({("device_gap", "forward"): 60.0}, operators=rows, modules=[module]))
    assert (found.rule, found.severity, found.where) == ("gpu.compute_bound", "note", "layer4")
    assert found.evidence == [
        "The device computes: 94 % of the recorded time.",
        "Most of it: aten::mm (75 %), aten::add (25 %).",
        "Modules: layer4 (62 %).",
        "Matrix products, convolutions and attention: 75 % of the operators' time.",
    ]
    assert "bf16-mixed" in found.action


@pytest.mark.parametrize(
    "evidence",
    [
        traced(GAPS),  # 90 %
        traced({("device_gap", "forward"): 60.0}, communication_us=100.0, exposed_us=50.0),
        traced({("device_gap", "forward"): 60.0}, quality=quality("graphs_without_kernels")),
        evidence_of({"data": 150, "forward": 850}),
    ],
)
def test_something_else_than_computing(evidence):
    assert compute_bound(evidence) is None


def test_communication_that_holds_nothing_up():
    evidence = traced(
        {("device_gap", "forward"): 60.0}, communication_us=100.0, exposed_us=50.0, replay=replay(communication=10.0)
    )
    assert compute_bound(evidence) is not None


def test_a_cpu_that_computes():
    found = compute_bound(evidence_of({"data": 100, "forward": 300, "backward": 500, "optimizer": 100}))
    assert found.evidence == ["Forward, backward and optimizer: 90 % of a step."]
    assert "torch.compile" in found.action
    assert "quantisation" in compute_bound(evidence_of({"data": 10, "forward": 300}, stage="predict")).action


def test_it_is_the_last_resort():
    idle = {("sync", "forward"): 60.0}
    assert [one.rule for one in ranked(ran(idle), [compute_bound, explicit])] == ["sync.explicit"]
    idle = {("sync", "forward"): 40.0}
    found = ranked(ran(idle), [compute_bound, explicit])
    assert [one.rule for one in found] == ["sync.explicit", "gpu.compute_bound"]
