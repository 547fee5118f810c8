"""Whether a trace can be trusted."""

from __future__ import annotations

import pytest

from lightning_perf.recommend.quality import WITHHOLDING, trace_quality, trusted_window, trustworthy
from lightning_perf.recommend.rules import RULES
from tests.recommend.cases import evidence_of
from tests.recommend.tracing import efficiency, kernel, operator, quality, ran, replay, traced

PLENTY = {
    ("launch", "forward"): 300.0,
    ("sync", "backward"): 100.0,
    ("allocation", "forward"): 50.0,
    ("module_load", "forward"): 50.0,
    ("optimizer", "optimizer"): 50.0,
}
OF_WINDOW = {
    "kernels": [kernel("volta_sgemm_32x128_tn", 0.9, mean_us=4.0)],
    "operators": [operator("aten::select", 500, 400.0), operator("aten::add_", 200, 1.0)],
    "efficiency": [efficiency("float16", "tf32", sm_efficiency=0.1)],
    "communication_us": 300.0,
    "exposed_us": 200.0,
}


@pytest.mark.parametrize("code", sorted(WITHHOLDING))
def test_no_advice_on_a_device_whose_work_is_missing(code):
    told = {one.rule for rule in RULES if (one := rule(traced(PLENTY, **OF_WINDOW))) is not None}
    assert {"host.launch_bound", "sync.explicit", "comm.exposed", "host.loop_index", "host.optimizer_loop"} <= told
    evidence = traced(PLENTY, quality=quality(code), replay=replay(launch_half=200.0), **OF_WINDOW)
    found = [one for rule in RULES if (one := rule(evidence)) is not None]
    assert [one.rule for one in found] == ["trace.quality"]
    assert "no advice" in found[0].title
    assert found[0].evidence == ["Something is missing."]


def test_work_that_was_queued_while_nothing_ran():
    evidence = traced({("device_wait", "backward"): 100.0})
    assert not trustworthy(evidence)
    assert trusted_window(evidence) is None
    assert "10 %" in trace_quality(evidence).evidence[0]
    assert trustworthy(traced({("device_wait", "backward"): 99.0}))


def test_few_steps():
    evidence = traced(quality=quality("few_steps"))
    assert trustworthy(evidence)
    assert "too little" in trace_quality(evidence).title


@pytest.mark.parametrize(
    "evidence", [traced(), traced(quality=quality("unknown_device_peak")), evidence_of({"forward": 1_000})]
)
def test_a_sound_trace(evidence):
    assert trace_quality(evidence) is None


def test_the_clock_of_a_run_needs_no_trace():
    assert "clock" in trace_quality(ran(of_window={"quality": quality("few_steps")})).risks[0]
