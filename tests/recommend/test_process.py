"""Rules about the Python process that trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_perf.recommend.findings import ranked
from lightning_perf.recommend.process import anomaly, garbage, recompile, threads
from lightning_perf.recommend.rules import RULES
from lightning_perf.runinfo import DeviceFacts
from tests.recommend.cases import evidence_of, loop_record
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
    assert found.saving_us_per_step == pytest.approx(42_900)
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
    assert found.saving_us_per_step == pytest.approx(22_000)
    assert found.evidence[0] == "torch.compile has compiled 1,000 times in 1,000 steps."


def test_the_first_compilation_is_needed():
    assert recompile(compiling(15_000, 1_000)).saving_us_per_step == pytest.approx(7_000)
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
    ("now", "cores", "phases", "devices", "title"),
    [
        (16, 8, {"forward": 1_000}, [], "torch uses 16 threads on 8 cores."),
        (16, 8, {"forward": 1_000}, GPU, "torch uses 16 threads on 8 cores."),
        (1, 8, {"forward": 1_000}, [], "torch uses one of 8 cores."),
        (1, 8, {"forward": 1_000}, GPU, None),
        (1, 8, {"data": 1_000, "forward": 500}, [], None),
        (1, 2, {"forward": 1_000}, [], None),
        (8, 8, {"forward": 1_000}, [], None),
    ],
)
def test_threads(now, cores, phases, devices, title):
    evidence = evidence_of(phases, flags={"torch_threads": now}, cpu_count=cores, devices=devices)
    found = threads(evidence)
    assert (found.title if found is not None else None) == title
    if found is not None:
        assert found.saving_us_per_step is None
        assert found.action.startswith("torch.set_num_threads(8)")
        assert ranked(evidence, RULES)[-1].severity == "note"
