"""What became of advice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lightning_perf.measure.analysis import Analysis
from lightning_perf.names import PHASES
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.history import achieved
from lightning_perf.recommend.predict import saving
from lightning_perf.runinfo import StepSeries, StepTotals
from tests.recommend.cases import evidence_of, loader


def analysis(step_us: int, rules: list[str], **facts: Any) -> Analysis:
    evidence = evidence_of({"data": step_us / 2, "forward": step_us / 2}, **facts)
    assert evidence.run is not None
    assert evidence.run.loop is not None
    series = StepSeries(
        stride=1,
        number=list(range(10)),
        epoch=[0] * 10,
        duration_ns=[step_us * 1000] * 10,
        phases_ns={phase: [0] * 10 for phase in PHASES},
        complete=[True] * 10,
        traced=[False] * 10,
    )
    plain = StepTotals(steps=10, duration_ns=10 * step_us * 1000, phases_ns=dict.fromkeys(PHASES, 0))
    record = msgspec.structs.replace(evidence.run.loop, series=series, plain=plain)
    run = msgspec.structs.replace(evidence.run, loop=record)
    findings = [
        finding(evidence, rule, "A sentence.", saves=saving(step_us / 4, "it is"), because=[], action="do it")
        for rule in rules
    ]
    return Analysis(run=run, loop=evidence.loop, windows=[], findings=findings)


def test_the_largest_finding_that_is_gone():
    before = analysis(1_000, ["data.sync_loader", "host.logging"])
    found = achieved(before, analysis(700, ["host.logging"]), "there")
    assert found is not None
    assert (found.rule, found.predicted_us, found.achieved_us) == ("data.sync_loader", 250, 300)
    assert (found.step_before_us, found.step_now_us, found.analysis) == (1_000, 700, "there")


def test_nothing_is_said_where_everything_is_still_there():
    assert achieved(analysis(1_000, ["a"]), analysis(700, ["a"]), "there") is None
    assert achieved(analysis(1_000, []), analysis(700, ["a"]), "there") is None


@pytest.mark.parametrize(
    "facts", [{"model": "Other"}, {"world_size": 2}, {"stage": "test"}, {"loaders": [loader(batch_size=64)]}]
)
def test_other_work_is_not_compared(facts):
    assert achieved(analysis(1_000, ["a"]), analysis(700, [], **facts), "there") is None
