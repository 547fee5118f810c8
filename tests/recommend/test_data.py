"""Rules about fetching batches."""

from __future__ import annotations

import pytest

from lightning_perf.recommend.data import sync_loader
from tests.recommend.cases import evidence_of, loader, loop_record


def test_batches_made_in_the_training_thread():
    evidence = evidence_of({"data": 30_000, "forward": 10_000}, loop=loop_record(cpu_us=40_000))
    found = sync_loader(evidence)
    assert found is not None
    assert (found.rule, found.where) == ("data.sync_loader", "DataLoader of Photos")
    assert "num_workers=3" in found.action
    assert found.saving_us_per_step == pytest.approx(30_000)  # three workers make a batch every 10 ms
    assert found.speedup == pytest.approx(4)
    assert found.severity == "high"


def test_no_more_work_than_the_cores_can_do():
    evidence = evidence_of({"data": 30_000, "forward": 10_000}, loop=loop_record(cpu_us=40_000), cpu_count=2)
    assert sync_loader(evidence).saving_us_per_step == pytest.approx(10_000)


def test_workers_that_wait_share_a_core():
    record = loop_record(cpu_us=11_000, fetch_cpu_ratio=0.05)
    evidence = evidence_of({"data": 30_000, "forward": 10_000}, loop=record, cpu_count=2)
    assert sync_loader(evidence).saving_us_per_step == pytest.approx(30_000)


@pytest.mark.parametrize("facts", [loader(num_workers=2), loader(num_workers=None)])
def test_other_loaders(facts):
    assert sync_loader(evidence_of({"data": 30_000, "forward": 10_000}, loaders=[facts])) is None
