"""What is advised first on real traces: what somebody who knows would say."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from lightning_perf.measure.finding import Finding
from lightning_perf.pipeline import analyze_trace
from lightning_perf.recommend.evidence import evidence_of_trace
from lightning_perf.recommend.findings import ranked
from lightning_perf.recommend.rules import RULES

TRACES = Path(__file__).parents[2] / "../shared/traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="needs ../shared/traces, traces of other people's machines")

FIRST = {
    # Waits of TorchRec's pipeline (10 copies to the host a step) drain the queue in the backward pass.
    "a100_ddp_dataloader": "sync.explicit",
    # 900 kernels a step, and a device that is busy for a quarter of it.
    "a100_nccl": "host.launch_bound",
    # One kernel in 13 s: nothing to judge.
    "a100_triton": "trace.quality",
    # Decoding one token without graphs: 768 kernels in 87 ms, busy for 13 %.
    "b200_eager": "host.launch_bound",
    # 16 events.
    "cpu_only_step": "trace.quality",
    # A quarter of the time work was queued, and what it waited for was not recorded.
    "ddp_rank0": "trace.quality",
    "ddp_rank1": "trace.quality",
    # One small batch in eager mode: busy for 7 and 16 %.
    "h100_bert_small": "host.launch_bound",
    "h100_vit": "host.launch_bound",
    # A toy's first step: one hipLaunchKernel of 6.6 ms loads the code.
    "mi250_toy_training": "host.module_load",
    # The thread that drives the device zooms images for 64 % of the time.
    "mi300_owlv2_dataloader": "data.sync_loader",
    # Gradients of a small model are reduced for two thirds of each step.
    "mi300_resnet_training": "comm.exposed",
    # Compiled, busy for 97 %, all of it products and attention.
    "mi300_torch_compile": "gpu.compute_bound",
    # Request threads that wait for events of the device while others could queue work.
    "mtia_inference": "sync.explicit",
    # The first step of the first trace without its device.
    "no_gpu_events": "trace.quality",
    # Busy for 96 %; what else could be saved is less than the steps differ by (82 to 166 ms).
    "v100_ddp_dataloader": "gpu.compute_bound",
    # Decoding JPEGs in the training thread is three quarters of the idle time.
    "v100_resnet50_workers0": "data.sync_loader",
    # The same with workers: then dispatching is what is slow.
    "v100_resnet50_workers4": "host.launch_bound",
    # Busy for 98 %, 62 % of that in float32 products on a device whose tensor cores idle.
    "v100_training_ns": "gpu.amp",
}


@cache
def findings(name: str) -> list[Finding]:
    (path,) = TRACES.glob(f"{name}.*")
    return ranked(evidence_of_trace(analyze_trace(path)), RULES)


@pytest.mark.parametrize("name", FIRST)
def test_first_finding(name):
    assert findings(name)[0].rule == FIRST[name]


@pytest.mark.parametrize("name", FIRST)
def test_findings_are_sound(name):
    for one in findings(name):
        assert one.title.endswith((".", "%"))
        assert one.evidence
        if one.saving_us_per_step is not None:
            low, high = one.saving_range_us
            assert 0 <= low <= one.saving_us_per_step <= high


def test_a_device_whose_work_was_not_recorded_gets_no_advice():
    assert {one.rule for name in ("ddp_rank0", "ddp_rank1") for one in findings(name)} == {"trace.quality"}


def test_the_loader_s_repair_was_predicted():
    """With four workers the same training took 126.5 ms a step where it took 176.3 (medians; one first step of 182)."""
    found = findings("v100_resnet50_workers0")[0]
    low, high = found.saving_range_us
    assert low <= 176_300 - 126_500 <= high
