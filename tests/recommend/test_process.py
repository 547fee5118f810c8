"""Rules about the Python process that trains."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lightning_perf.measure.analysis import Operator
from lightning_perf.recommend.process import anomaly, garbage, recompile, threads
from lightning_perf.runinfo import DeviceFacts
from tests.recommend.cases import evidence_of, loader, loop_record
from tests.recommend.test_predict import seen

GPU = [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB")]


def test_garbage_collection():
    found = garbage(
        evidence_of(
            {"other": 45_000, "forward": 15_000},
            hooks_us={"other/gc": 42_900},
            loop=loop_record(spans={"other/gc": ("other", 500)}),
        )
    )
    assert found.title == "Python's garbage collection takes 72 % of a step."
    assert found.saving_us_per_step == pytest.approx(42_900 + 0.05 * 17_100)
    assert found.evidence == ["85.8 ms each time, 0.5 times a step."]
    assert "gc.freeze()" in found.action


def test_garbage_collection_behind_the_device():
    evidence = evidence_of(
        {"other": 6_000, "forward": 20_500},
        hooks_us={"other/gc": 6_000},
        loop=loop_record(spans={"other/gc": ("other", 1_000)}),
        window=seen({("gc", "host"): 6_000}, {("gc", "host"): 1_400}),
        devices=GPU,
    )
    assert garbage(evidence).saving_us_per_step == pytest.approx(1_400)
    hidden = replace(evidence, window=seen({("gc", "host"): 6_000}, {}), device=seen({}, {}).devices[0])
    assert garbage(hidden) is None


def test_no_garbage_collection():
    assert garbage(evidence_of({"forward": 1_000})) is None


def compiling(first_us: float, calls: int):
    """Steps of 4.4 ms in which compiling takes 22 ms on average, of which the first steps had a share."""
    evidence = evidence_of(
        {"other": 22_000 - first_us, "forward": 4_400},
        hooks_us={"other/compile": 22_000},
        loop=loop_record(spans={"other/compile": ("other", calls)}),
    )
    return replace(
        evidence,
        loop=type(evidence.loop)(**{**fields(evidence.loop), "phases_us": {"other": 22_000, "forward": 4_400}}),
    )


def fields(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_compiling_in_each_step():
    found = recompile(compiling(0, 1_000))
    assert found.title == "Compiling again and again takes 83 % of a step."
    assert found.saving_us_per_step == pytest.approx(22_000 + 0.05 * 4_400)
    assert found.evidence[0] == "torch.compile has compiled 1,000 times in 1,000 steps."


def test_the_first_compilation_is_needed():
    assert recompile(compiling(15_000, 1_000)).saving_us_per_step == pytest.approx(7_000 + 0.05 * 4_400)
    assert recompile(compiling(22_000, 1_000)) is None
    assert recompile(compiling(0, 3)) is None


def test_looking_for_anomalies():
    found = anomaly(
        evidence_of({"forward": 7_000, "backward": 3_900, "optimizer": 1_000}, flags={"detect_anomaly": True})
    )
    assert found.saving_us_per_step == pytest.approx(0.7 * 10_900)
    assert found.saving_range_us == (pytest.approx(2_180), pytest.approx(8_720))
    assert found.confidence == "low"
    assert anomaly(evidence_of({"forward": 7_000})) is None


@pytest.mark.parametrize(
    ("now", "saves"),
    [(16, 100), (64, 500), (8, None)],  # twice as many: a tenth; eight times: half at most
)
def test_too_many_threads(now, saves):
    found = threads(evidence_of({"forward": 1_000, "data": 300}, flags={"torch_threads": now}))
    if saves is None:
        assert found is None
        return
    assert found.title == f"torch uses {now} threads on 8 cores."
    assert found.saving_us_per_step == pytest.approx(saves)
    assert found.saving_range_us == (0, 500)
    assert found.confidence == "low"
    assert found.action == "torch.set_num_threads(8)  # or OMP_NUM_THREADS=8"


def one_thread(calls: int = 10, workers: int = 0, **changes):
    """Two steps with products of 20 ms in all, in some calls."""
    rows = [
        Operator(name=name, calls=calls, self_us=us, total_us=us, launches=None, self_device_us=None, device_us=None)
        for name, us in (("aten::mm", 20_000.0), ("aten::add_", calls * 20.0))
    ]
    recorded = seen({}, {})
    facts = {"flags": {"torch_threads": 1}, "loaders": [loader(num_workers=workers)], **changes}
    window = msgspec.structs.replace(recorded, operators=rows, devices=[])
    return evidence_of({"forward": 15_000}, window=window, **facts)


def test_one_thread_for_large_products():
    found = threads(one_thread())
    assert found.title == "torch uses one of 8 cores."
    assert found.evidence == ["Operators of 1.00 ms and more take 10.0 ms a step, in one thread."]
    assert found.saving_us_per_step == pytest.approx(0.8 * 10_000 * 7 / 8)
    assert found.saving_range_us == (pytest.approx(4_375), pytest.approx(8_750))


def test_workers_take_cores():
    assert threads(one_thread(workers=6)).action == "torch.set_num_threads(2)  # or OMP_NUM_THREADS=2"
    assert threads(one_thread(workers=7)) is None


@pytest.mark.parametrize(
    "changes", [{"calls": 100}, {"devices": GPU}, {"flags": {"torch_threads": 4}}, {"cpu_count": 1}]
)
def test_one_thread_is_enough(changes):
    assert threads(one_thread(**changes)) is None
