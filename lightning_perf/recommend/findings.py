"""Rules -> ranked findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lightning_perf.measure.analysis import Analysis
from lightning_perf.measure.finding import Confidence, Finding, Severity, is_a_guess
from lightning_perf.recommend.evidence import Evidence, evidence_of_run, evidence_of_trace
from lightning_perf.recommend.predict import Saving

Rule = Callable[[Evidence], "Finding | None"]

LAST_RESORT: Final = frozenset({"gpu.compute_bound"})
"""Rules that say what is left to do where nothing else saves a twentieth of the step."""

DOCS: Final = "https://github.com/lightning-perf/lightning-perf/blob/main/docs/findings.md#"


def recommend(analysis: Analysis, rules: Sequence[Rule]) -> list[Finding]:
    """Findings of a run, or of each trace where there is no run, the largest saving first.

    A finding that saves time is kept if its saving is beyond 2 % of the step and twice the deviation of steps.
    """
    of_run = evidence_of_run(analysis)
    if analysis.run is not None:
        return ranked(of_run, rules) if of_run is not None else []
    return [
        found for window in analysis.windows for found in ranked(evidence_of_trace(window, analysis.windows), rules)
    ]


def ranked(evidence: Evidence, rules: Sequence[Rule]) -> list[Finding]:
    """Findings of one run or trace: those that save time by how much, then guesses, then notes in the rules' order."""
    found = [finding for rule in rules if (finding := rule(evidence)) is not None]
    saves = [one for one in found if one.saving_us_per_step is not None and evidence.worth(one.saving_us_per_step)]
    enough = any(one.severity in ("high", "medium") for one in saves)
    notes = [one for one in found if one.saving_us_per_step is None and not (enough and one.rule in LAST_RESORT)]
    return sorted(saves, key=lambda one: (is_a_guess(one), -(one.saving_us_per_step or 0))) + notes


def finding(
    evidence: Evidence,
    rule: str,
    title: str,
    *,
    saves: Saving | None,
    because: Sequence[str],
    action: str,
    risks: Sequence[str] = (),
    confidence: Confidence = "high",
    where: str | None = None,
    from_trace: bool = False,
) -> Finding:
    """A finding with what follows from its saving."""
    step_us = evidence.step_us
    best = min(saves.us, 0.99 * step_us) if saves is not None else None
    return Finding(
        rule=rule,
        title=title,
        severity=_severity(best, step_us),
        step_us=step_us,
        per="step" if evidence.steps else "trace",
        saving_us_per_step=best,
        saving_range_us=(min(saves.low_us, step_us), min(saves.high_us, step_us)) if saves is not None else None,
        speedup=step_us / (step_us - best) if best is not None else None,
        assumption=saves.assumption if saves is not None else None,
        evidence=list(because),
        action=action,
        risks=list(risks),
        confidence=confidence,
        where=where,
        trace=evidence.window.trace if evidence.window is not None and (from_trace or evidence.run is None) else None,
        link=DOCS + rule.replace(".", ""),
    )


def _severity(saving_us: float | None, step_us: float) -> Severity:
    if saving_us is None:
        return "note"
    return "high" if saving_us >= step_us / 5 else "medium" if saving_us >= step_us / 20 else "low"
