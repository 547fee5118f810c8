"""The steps of a run or of traces that can be compared: those that do what every step does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from lightning_perf.comparison.records import Ground, SideSteps
from lightning_perf.comparison.statistics import Floats
from lightning_perf.measure.analysis import Analysis, Step
from lightning_perf.names import PHASES, Phase
from lightning_perf.runinfo import StepSeries

WARM_UP_STEPS: Final = 3
"""Steps at a run's start that hold what happens once: lazy initialisation, compilation, the first allocations."""

ENOUGH: Final = 8
"""Steps that must be left before some are left out for what they hold."""

SLOW: Final = 1.25
"""A step of so many medians belongs to the tail. So does a first recorded step, which is then left out."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Compared steps of one analysis, in order. ``phases_us`` are means over them, empty where phases are not known."""

    durations_us: Floats
    phases_us: dict[str, float]
    slow_first_us: float | None = None


def ground_of(base: Sequence[Analysis], candidate: Sequence[Analysis]) -> Ground | None:
    """What both sides have: the loop clock's steps, else steps in traces; None if there is neither."""
    both = [*base, *candidate]
    if all(one.run is not None and one.run.loop is not None and one.loop is not None for one in both):
        return "runs"
    if all(any(step.complete for step in _traced(one)) for one in both):
        return "traces"
    return None


def steps_of(analysis: Analysis, ground: Ground) -> Steps:
    """The steps of an analysis that can be compared."""
    if ground == "runs" and analysis.run is not None and analysis.run.loop is not None:
        return _of_loop(analysis.run.loop.series)
    return _of_traces(analysis)


def summary(label: str, parts: Sequence[Steps]) -> SideSteps:
    """The distribution of all steps of a side."""
    durations = np.concatenate([part.durations_us for part in parts])
    p5, p50, p95 = np.percentile(durations, (5, 50, 95)).tolist()
    return SideSteps(
        label=label,
        runs=len(parts),
        steps=int(durations.size),
        p5_us=p5,
        p50_us=p50,
        p95_us=p95,
        mean_us=float(durations.mean()),
        tail_ratio=float((durations > SLOW * p50).mean()),
        slow_first_us=next((part.slow_first_us for part in parts if part.slow_first_us is not None), None),
    )


def _of_loop(series: StepSeries) -> Steps:
    """Complete steps without the profiler, after warming up; those with validation or a new epoch stand apart."""
    complete, traced = np.array(series.complete, bool), np.array(series.traced, bool)
    usual = complete & ~traced if np.any(complete & ~traced) else complete
    durations = np.array(series.duration_ns, np.float64) / 1000
    number, epoch = np.array(series.number), np.array(series.epoch)
    first_of_epoch = np.concatenate(([True], np.diff(epoch) != 0)) if epoch.size else np.array([], bool)
    if series.stride > 1:  # which of the steps that were not kept began an epoch is not known
        first_of_epoch = np.zeros(epoch.size, bool)
    validates = np.array(series.phases_ns.get("validation", [0] * epoch.size)) > 0
    for left_out in (number < WARM_UP_STEPS, validates, first_of_epoch):
        rest = usual & ~left_out
        if rest.sum() >= min(ENOUGH, usual.sum()):
            usual = rest
    phases: dict[str, float] = {
        phase: float(np.array(spent, np.float64)[usual].mean()) / 1000
        for phase, spent in _in_order(series.phases_ns)
        if usual.any()
    }
    return Steps(durations[usual], phases)


def _in_order(phases_ns: dict[Phase, list[int]]) -> list[tuple[Phase, list[int]]]:
    return [(phase, phases_ns[phase]) for phase in PHASES if phase in phases_ns]


def _of_traces(analysis: Analysis) -> Steps:
    complete = [step for step in _traced(analysis) if step.complete]
    slow_first: float | None = None
    if len(complete) > 2:
        rest = median(step.duration_us for step in complete[1:])
        if complete[0].duration_us > SLOW * rest:
            slow_first, complete = complete[0].duration_us, complete[1:]
    return Steps(
        np.array([step.duration_us for step in complete], np.float64), _parts_of_traces(analysis, complete), slow_first
    )


def _parts_of_traces(analysis: Analysis, complete: Sequence[Step]) -> dict[str, float]:
    """Phases where labels tell them, else what the loop's thread did, over all complete steps of the traces."""
    if all(step.phases_us for step in complete):
        return {phase: sum(step.phases_us.get(phase, 0.0) for step in complete) / len(complete) for phase in PHASES}
    totals: dict[str, float] = {}
    steps = sum(step.complete for step in _traced(analysis))
    for window in analysis.windows:
        for share in window.host:
            name = (
                share.cause if share.activity in (share.cause, "host", "data") else f"{share.cause} in {share.activity}"
            )
            totals[name] = totals.get(name, 0.0) + share.time_us / steps
    return totals


def _traced(analysis: Analysis) -> list[Step]:
    return [step for window in analysis.windows for step in window.steps]
