"""Two sides of analyses -> one Comparison. Pure: reads no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from lightning_perf import units
from lightning_perf.comparison.records import (
    Comparison,
    Ground,
    Metric,
    Part,
    Prediction,
    Setting,
    SideSteps,
    StepChange,
)
from lightning_perf.comparison.records import Kind as MetricKind
from lightning_perf.comparison.settings import knobs, settings
from lightning_perf.comparison.statistics import MACHINE, Estimate, estimate, of_repeats, typical
from lightning_perf.comparison.steps import Steps, ground_of, steps_of, summary
from lightning_perf.errors import CompareError
from lightning_perf.measure.analysis import Analysis, Window, busiest_device, last_window
from lightning_perf.names import PHASES
from lightning_perf.runinfo import RunInfo

SHOWN: Final = 12
"""Operators and kernels that differ most."""

HEAVY_TAIL: Final = 0.05
"""Share of steps over a quarter longer than the median from which on the tail is mentioned."""


def compare(base: Sequence[Analysis], candidate: Sequence[Analysis], labels: tuple[str, str]) -> Comparison:
    """What changed from the base to the candidate, and whether steps are faster beyond what noise can do.

    Args:
        base: the side that is compared with; several analyses are repeats of the same training.
        candidate: the side that is judged.
        labels: what people call the two.

    Raises:
        CompareError: the two cannot be compared: other stages, or no steps on one side.
    """
    _refuse(base, candidate, labels)
    ground = ground_of(base, candidate)
    if ground is None:
        raise CompareError(
            f"{labels[0]} and {labels[1]} have no complete steps of the same kind to compare; record both with "
            "PerfCallback(), or traces that mark their steps with prof.step()"
        )
    before, after = ([steps_of(one, ground) for one in side] for side in (base, candidate))
    for label, parts in zip(labels, (before, after), strict=True):
        if not any(part.durations_us.size for part in parts):
            raise CompareError(f"{label} has no complete step to compare; record it again with more steps")
    sides = summary(labels[0], before), summary(labels[1], after)
    rows = settings(base[0].run, candidate[0].run) if base[0].run and candidate[0].run else []
    change = _step_change(before, after, _samples(base, candidate))
    rules = {finding.rule for one in candidate for finding in one.findings}
    return Comparison(
        ground=ground,
        base=sides[0],
        candidate=sides[1],
        step=change,
        metrics=_metrics(base, candidate, sides),
        phases=_parts(_phases(before), _phases(after)),
        hooks=_parts(_hooks(base), _hooks(candidate))[:SHOWN],
        operators=_parts(_operators(base), _operators(candidate))[:SHOWN],
        kernels=_parts(_kernels(base), _kernels(candidate))[:SHOWN],
        settings=rows,
        predictions=_predictions(base[0], rules),
        saved_us=sides[0].mean_us - sides[1].mean_us,
        next=next((one.title for one in candidate[0].findings if one.saving_us_per_step is not None), None),
        notices=_notices(base, candidate, ground, sides, change, rows),
    )


def _refuse(base: Sequence[Analysis], candidate: Sequence[Analysis], labels: tuple[str, str]) -> None:
    stages = [{one.run.stage for one in side if one.run is not None} for side in (base, candidate)]
    if all(stages) and stages[0] != stages[1]:
        raise CompareError(
            f"{labels[0]} is a {'/'.join(sorted(stages[0]))} and {labels[1]} a {'/'.join(sorted(stages[1]))}: their "
            "steps do different work; compare two of the same stage"
        )


def _samples(base: Sequence[Analysis], candidate: Sequence[Analysis]) -> tuple[int, int] | None:
    """Samples per step of both sides, if these differ and are known."""
    sizes = [_batch_size(side[0].run) for side in (base, candidate)]
    if sizes[0] is None or sizes[1] is None or sizes[0] == sizes[1]:
        return None
    return sizes[0], sizes[1]


def _batch_size(run: RunInfo | None) -> int | None:
    if run is None:
        return None
    return next((loader.batch_size for loader in run.loaders if loader.stage == run.stage), None)


def _step_change(before: Sequence[Steps], after: Sequence[Steps], samples: tuple[int, int] | None) -> StepChange:
    """The change over runs, if both sides have enough of them, else over the steps of all."""
    divisors = samples or (1, 1)
    sides = [
        [part.durations_us / divisor for part in side if part.durations_us.size]
        for side, divisor in zip((before, after), divisors, strict=True)
    ]
    found = of_repeats(*(np.array([typical(durations) for durations in side]) for side in sides))
    repeats = found is not None
    if found is None:
        found = estimate(*(np.concatenate(side) for side in sides))
    if found is None:
        return StepChange(verdict=None, ratio=None, low=None, high=None, per_sample=samples is not None)
    return _of(found, of_repeats=repeats, per_sample=samples is not None)


def _of(found: Estimate, *, of_repeats: bool, per_sample: bool) -> StepChange:
    return StepChange(
        verdict="no difference" if not found.differs else "slower" if found.ratio > 1 else "faster",
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        batch=found.batch,
        more_steps=found.more_steps,
        of_repeats=of_repeats,
        per_sample=per_sample,
    )


def _metrics(
    base: Sequence[Analysis], candidate: Sequence[Analysis], sides: tuple[SideSteps, SideSteps]
) -> list[Metric]:
    def metric(name: str, kind: MetricKind, of: Callable[[Analysis], float | None], *, lower: bool = True) -> Metric:
        before, after = (_median(map(of, side)) for side in (base, candidate))
        return _metric(name, kind, before, after, lower=lower)

    rows = [
        _metric("step_time", "time", sides[0].p50_us, sides[1].p50_us),
        _metric("step_time_p95", "time", sides[0].p95_us, sides[1].p95_us),
        metric(
            "samples_per_second", "rate", lambda one: one.loop.samples_per_second if one.loop else None, lower=False
        ),
        metric("data_loading_ratio", "ratio", _data_loading),
        metric("gpu_busy_ratio", "ratio", _busy, lower=False),
        metric("epoch_start", "time", _epoch_start),
        metric("memory_peak_allocated", "bytes", lambda one: _peak(one, "allocated")),
        metric("memory_peak_reserved", "bytes", lambda one: _peak(one, "reserved")),
        metric("memory_peak_rss", "bytes", lambda one: one.run.memory.rss_bytes if one.run is not None else None),
    ]
    return [row for row in rows if row.base is not None or row.candidate is not None]


def _metric(name: str, kind: MetricKind, before: float | None, after: float | None, *, lower: bool = True) -> Metric:
    change = None
    if before is not None and after is not None:
        change = after - before if kind == "ratio" else after / before - 1 if before else None
    return Metric(name=name, kind=kind, base=before, candidate=after, change=change, lower_is_better=lower)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _data_loading(analysis: Analysis) -> float | None:
    if analysis.loop is not None:
        return analysis.loop.data_loading_ratio
    complete = [step for window in analysis.windows for step in window.steps if step.complete]
    total_us = sum(step.duration_us for step in complete)
    return sum(step.data_loading_us for step in complete) / total_us if total_us else None


def _window(analysis: Analysis) -> Window | None:
    return last_window(analysis) or (analysis.windows[-1] if analysis.windows else None)


def _busy(analysis: Analysis) -> float | None:
    window = _window(analysis)
    device = busiest_device(window) if window is not None else None
    measured = device.window if device is not None else None
    return measured.busy_us / measured.duration_us if measured is not None and measured.duration_us else None


def _epoch_start(analysis: Analysis) -> float | None:
    start = analysis.loop.epoch_start_us if analysis.loop is not None else None
    return start.iterator + start.first_fetch if start is not None else None


def _peak(analysis: Analysis, kind: str) -> float | None:
    if analysis.run is not None:
        peaks = analysis.run.memory
        return max((peaks.allocated_bytes if kind == "allocated" else peaks.reserved_bytes).values(), default=None)
    memory = [window.memory for window in analysis.windows if window.memory is not None]
    found = [one.peak_allocated_bytes if kind == "allocated" else one.peak_reserved_bytes for one in memory]
    return max((peak for peaks in found for peak in peaks.values()), default=None)


def _phases(parts: Sequence[Steps]) -> dict[str, float]:
    """Means over the steps of all runs."""
    steps = sum(part.durations_us.size for part in parts)
    totals: dict[str, float] = {}
    for part in parts:
        for name, spent in part.phases_us.items():
            totals[name] = totals.get(name, 0.0) + spent * part.durations_us.size / steps
    return totals


def _hooks(side: Sequence[Analysis]) -> dict[str, float]:
    """Exclusive time per step by name; the phases' own spans are the phases."""
    return _mean(
        {name: spent for name, spent in one.loop.hooks_us.items() if name not in PHASES}
        for one in side
        if one.loop is not None
    )


def _operators(side: Sequence[Analysis]) -> dict[str, float]:
    return _mean(
        {row.name: row.self_us / steps for row in window.operators if row.name != "(others)"}
        for window, steps in _stepped(side)
    )


def _kernels(side: Sequence[Analysis]) -> dict[str, float]:
    return _mean(
        {row.name: row.total_us / steps for row in window.kernels if row.name != "(others)"}
        for window, steps in _stepped(side)
    )


def _stepped(side: Sequence[Analysis]) -> list[tuple[Window, int]]:
    """The last window of each analysis that marks steps, with their number."""
    shown = [_window(one) for one in side]
    return [(window, len(window.steps)) for window in shown if window is not None and window.steps]


def _mean(tables: Iterable[dict[str, float]]) -> dict[str, float]:
    listed = list(tables)
    names = dict.fromkeys(name for table in listed for name in table)
    return {name: sum(table.get(name, 0.0) for table in listed) / len(listed) for name in names}


def _parts(before: dict[str, float], after: dict[str, float]) -> list[Part]:
    """What both have, or one of them, by how much it differs; nothing if one side has no such table."""
    if not before or not after:
        return []
    rows = [
        Part(
            name=name,
            base_us=before.get(name),
            candidate_us=after.get(name),
            difference_us=after.get(name, 0.0) - before.get(name, 0.0),
        )
        for name in dict.fromkeys([*before, *after])
    ]
    return sorted((row for row in rows if row.difference_us), key=lambda row: -abs(row.difference_us))


def _predictions(base: Analysis, still: set[str]) -> list[Prediction]:
    """What the base's findings were to save that the candidate no longer has."""
    return [
        Prediction(
            rule=one.rule,
            title=one.title,
            predicted_us=one.saving_us_per_step,
            low_us=(one.saving_range_us or (one.saving_us_per_step,) * 2)[0],
            high_us=(one.saving_range_us or (one.saving_us_per_step,) * 2)[1],
        )
        for one in base.findings
        if one.saving_us_per_step is not None and one.per == "step" and one.rule not in still
    ]


def _notices(
    base: Sequence[Analysis],
    candidate: Sequence[Analysis],
    ground: Ground,
    sides: tuple[SideSteps, SideSteps],
    change: StepChange,
    rows: Sequence[Setting],
) -> list[str]:
    """What limits what the comparison says: other work, other machines, the steps themselves."""
    found = _other_work(base, candidate, rows)
    if change.per_sample:
        sizes = [_batch_size(side[0].run) for side in (base, candidate)]
        found.append(f"Different batch sizes, {sizes[0]} and {sizes[1]}: the verdict is on the time per sample.")
    if (turned := knobs(list(rows))) > 1:
        found.append(f"{turned} settings differ: the change cannot be put down to one of them.")
    if ground == "traces":
        found.append("Compared are the steps under the profiler, which makes them longer.")
    for side in sides:
        found += _about_steps(side)
    if change.verdict is None:
        found.append("Too few steps for a verdict: at least 4 on each side.")
    elif not change.of_repeats:
        allowed = units.percent(MACHINE)
        found.append(f"One recording of each side: {allowed} are allowed for the machine. Repeats would measure it.")
    return found


def _other_work(base: Sequence[Analysis], candidate: Sequence[Analysis], rows: Sequence[Setting]) -> list[str]:
    devices = [_devices(side[0]) for side in (base, candidate)]
    found = [] if devices[0] == devices[1] else [f"Different devices: {_named(devices[0])} and {_named(devices[1])}."]
    found += [
        f"{_OTHER_WORK[row.name]}: {row.base} and {row.candidate}. Steps do different work."
        for row in rows
        if row.name in _OTHER_WORK
    ]
    return found


def _about_steps(side: SideSteps) -> list[str]:
    found = []
    if side.slow_first_us is not None:
        took = units.duration(side.slow_first_us)
        found.append(f"The first recorded step of {side.label} was slow and is left out: {took}.")
    if side.tail_ratio >= HEAVY_TAIL:
        share = units.percent(side.tail_ratio)
        found.append(f"Heavy tail of {side.label}: {share} of its steps take over a quarter longer than the median.")
    return found


_OTHER_WORK: Final = {
    "model": "Different models",
    "trainer.accumulate_grad_batches": "Different gradient accumulation",
    "world_size": "Different numbers of ranks",
}


def _devices(analysis: Analysis) -> list[str]:
    if analysis.run is not None:
        return sorted({device.name for device in analysis.run.devices})
    return sorted({device.name or "a device" for window in analysis.windows for device in window.devices})


def _named(devices: Sequence[str]) -> str:
    return ", ".join(devices) or "none (CPU)"


def label_of(path: Path) -> str:
    """What people call the run or the trace at a path."""
    parts = [part for part in path.parts if part not in ("perf", "analysis.json", ".", "..")]
    return parts[-1].removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") if parts else str(path)
