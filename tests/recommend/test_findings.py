"""Which findings are kept, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.measure.analysis import Analysis
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding, ranked, recommend
from lightning_perf.recommend.predict import Saving, saving
from tests.recommend.cases import evidence_of, window_of


def rule(name: str, us: float | None) -> Any:
    def look(evidence: Evidence) -> Finding:
        saves = None if us is None else saving(us, "it is planted")
        return finding(evidence, name, "A sentence.", saves=saves, because=[], action="do it")

    return look


def test_the_largest_saving_comes_first_and_notes_last():
    rules = [rule("note.b", None), rule("small", 50), rule("large", 500), rule("note.a", None), rule("none", 10)]
    found = ranked(evidence_of({"forward": 1_000}), rules)
    assert [one.rule for one in found] == ["large", "small", "note.b", "note.a"]
    assert [one.severity for one in found] == ["high", "medium", "note", "note"]


def test_a_guess_does_not_come_before_what_was_measured():
    def guess(evidence: Evidence) -> Finding:
        maybe = Saving(500, 0, 800, "it is")
        return finding(evidence, "guess", "A sentence.", saves=maybe, because=[], action="try", confidence="low")

    found = ranked(evidence_of({"forward": 1_000}), [rule("note", None), guess, rule("small", 50)])
    assert [one.rule for one in found] == ["small", "guess", "note"]


@pytest.mark.parametrize(("noise_us", "kept"), [(0, True), (500, True), (550, False)])
def test_a_saving_within_the_noise_of_the_mean_is_none(noise_us, kept):
    """Of 1,000 steps that deviate by 533 us the mean is unsure by 25."""
    evidence = evidence_of({"forward": 1_000}, noise_us=noise_us)
    assert bool(ranked(evidence, [rule("one", 50)])) == kept


def test_a_saving_is_never_the_whole_step():
    found = ranked(evidence_of({"forward": 1_000}), [rule("all", 2_000)])[0]
    assert found.saving_us_per_step == 990
    assert found.saving_range_us == (1_000, 1_000)
    assert found.speedup == pytest.approx(100)


def test_every_trace_has_its_own_findings():
    windows = [window_of(trace=name, duration_us=100.0) for name in ("a", "b")]
    found = recommend(Analysis(run=None, loop=None, windows=windows), [rule("one", 50)])
    assert [(one.trace, one.saving_us_per_step) for one in found] == [("a", 50), ("b", 50)]
