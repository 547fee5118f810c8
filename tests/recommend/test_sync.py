"""Rules about a host that waits for its device."""

from __future__ import annotations

import pytest

from lightning_perf.recommend.sync import explicit, item
from tests.recommend.cases import evidence_of
from tests.recommend.tracing import copies_to_host, operator, quality, replay, traced

IDLE = {("sync", "backward"): 200.0, ("launch", "forward"): 50.0}
ITEM = "aten::_local_scalar_dense"


def reads(items: int, copies: int, **changes):
    row = operator(ITEM, items, 1.0, launches=items)
    return traced(IDLE, operators=[row], copies=[copies_to_host(copies)], **changes)


def test_item():
    found = item(reads(4, 6))
    assert found is not None
    assert (found.rule, found.where) == ("sync.item", "backward")
    assert "4.00 times" in found.title
    assert found.saving_us_per_step == pytest.approx(200)
    assert found.saving_range_us == pytest.approx((100, 200))
    assert explicit(reads(4, 6)) is None


def test_other_waits():
    found = explicit(reads(2, 6))
    assert found.rule == "sync.explicit"
    assert "6.00 copies to the host in the recorded time, 2.00 of them for .item()." in found.evidence
    assert item(reads(2, 6)) is None
    assert explicit(traced(IDLE)) is not None


def test_a_replay_knows_what_else_a_wait_holds_up():
    evidence = reads(4, 4, replay=replay(sync=230.0))
    assert item(evidence).saving_us_per_step == pytest.approx(230)
    assert item(reads(4, 4, replay=replay(sync=400.0))).saving_us_per_step == pytest.approx(250)  # all idle time


def test_item_of_a_tensor_on_the_host_waits_for_nothing():
    evidence = traced(IDLE, operators=[operator(ITEM, 4, 1.0, launches=0)])
    assert item(evidence) is None


@pytest.mark.parametrize(
    "evidence",
    [
        traced({("launch", "forward"): 50.0}),
        traced(IDLE, quality=quality("operations_without_launch")),
        evidence_of({"forward": 1_000}),
    ],
)
def test_no_wait(evidence):
    assert item(evidence) is None
    assert explicit(evidence) is None
