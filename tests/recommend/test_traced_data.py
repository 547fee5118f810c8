"""The rule about fetching batches for traces without a run."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import HostShare
from lightning_perf.recommend.evidence import evidence_of_trace
from lightning_perf.recommend.traced_data import waits
from tests.recommend.cases import window_of
from tests.recommend.tracing import gap, quality, ran, replay, steps, traced

IDLE = {("data_loading", "data"): 400.0}
POLL = "<method 'poll' of 'select.poll' objects>"
RECEIVE = "multiprocessing/connection.py(390): _recv"
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SEVERAL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("host", "rule", "where"),
    [
        (SINGLE, "data.sync_loader", None),
        ("<built-in function zoom_shift>", "data.sync_loader", "<built-in function zoom_shift>"),
        (SEVERAL, "data.too_few_workers", None),
        (POLL, "data.too_few_workers", POLL),
        (RECEIVE, "data.too_few_workers", RECEIVE),
    ],
)
def test_what_the_loop_did_meanwhile_tells_who_makes_batches(host, rule, where):
    found = waits(traced(IDLE, gaps=[gap("launch", 9.0, "aten::mm"), gap("data_loading", 400.0, host)]))
    assert found is not None
    assert (found.rule, found.where) == (rule, where)
    assert found.saving_us_per_step == pytest.approx(400)
    assert found.saving_range_us == pytest.approx((400 - 0.17 * 600, 400))


def test_workers_that_keep_up():
    found = waits(traced(IDLE, gaps=[gap("data_loading", 400.0, SINGLE)]))
    assert found.action == "DataLoader(..., num_workers=2, persistent_workers=True)"  # 400 / 600, and one to spare


def test_what_the_device_hides_is_none_of_the_wait():
    host = [HostShare(cause="data_loading", activity="data", time_us=800.0)]
    found = waits(traced(IDLE, host=host, replay=replay(data_loading=300.0)))
    assert found.saving_us_per_step == pytest.approx(300)
    assert found.evidence == ["The loop is in its loader for 800.0 µs of the recorded time."]
    assert found.confidence == "medium"


def test_a_trace_of_a_cpu():
    host = [
        HostShare(cause="data_loading", activity="data", time_us=600.0),
        HostShare(cause="launch", activity="forward", time_us=1_400.0),
    ]
    found = waits(evidence_of_trace(window_of(host=host, steps=steps(1_000.0, 1_000.0))))
    assert (found.rule, found.saving_us_per_step) == ("data.too_few_workers", pytest.approx(300))


@pytest.mark.parametrize(
    "evidence",
    [
        ran(IDLE),  # a run knows its loaders: other rules speak
        traced({("launch", "forward"): 400.0}),
        traced(IDLE, quality=quality("graphs_without_kernels")),
    ],
)
def test_no_wait(evidence):
    assert waits(evidence) is None
