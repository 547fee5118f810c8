"""The rule about loops over elements."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import HostShare
from lightning_perf.recommend.element_loop import loop_index
from tests.recommend.cases import evidence_of, loader, window_of
from tests.recommend.tracing import operator, steps, traced


def cpu_window(*operators):
    shares = [
        HostShare(cause="launch", activity="forward", time_us=2_000.0),
        HostShare(cause="python", activity="forward", time_us=600.0),
    ]
    return window_of(operators=list(operators), host=shares, steps=steps(4_000.0))


SELECT = operator("aten::select", 300, 600.0)
ADD = operator("aten::add", 120, 240.0)
MATRIX = operator("aten::addmm", 180, 9_000.0)


def test_the_body_of_a_loop():
    found = loop_index(evidence_of({"forward": 4_000}, window=cpu_window(SELECT, ADD, MATRIX)))
    assert found is not None
    assert found.rule == "host.loop_index"
    assert "300 times" in found.title
    # 600 + 240, and 420 of 600 calls' share of 600 in Python; a product of 50 us is no element's
    assert found.saving_us_per_step == pytest.approx(0.9 * 1_260)
    assert found.saving_range_us == pytest.approx((630, 1_260))


def test_fetching_a_batch_indexes_too():
    facts = loader(batch_size=128)
    evidence = evidence_of({"forward": 4_000}, window=cpu_window(SELECT, ADD), loaders=[facts])
    assert loop_index(evidence) is None  # 300 - 2 * 128 = 44 calls are left
    workers = evidence_of(
        {"forward": 4_000}, window=cpu_window(SELECT), loaders=[loader(num_workers=2, batch_size=128)]
    )
    assert loop_index(workers) is not None


def test_a_model_that_slices_here_and_there_is_no_loop():
    others = operator("aten::mul", 5_000, 20_000.0)
    found = loop_index(evidence_of({"forward": 40_000}, window=cpu_window(operator("aten::select", 60, 120.0), others)))
    assert found.saving_us_per_step == pytest.approx(0.9 * (120 + 600 * 60 / 5_060))  # the body does not count


def test_few_calls():
    assert loop_index(evidence_of({"forward": 4_000}, window=cpu_window(operator("aten::select", 49, 600.0)))) is None


def test_what_a_device_hides_brings_nothing():
    evidence = traced({("launch", "forward"): 100.0, ("data_loading", "data"): 300.0}, operators=[SELECT])
    assert loop_index(evidence).saving_us_per_step == pytest.approx(90)
