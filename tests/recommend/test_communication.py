"""Rules about what ranks and devices send each other."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.measure.analysis import Analysis, Module
from lightning_perf.recommend.communication import backend, data_parallel, exposed, find_unused, straggler
from lightning_perf.recommend.evidence import evidence_of_trace
from lightning_perf.recommend.findings import recommend
from lightning_perf.runinfo import DdpFacts, OptimizerFacts
from tests.recommend.cases import device
from tests.recommend.tracing import collective, operator, quality, ran, replay, steps, traced, window

SENT = {"communication_us": 500.0, "exposed_us": 400.0}
"""600 us compute, 100 of them beside a collective."""


def test_reductions_hide_behind_computing():
    found = exposed(traced(collectives=[collective("allreduce", 400.0)], **SENT))
    assert found is not None
    assert (found.rule, found.where) == ("comm.exposed", "allreduce of 3.91 KiB")
    assert "40 %" in found.title
    assert found.saving_us_per_step == pytest.approx(400)  # 500 us of computing are free to hide them
    assert found.saving_range_us == pytest.approx((0, 400))
    assert any("One rank cannot tell" in one for one in found.evidence)


def test_there_must_be_computing_to_hide_behind():
    evidence = traced(collectives=[collective("allreduce", 700.0)], communication_us=800.0, exposed_us=700.0)
    assert exposed(evidence).saving_us_per_step == pytest.approx(200)  # 300 - 100


def test_what_the_next_operator_needs_is_not_hidden():
    found = exposed(traced(collectives=[collective("all_to_all", 390.0), collective("allreduce", 10.0)], **SENT))
    assert (found.saving_us_per_step, found.severity) == (None, "note")  # 10 us are not worth it
    assert "Prefetch" in found.action


def test_a_replay_bounds_it():
    rows = [collective("allreduce", 400.0)]
    assert exposed(traced(collectives=rows, replay=replay(communication=150.0), **SENT)).saving_us_per_step == 150
    assert exposed(traced(collectives=rows, replay=replay(communication=40.0), **SENT)) is None


@pytest.mark.parametrize(
    "evidence",
    [
        traced(),
        traced(communication_us=500.0, exposed_us=49.0),
        traced(quality=quality("launches_without_kernel"), **SENT),
    ],
)
def test_nothing_exposed(evidence):
    assert exposed(evidence) is None


def rank(number: int, us: float, *, elements: int = 1_000, step: int = 0):
    marks = steps(*[1_000.0] * (step + 1))[step:]
    return window(rank=number, steps=marks, collectives=[collective("allreduce", us, in_elements=elements)])


def test_the_last_rank_waits_for_nobody():
    ranks = [rank(0, 300.0), rank(1, 100.0), rank(2, 320.0)]
    found = straggler(evidence_of_trace(ranks[0], ranks))
    assert (found.rule, found.where) == ("comm.straggler", "rank 1")
    assert found.saving_us_per_step == pytest.approx(140)  # the mean of 240, but 100
    assert "rank 0 300.0 µs, rank 1 100.0 µs, rank 2 320.0 µs" in found.evidence[0]


@pytest.mark.parametrize(
    "others",
    [
        [],
        [rank(1, 250.0)],  # hardly faster
        [rank(0, 100.0)],  # the same rank
        [rank(1, 100.0, elements=7)],  # another collective
        [rank(1, 100.0, step=3)],  # other steps
    ],
)
def test_no_straggler(others):
    assert straggler(evidence_of_trace(rank(0, 300.0), others)) is None


def test_ranks_that_are_read_together_are_compared():
    windows = [rank(0, 300.0), rank(1, 100.0)]
    found = recommend(Analysis(run=None, loop=None, windows=windows), [straggler])
    assert [one.where for one in found] == ["rank 1", "rank 1"]


def test_gloo_beside_a_device():
    found = backend(traced(operators=[operator("gloo:all_reduce", 12, 80.0)]))
    assert found.rule == "comm.backend"
    assert "12 collectives" in found.title
    assert backend(traced(operators=[operator("nccl:all_reduce", 12, 80.0)])) is None


OPTIMIZER = OptimizerFacts(optimizer_class="Adam", parameter_tensors=161, parameters=1_000)


def ddp(**changes: Any) -> dict[str, DdpFacts]:
    facts = {"backend": "nccl", "find_unused_parameters": True, "static_graph": False, "unused_parameter_bytes": 0}
    return {"ddp": DdpFacts(**{"gradient_as_bucket_view": False, **facts, **changes})}


def test_parameters_that_nobody_finds_unused():
    found = find_unused(ran(trainer=ddp(), optimizers=[OPTIMIZER]))
    assert found.rule == "comm.find_unused"
    assert "161 parameter tensors" in found.evidence[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"find_unused_parameters": False},
        {"static_graph": True},
        {"unused_parameter_bytes": 4_096},
        {"unused_parameter_bytes": None},
    ],
)
def test_looking_for_unused_parameters_where_it_is_needed_or_off(changes):
    assert find_unused(ran(trainer=ddp(**changes), optimizers=[OPTIMIZER])) is None


def test_without_ddp_nobody_looks():
    assert find_unused(ran()) is None


def test_something_small_on_the_cpu_beside_nccl():
    rows = {"operators": [operator("gloo:all_reduce", 12, 80.0)]}
    assert backend(ran(trainer=ddp(), of_window=rows)) is None
    assert backend(ran(trainer=ddp(backend="gloo"), of_window=rows)) is not None


def test_data_parallel():
    module = Module(
        name="DataParallel_0", source="frame", calls=1, self_us=1.0, total_us=1.0, launches=1, self_device_us=1.0,
        device_us=1.0,
    )  # fmt: skip
    two = [device(), device()]
    found = data_parallel(traced(devices=two, modules=[module]))
    assert found.rule == "comm.data_parallel"
    assert 'strategy="ddp"' in found.action
    parts = [operator(name, 1, 1.0) for name in ("Scatter", "Gather", "Broadcast")]
    assert data_parallel(traced(devices=two, operators=parts)) is not None
    assert data_parallel(traced(devices=two, operators=parts[:2])) is None
    assert data_parallel(traced(modules=[module])) is None
