"""Rules about fetching batches."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lightning_perf.recommend.data import collate_slow, sync_loader, too_few_workers, too_many_workers, worker_restart
from lightning_perf.recommend.evidence import evidence_of_trace
from lightning_perf.recommend.findings import ranked
from lightning_perf.recommend.rules import RULES
from lightning_perf.runinfo import DeviceFacts, EpochStart, LoopRecord
from tests.recommend.cases import evidence_of, loader, loop_record, window_of
from tests.recommend.test_predict import DATA, seen

GPU = [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB")]


def with_epochs(record: LoopRecord, *starts_ms: tuple[float, float]) -> LoopRecord:
    """Epochs that began with making an iterator, and with waiting for the first batch, for these times."""
    return msgspec.structs.replace(
        record,
        epoch_starts=[
            EpochStart(epoch=epoch, iterator_ns=round(iterator * 1e6), first_fetch_ns=round(first * 1e6))
            for epoch, (iterator, first) in enumerate(starts_ms)
        ],
    )


def test_batches_made_in_the_training_thread():
    evidence = evidence_of({"data": 30_000, "forward": 10_000}, loop=loop_record(cpu_us=40_000))
    found = sync_loader(evidence)
    assert found is not None
    assert (found.rule, found.where) == ("data.sync_loader", "DataLoader of Photos")
    assert found.title == "Making batches in the training thread takes 75 % of a step."
    assert found.action == "DataLoader(..., num_workers=3, persistent_workers=True)"
    assert found.saving_us_per_step == pytest.approx(29_000)  # a batch every 10 ms, and 1 ms to take it over
    assert found.saving_range_us == (pytest.approx(23_200), pytest.approx(29_000))
    assert found.speedup == pytest.approx(40 / 11)
    assert found.severity == "high"


def test_no_more_work_than_the_cores_can_do():
    evidence = evidence_of({"data": 30_000, "forward": 10_000}, loop=loop_record(cpu_us=40_000), cpu_count=2)
    found = sync_loader(evidence)
    assert found.saving_us_per_step == pytest.approx(16_000)  # 40 ms of work on two cores, 1.2 times as long
    assert found.saving_range_us[1] == pytest.approx(20_000)  # or not
    assert "num_workers=2" in found.action


def test_workers_that_wait_share_a_core():
    record = loop_record(cpu_us=11_000, fetch_cpu_ratio=0.05)
    evidence = evidence_of({"data": 30_000, "forward": 10_000}, loop=record, cpu_count=2)
    assert sync_loader(evidence).saving_us_per_step == pytest.approx(29_950)  # it hardly computes


def test_a_loader_partly_hidden_behind_the_device():
    window = seen({DATA: 20_000}, {DATA: 2_500})
    found = sync_loader(evidence_of({"data": 20_000, "forward": 6_500}, window=window, devices=GPU))
    assert found.title == "Data loading keeps the device waiting 9 % of a step."
    assert found.saving_us_per_step == pytest.approx(2_500)
    assert found.evidence[1] == "The device waits for 2.50 ms of it; the rest is hidden behind its work."
    assert found.action == "DataLoader(..., num_workers=1, persistent_workers=True, pin_memory=True)"


def test_a_hidden_loader_is_no_finding():
    evidence = evidence_of({"data": 10_000, "forward": 16_500}, window=seen({DATA: 10_000}, {}), devices=GPU)
    assert not any(one.rule.startswith("data.") for one in ranked(evidence, RULES))


@pytest.mark.parametrize("facts", [loader(num_workers=2), loader(num_workers=None), loader(stage="validate")])
def test_other_loaders(facts):
    assert sync_loader(evidence_of({"data": 30_000, "forward": 10_000}, loaders=[facts])) is None


def test_traces_alone_are_for_another_rule():
    evidence = evidence_of_trace(window_of(duration_us=1_000.0))
    assert [rule(evidence) for rule in (sync_loader, too_few_workers, too_many_workers, worker_restart)] == [None] * 4


def test_too_few_workers():
    # Two workers that never rest make a batch in 100 ms; the loop needs one every 20 ms: five.
    record = loop_record(cpu_us=20_000)
    found = too_few_workers(
        evidence_of({"data": 30_000, "forward": 20_000}, loaders=[loader(num_workers=2)], loop=record)
    )
    assert found.title == "Data loading keeps training waiting 60 % of a step."
    assert found.action == "DataLoader(..., num_workers=5)"
    assert found.saving_us_per_step == pytest.approx(30_000)
    assert found.saving_range_us == (pytest.approx(24_000), pytest.approx(30_000))
    assert found.confidence == "high"


def test_too_few_workers_where_it_matters_whether_they_compute():
    # If the one worker computes, (36.9 + 75.9) ms on two busy cores are 67.7 ms; if it waits for a disk, 36.9 ms.
    found = too_few_workers(
        evidence_of(
            {"data": 39_000, "forward": 36_900},
            loaders=[loader(num_workers=1)],
            loop=loop_record(cpu_us=36_900),
            cpu_count=2,
        )
    )
    assert found.saving_us_per_step == pytest.approx(75_900 - (36_900 + 67_680) / 2)
    assert found.saving_range_us == (pytest.approx(8_220), pytest.approx(39_000))
    assert found.confidence == "medium"
    assert "num_workers=3" in found.action


def test_workers_on_all_cores_cannot_be_helped_by_more():
    evidence = evidence_of({"data": 30_000, "forward": 20_000}, loaders=[loader(num_workers=4)], cpu_count=4)
    found = too_few_workers(evidence)
    assert found.title == "The cores cannot make batches faster: training waits 60 % of a step."
    assert "num_workers" not in found.action
    assert found.saving_us_per_step == pytest.approx(25_000)  # half of 4 x 50 ms, by four workers


def test_more_workers_than_cores_where_they_wait_for_a_disk():
    # Two workers make a batch in 64 ms of which they compute 3.2; nine milliseconds are the loop's own: eight workers.
    record = loop_record(cpu_us=9_000)
    facts = {"loaders": [loader(num_workers=2)], "loop": record, "cpu_count": 2, "worker_cpu_ratio": 0.05}
    found = too_few_workers(evidence_of({"data": 23_000, "forward": 9_000}, **facts))
    assert "num_workers=8" in found.action
    assert found.saving_us_per_step == pytest.approx(23_000)
    assert found.confidence == "high"
    assert found.evidence[-1] == "The workers compute for 5 % of that."


def test_workers_that_compute_share_the_cores():
    # (36.9 + 75.9) ms on two cores, 1.2 times as long as on idle ones.
    facts = {"loaders": [loader(num_workers=1)], "loop": loop_record(cpu_us=36_900), "cpu_count": 2}
    found = too_few_workers(evidence_of({"data": 39_000, "forward": 36_900}, worker_cpu_ratio=1.0, **facts))
    assert found.saving_us_per_step == pytest.approx(75_900 - 67_680)


def test_taking_over_a_batch_is_no_wait():
    facts = {"loaders": [loader(num_workers=2)], "loop": loop_record(cpu_us=20_000)}
    evidence = replace(evidence_of({"data": 1_100, "forward": 20_000}, **facts), quick_fetch_us=1_000)
    assert too_few_workers(evidence).saving_us_per_step == pytest.approx(100)


def test_workers_that_keep_up():
    evidence = evidence_of({"data": 100, "forward": 20_000}, loaders=[loader(num_workers=2)])
    assert [one.rule for one in ranked(evidence, RULES) if one.saving_us_per_step is not None] == []


def test_the_start_of_an_epoch_is_not_too_few_workers():
    record = with_epochs(loop_record(), (20, 10), (60, 42), (60, 42))
    facts = loader(num_workers=2, persistent_workers=False)
    evidence = evidence_of(
        {"data": 12_000, "forward": 8_000}, loaders=[facts], loop=record, trainer={"batches_per_epoch": 10}
    )
    # 102 ms of the 120 ms that an epoch waits are at its start; each of the nine other fetches takes 2 ms.
    found = worker_restart(evidence)
    assert found.saving_us_per_step == pytest.approx((102_000 - 2_000) / 10)
    assert found.saving_range_us == (pytest.approx(0.8 * 6_000), pytest.approx(10_000))
    assert found.action == "DataLoader(..., num_workers=2, persistent_workers=True)"
    assert too_few_workers(evidence).saving_us_per_step == pytest.approx(2_000)


@pytest.mark.parametrize("facts", [{"persistent_workers": True}, {"num_workers": 0}])
def test_workers_that_stay(facts):
    changed = loader(**{"num_workers": 2, "persistent_workers": False, **facts})
    record = with_epochs(loop_record(), (20, 10), (60, 40))
    assert worker_restart(evidence_of({"data": 12_000, "forward": 8_000}, loaders=[changed], loop=record)) is None


def test_a_single_epoch_has_to_start_its_workers():
    facts = loader(num_workers=2, persistent_workers=False)
    record = with_epochs(loop_record(), (20, 10))
    assert worker_restart(evidence_of({"data": 12_000, "forward": 8_000}, loaders=[facts], loop=record)) is None


def test_collating_in_the_training_thread():
    evidence = evidence_of(
        {"data": 16_000, "forward": 20_000},
        hooks_us={"data/collate": 15_000, "data": 1_000},
        loaders=[loader(collate="pad_all")],
        loop=loop_record(cpu_us=36_000),
    )
    assert sync_loader(evidence) is None
    found = collate_slow(evidence)
    assert found.title == "Collating batches (pad_all) takes 42 % of a step."
    assert found.where == "pad_all"
    assert found.saving_us_per_step == pytest.approx(15_000)
    assert found.saving_range_us == (pytest.approx(36_000 - 1.17 * 21_000), pytest.approx(15_000))


def test_collating_on_a_single_core():
    evidence = evidence_of(
        {"data": 16_000, "forward": 20_000},
        hooks_us={"data/collate": 16_000},
        loop=loop_record(cpu_us=36_000),
        cpu_count=1,
    )
    assert collate_slow(evidence).saving_us_per_step == pytest.approx(8_000)  # twice as fast
    assert collate_slow(evidence).assumption == "it is made twice as fast"


def test_collating_a_part_of_the_fetch():
    evidence = evidence_of(
        {"data": 16_000, "forward": 20_000},
        hooks_us={"data": 9_000, "data/collate": 7_000},
        loop=loop_record(cpu_us=36_000),
    )
    assert collate_slow(evidence) is None
    assert sync_loader(evidence) is not None


@pytest.mark.parametrize(
    ("workers", "wait_us", "spoken"),
    [(8, 3_000, False), (12, 3_000, True), (12, 100, False), (17, 100, True)],
)
def test_too_many_workers(workers, wait_us, spoken):
    evidence = evidence_of({"data": wait_us, "forward": 20_000}, loaders=[loader(num_workers=workers)])
    found = too_many_workers(evidence)
    assert (found is not None) == spoken
    if found is not None:
        assert found.title == f"{workers} workers share 8 cores with the training."
        assert found.saving_us_per_step is None
        assert "num_workers=7" in found.action
