"""One run of one case in this process: timed, or diagnosed by this package. See ``__main__`` for what starts it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from benchmarks.diagnosis.training import Case, Stopwatch, Training, fit

if TYPE_CHECKING:
    from lightning_perf.measure.finding import Finding

CASES = Path(__file__).parent / "cases"

How = Literal["slow", "fixed", "diagnosed"]
"""Time the slow or the fixed version without this package, or let it diagnose the one that has to be looked at."""


class Found(TypedDict):
    """One finding: its rule, and its saving per step with the range."""

    rule: str
    saving_ms: float | None
    range_ms: tuple[float, float] | None
    action: str


class Outcome(TypedDict, total=False):
    """What one run tells: the mean step time by the stopwatch, findings, another tool's verdict, or how it failed."""

    step_ms: float
    findings: list[Found]
    verdict: str
    error: str


def names() -> list[str]:
    """All cases, the healthy runs last."""
    found = [path.stem for path in sorted(CASES.glob("*.py"))]
    return sorted(found, key=lambda name: name.startswith("healthy_"))


def case(name: str) -> Case:
    """One case by its file's name."""
    return cast("Case", importlib.import_module(f"benchmarks.diagnosis.cases.{name}"))


def looked_at(one: Case) -> Training:
    """The version that is diagnosed: the slow one, if there is one."""
    return one.fixed() if one.EXPECTED is None else one.slow()


def timed(name: str, how: Literal["slow", "fixed"], folder: Path) -> Outcome:
    """The step time without any profiler."""
    stopwatch = Stopwatch()
    one = case(name)
    fit(one.slow() if how == "slow" else one.fixed(), folder, stopwatch)
    return {"step_ms": stopwatch.step_ms}


def diagnosed(name: str, folder: Path) -> Outcome:
    """What PerfCallback, with its default settings, finds."""
    from lightning_perf import PerfCallback

    perf, stopwatch = PerfCallback(dirpath=folder / "perf", summary=False), Stopwatch()
    fit(looked_at(case(name)), folder, perf, stopwatch)
    if perf.analysis is None:
        return {"error": "nothing was measured"}
    return {"step_ms": stopwatch.step_ms, "findings": told(perf.analysis.findings)}


def told(findings: Sequence[Finding]) -> list[Found]:
    """What is kept of findings."""
    return [
        {
            "rule": one.rule,
            "saving_ms": None if one.saving_us_per_step is None else one.saving_us_per_step / 1e3,
            "range_ms": None
            if one.saving_range_us is None
            else (one.saving_range_us[0] / 1e3, one.saving_range_us[1] / 1e3),
            "action": one.action,
        }
        for one in findings
    ]


def judged_again(analysis: Path) -> list[Found]:
    """Findings that the rules have now on a run's kept analysis."""
    from lightning_perf.measure.analysis import read_analysis
    from lightning_perf.pipeline import advised

    return told(advised(read_analysis(analysis)).findings)


def measured(name: str, how: How, folder: Path) -> Outcome:
    """One run; that it fails is a result."""
    try:
        return diagnosed(name, folder) if how == "diagnosed" else timed(name, how, folder)
    except Exception as error:  # noqa: BLE001 - it is told in the table
        return {"error": f"{type(error).__name__}: {error}"}
