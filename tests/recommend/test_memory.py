"""Rules about memory."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import TraceMemory
from lightning_perf.recommend.memory import fragmentation, growth, headroom, near_limit, retries
from lightning_perf.runinfo import DeviceFacts, MemoryPeaks
from tests.recommend.cases import evidence_of, loader
from tests.recommend.tracing import efficiency, quality, ran, traced

GIB = 1 << 30
MIB = 1 << 20
DEVICES = [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB)]
LAUNCH_BOUND = {("launch", "forward"): 300.0}


def used(gib: int, idle=None, of_window=(), **memory):
    peaks = MemoryPeaks(**{"allocated_bytes": {"0": gib * GIB}, **memory})
    return ran(idle, of_window=of_window, devices=DEVICES, memory=peaks, loaders=[loader(batch_size=32)])


def test_nearly_full():
    found = near_limit(used(73))
    assert found is not None
    assert (found.rule, found.severity) == ("mem.near_limit", "note")
    assert "73.0 GiB of 80.0 GiB" in found.title
    assert near_limit(used(72)) is None
    assert near_limit(evidence_of({"forward": 1_000})) is None


def test_room_for_a_larger_batch():
    found = headroom(used(20, LAUNCH_BOUND))
    assert found.rule == "mem.headroom"
    assert "25 %" in found.title
    assert found.action == "DataLoader(..., batch_size=64)"


def test_room_beside_small_kernels():
    assert headroom(used(20, of_window={"efficiency": [efficiency(sm_efficiency=0.3)]})) is not None


@pytest.mark.parametrize(
    "evidence",
    [
        used(40, LAUNCH_BOUND),
        used(20, {("data_loading", "data"): 500.0}),  # a larger batch takes longer to fetch
        used(20, LAUNCH_BOUND, {"quality": quality("graphs_without_kernels")}),
        used(20, LAUNCH_BOUND, {"quality": quality("few_steps")}),
        used(20, {**LAUNCH_BOUND, ("untraced_device_work", "forward"): 100.0}),
        evidence_of({"forward": 1_000}),
    ],
)
def test_no_larger_batch(evidence):
    assert headroom(evidence) is None


def test_retries():
    found = retries(used(70, retries={"0": 3}, out_of_memory={"0": 1}))
    assert found.rule == "mem.retries"
    assert "3 times" in found.title
    assert "1 allocations failed altogether." in found.evidence
    assert retries(used(70, retries={"0": 0})) is None
    assert retries(traced()) is None


def memory(**growth_bytes: list[int]) -> TraceMemory:
    return TraceMemory(
        peak_allocated_bytes={}, peak_reserved_bytes={}, cpu_growth_bytes=None, step_growth_bytes=growth_bytes
    )


def test_each_step_leaves_something():
    found = growth(traced(memory=memory(cpu=[2 * MIB, 4 * MIB, 3 * MIB])))
    assert found.rule == "mem.growth"
    assert found.title == "Each step leaves 3.00 MiB more on the process's memory: memory leaks."


@pytest.mark.parametrize("steps", [[2 * MIB, 2 * MIB], [2 * MIB, 2 * MIB, 0], [2 * MIB, MIB - 1, 2 * MIB], []])
def test_no_leak(steps):
    assert growth(traced(memory=memory(cpu=steps))) is None


def test_reserved_and_never_allocated():
    found = fragmentation(used(10, reserved_bytes={"0": 16 * GIB}))
    assert found.rule == "mem.fragmentation"
    assert "6.00 GiB" in found.title
    assert fragmentation(used(10, reserved_bytes={"0": 14 * GIB})) is None
    assert fragmentation(used(1, reserved_bytes={"0": GIB + GIB // 2})) is None
