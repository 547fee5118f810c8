"""Findings as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.measure.analysis import Analysis
from lightning_perf.measure.finding import Achieved, Finding
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import Saving
from lightning_perf.report import advice, console
from tests.recommend.cases import evidence_of
from tests.report.test_console import LOOP, RUN

EVIDENCE = evidence_of({"data": 52_000, "forward": 126_000})


def found(rule: str = "data.sync_loader", us: float | None = 52_000, **changes: Any) -> Finding:
    saves = None if us is None else Saving(us, changes.pop("low", us), changes.pop("high", us), "workers keep up")
    facts: dict[str, Any] = {
        "because": ["num_workers=0: each batch costs 52 ms."],
        "action": "DataLoader(num_workers=2)",
    }
    return finding(EVIDENCE, rule, f"{rule} costs time.", saves=saves, **{**facts, **changes})


def test_one_finding():
    assert advice.verdict([found()]) == ["data.sync_loader costs time.", "num_workers=0: each batch costs 52 ms."]
    assert advice.changes([found()]) == [
        "1  DataLoader(num_workers=2)",
        "   saves about 52.0 ms of 178.0 ms a step (1.41 times as fast)",
    ]


def test_a_wide_range_is_shown_as_one():
    assert (
        "saves 20.0 ms to 50.0 ms of 178.0 ms a step" in advice.changes([found(us=30_000, low=20_000, high=50_000)])[1]
    )


def test_a_trace_without_steps():
    one = msgspec.structs.replace(found(), per="trace")
    assert advice.changes([one])[1] == "   saves about 52.0 ms of 178.0 ms (1.41 times as fast)"


def test_a_guess_is_no_verdict():
    guess = found(us=30_000, low=0, high=50_000, confidence="low")
    assert advice.verdict([guess]) == []
    assert advice.changes([guess])[1] == "   may save up to 50.0 ms of 178.0 ms a step (1.20 times as fast)"
    assert advice.changes([found(us=30_000, low=0, high=50_000)])[1].startswith("   saves up to 50.0 ms")


def test_large_speedups_are_not_spelled_out():
    assert advice.changes([found(us=150_000)])[1].endswith("(at least 3 times as fast)")


def test_notes_have_no_number_and_no_saving():
    lines = advice.changes([found(), found("mem.growth", None, action="Keep no graph.")])
    assert lines[2:] == ["-  mem.growth costs time.", "   Keep no graph."]
    assert advice.verdict([found("mem.growth", None)]) == []


def test_more_than_one_line_of_code_stays_aligned():
    assert advice.changes([found(action="first()\nsecond()")])[:2] == ["1  first()", "   second()"]


def test_five_are_shown_and_all_on_demand():
    many = [found(f"rule.{number}", 10_000 - number) for number in range(7)]
    assert sum(line[0].isdigit() for line in advice.changes(many)) == 5
    assert advice.changes(many)[-1] == "(2 more: --all-findings)"
    everything = advice.changes(many, everything=True)
    assert sum(line[0].isdigit() for line in everything) == 7
    assert "   If workers keep up." in everything
    assert any("docs/findings.md#rule6" in line for line in everything)


def test_risks_are_shown_with_everything():
    assert "   Mind: memory." in advice.changes([found(risks=["memory."])], everything=True)


def outcome(now_us: float) -> Achieved:
    return Achieved(
        rule="data.sync_loader",
        predicted_us=52_000,
        predicted_range_us=None,
        step_before_us=178_000,
        step_now_us=now_us,
        achieved_us=178_000 - now_us,
        analysis="version_0/perf/analysis.json",
    )


def test_what_earlier_advice_has_brought():
    assert advice.outcome(outcome(130_000)) == (
        "data.sync_loader was to save 52.0 ms of 178.0 ms a step; 48.0 ms were saved"
    )
    assert advice.outcome(outcome(180_000)).endswith("a step now takes 2.00 ms longer")


def test_the_summary_of_a_run_leads_with_the_first_finding():
    analysis = Analysis(run=RUN, loop=LOOP, windows=[], findings=[found()], achieved=outcome(130_000))
    lines = console.summarize_run(analysis, Path("logs/perf")).splitlines()
    assert lines[2:8] == [
        "  data.sync_loader costs time.",
        "  num_workers=0: each batch costs 52 ms.",
        "",
        "  1  DataLoader(num_workers=2)",
        "     saves about 52.0 ms of 178.0 ms a step (1.41 times as fast)",
        "",
    ]
    assert lines[8].startswith("  since the last run: data.sync_loader was to save")
