"""The rule about optimizers that step over their parameters one by one."""

from __future__ import annotations

import pytest

from lightning_perf.recommend.optimizer import optimizer_loop
from lightning_perf.runinfo import DeviceFacts, OptimizerFacts
from tests.recommend.cases import evidence_of
from tests.recommend.tracing import operator, ran, replay, traced


def facts(**changes):
    return OptimizerFacts(
        **{"optimizer_class": "Adam", "parameter_tensors": 400, "parameters": 9_000, "foreach": False, **changes}
    )


IDLE = {("optimizer", "optimizer"): 300.0, ("launch", "optimizer"): 100.0, ("launch", "forward"): 200.0}
ON_DEVICE = {"devices": [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB")]}


def test_on_a_cpu():
    found = optimizer_loop(evidence_of({"optimizer": 500, "forward": 500}, optimizers=[facts()]))
    assert found is not None
    assert (found.rule, found.where, found.action) == ("host.optimizer_loop", "Adam", "Adam(..., foreach=True)")
    assert found.saving_us_per_step == pytest.approx(225)
    assert found.saving_range_us == pytest.approx((200, 375))


def test_the_default_loops_on_a_cpu_alone():
    assert optimizer_loop(evidence_of({"optimizer": 500}, optimizers=[facts(foreach=None)])) is not None
    assert optimizer_loop(ran(IDLE, optimizers=[facts(foreach=None)], **ON_DEVICE)) is None


def test_on_a_device():
    found = optimizer_loop(ran(IDLE, optimizers=[facts()], **ON_DEVICE))
    assert found.saving_us_per_step == pytest.approx(400 * (1 - 4 / 400))  # four launches for 400 tensors are left
    assert found.action == "Adam(..., fused=True)"
    found = optimizer_loop(ran(IDLE, optimizers=[facts()], of_window={"replay": replay(optimizer=250.0)}, **ON_DEVICE))
    assert found.saving_us_per_step == pytest.approx(250)


def test_lightning_refuses_fused_with_scaled_clipping():
    trainer = {"precision": "16-mixed", "gradient_clip_val": 1.0}
    evidence = ran(IDLE, optimizers=[facts()], trainer=trainer, **ON_DEVICE)
    assert optimizer_loop(evidence).action == "Adam(..., foreach=True)"


def test_an_optimizer_of_ones_own_has_no_such_argument():
    evidence = evidence_of({"optimizer": 500}, optimizers=[facts(optimizer_class="Lion", foreach=None)])
    assert "torch._foreach_" in optimizer_loop(evidence).action


@pytest.mark.parametrize("one", [facts(foreach=True), facts(fused=True, foreach=None), facts(parameter_tensors=99)])
def test_nothing_to_loop_over(one):
    assert optimizer_loop(evidence_of({"optimizer": 500, "forward": 500}, optimizers=[one])) is None


def test_a_trace_alone():
    looped = [operator("aten::add_", 480, 1.0), operator("aten::mul_", 160, 1.0)]
    found = optimizer_loop(traced(IDLE, operators=looped))
    assert "160 tensors" in found.title
    assert found.confidence == "medium"
    assert found.saving_us_per_step == pytest.approx(400 * (1 - 2 / 160))
    grouped = [*looped, operator("aten::_foreach_add_", 4, 1.0)]
    assert optimizer_loop(traced(IDLE, operators=grouped)) is None
