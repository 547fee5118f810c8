"""Steps and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Analysis, Step, Window, busiest_device, last_window
from lightning_perf.names import PHASES, Phase
from lightning_perf.report.colors import IDLE_PAINT, PHASE_PAINT, WORK_PAINT, Paint
from lightning_perf.report.figures.style import (
    BAR_DEPTH,
    BAR_TOP,
    Scale,
    amounts,
    exact_time,
    figure,
    fill,
    ink,
    name_rows,
    plain,
    share,
    spoken,
    time_scale,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_UNNAMED_REST: Final = "rest of the step"
"""What ``other`` is in a trace that names no phases."""

_IN_LEGEND: Final = 0.003
"""Share of the whole below which a colour is too thin to be looked up."""

_MOST_TICKS: Final = 16


@dataclass(frozen=True, slots=True)
class _MeanStep:
    """The mean step by phases, microseconds. ``labelled`` is False where a trace tells data loading alone."""

    phases_us: dict[Phase, float]
    steps: int
    labelled: bool

    @property
    def total_us(self) -> float:
        return sum(self.phases_us.values())


def phases_figure(analysis: Analysis) -> go.Figure:
    """One bar: the mean step of the loop clock, else of the last window with complete steps."""
    mean = _mean_step(analysis)
    if mean is None:
        raise NothingToShow("No complete step was recorded. Record a few: PerfCallback() does it during a fit.")
    if not mean.labelled and not mean.phases_us["data"]:
        raise NothingToShow("The trace names no phases of a step. PerfCallback() does.")
    drawing = figure(
        f"Where a step of {units.duration(mean.total_us)} goes",
        f"{_how_many(mean.steps)}, left to right; the widest part is what to look at first.",
        height=230,
    )
    scale = time_scale([mean.total_us])
    _stack_phases(drawing, [mean], scale, thickness=0.8, offset=-0.4)
    drawing.update_yaxes(visible=False, range=[0.5, -0.5], fixedrange=True)
    drawing.update_xaxes(title_text=f"time per step ({scale.unit})", range=[0, scale.of([mean.total_us])[0]])
    return drawing


def before_after_figure(base: Analysis, candidate: Analysis) -> go.Figure:
    """Two such bars, one above the other."""
    before, after = _mean_step(base), _mean_step(candidate)
    if before is None or after is None:
        which = "first" if before is None else "second"
        raise NothingToShow(f"The {which} of the two has no complete step to compare. Record it again with more steps.")
    drawing = figure(
        _speedup(before.total_us, after.total_us),
        "The mean step before (above) and after (below) in the same colours: what got shorter is the gain.",
        height=170 + 2 * 52,
    )
    totals = [before.total_us, after.total_us]
    scale = time_scale(totals)
    _stack_phases(drawing, [before, after], scale, thickness=BAR_DEPTH, offset=BAR_TOP)
    lengths = scale.of(totals)
    name_rows(drawing, ["before", "after"], max(lengths))
    amounts(drawing, lengths, list(map(units.duration, totals)))
    drawing.update_xaxes(title_text=f"time per step ({scale.unit})")
    return drawing


def steps_figure(window: Window) -> go.Figure:
    """Stacked phases per step; below, on the same axis, the busiest device."""
    if not window.steps:
        raise NothingToShow("The trace marks no steps. Call profiler.step() after each batch, or use PerfCallback().")
    scale = time_scale([step.duration_us for step in window.steps])
    device = busiest_device(window)
    drawing = figure(
        f"Time of {units.count(len(window.steps))} recorded {'step' if len(window.steps) == 1 else 'steps'}",
        "One bar per step: tall orange is the loader."
        + (" Below: how long the device worked in the same step; white: it did not." if device is not None else "")
        + ("" if all(step.complete for step in window.steps) else " Hatched steps are not complete."),
        height=340 if device is None else 430,
    )
    labelled = any(step.phases_us for step in window.steps)
    for phase in PHASES:
        spent = [_parts(step).get(phase, 0.0) for step in window.steps]
        if any(spent):
            _step_bars(drawing, window.steps, spent, _name(phase, labelled=labelled), PHASE_PAINT[phase], scale)
    drawing.update_layout(yaxis={"title": {"text": f"step ({scale.unit})"}, "rangemode": "tozero"})
    if device is not None:
        busy = [step.device_busy_us.get(device.index, 0.0) for step in window.steps]
        idle = [max(0.0, step.duration_us - spent) for step, spent in zip(window.steps, busy, strict=True)]
        _step_bars(drawing, window.steps, busy, "device busy", WORK_PAINT["compute"], scale, axis="y2")
        _step_bars(drawing, window.steps, idle, "device idle", IDLE_PAINT, scale, axis="y2")
        title = f"device {plain(device.index, 8)} ({scale.unit})"
        drawing.update_layout(
            yaxis={"domain": [0.42, 1]},
            yaxis2={"domain": [0, 0.32], "title": {"text": title}, "rangemode": "tozero", "anchor": "x"},
            xaxis={"anchor": "y2"},
        )
        drawing.update_layout(yaxis2=drawing.layout.template.layout.yaxis.to_plotly_json() | {"nticks": 4})
    every = -(-len(window.steps) // _MOST_TICKS)
    drawing.update_xaxes(
        title_text="step",
        tickmode="array",
        tickvals=list(range(0, len(window.steps), every)),
        ticktext=[str(step.number) for step in window.steps[::every]],
        showgrid=False,
    )
    return drawing


def _step_bars(
    drawing: go.Figure,
    steps: Sequence[Step],
    spent_us: Sequence[float],
    name: str,
    paint: Paint,
    scale: Scale,
    *,
    axis: str = "y",
) -> None:
    marker = fill(paint)
    shapes = [paint.pattern if step.complete else "/" for step in steps]
    if any(shapes):
        marker["pattern"] = {"shape": shapes, "fgcolor": "#FFFFFF", "fillmode": "overlay", "size": 6}
    drawing.add_bar(
        x=list(range(len(steps))),
        y=scale.of(spent_us),
        yaxis=axis,
        name=name,
        marker=marker,
        customdata=[step.number for step in steps],
        showlegend=any(part >= _IN_LEGEND * step.duration_us for part, step in zip(spent_us, steps, strict=True)),
        hoverinfo="text",
        hovertext=[
            f"<b>step {step.number}</b>{'' if step.complete else ', not complete'}<br>{name}: {exact_time(spent)}"
            f"{share(spent, step.duration_us)}<br>whole step: {exact_time(step.duration_us)}"
            for step, spent in zip(steps, spent_us, strict=True)
        ],
    )


def _stack_phases(
    drawing: go.Figure, means: Sequence[_MeanStep], scale: Scale, *, thickness: float, offset: float
) -> None:
    """One horizontal bar for each mean step, in rows 0, 1, ..."""
    labelled = all(mean.labelled for mean in means)
    for phase in PHASES:
        spent = [mean.phases_us.get(phase, 0.0) for mean in means]
        if not any(spent):
            continue
        shares = [part / mean.total_us if mean.total_us else 0.0 for part, mean in zip(spent, means, strict=True)]
        name = _name(phase, labelled=labelled)
        drawing.add_bar(
            x=scale.of(spent),
            y=list(range(len(means))),
            width=thickness,
            offset=offset,
            orientation="h",
            name=name,
            marker=fill(PHASE_PAINT[phase]),
            showlegend=max(shares) >= _IN_LEGEND,
            text=[f"{name}<br>{units.percent(part)}" if part > 0.03 else "" for part in shares],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": ink(PHASE_PAINT[phase])},
            hoverinfo="text",
            hovertext=[
                f"<b>{name}</b><br>{exact_time(part)} of {exact_time(mean.total_us)}{share(part, mean.total_us)}"
                for part, mean in zip(spent, means, strict=True)
            ],
        )
    drawing.update_layout(uniformtext={"mode": "hide", "minsize": 10})
    drawing.update_xaxes(fixedrange=True)


def _mean_step(analysis: Analysis) -> _MeanStep | None:
    if analysis.loop is not None:
        return _MeanStep(dict(analysis.loop.phases_us), analysis.loop.steps, labelled=True)
    last = last_window(analysis)
    for window in ([last] if last is not None else []) + analysis.windows[::-1]:
        steps = [step for step in window.steps if step.complete]
        if steps:
            parts = [_parts(step) for step in steps]
            means = {phase: fmean(part.get(phase, 0.0) for part in parts) for phase in PHASES}
            return _MeanStep(means, len(steps), labelled=any(step.phases_us for step in steps))
    return None


def _how_many(steps: int) -> str:
    return "One step" if steps == 1 else f"The mean of {units.count(steps)} steps"


def _parts(step: Step) -> dict[Phase, float]:
    """A step's phases; without labels, loading data and the rest."""
    return step.phases_us or {"data": step.data_loading_us, "other": step.duration_us - step.data_loading_us}


def _name(phase: Phase, *, labelled: bool) -> str:
    return _UNNAMED_REST if phase == "other" and not labelled else spoken(phase)


def _speedup(before_us: float, after_us: float) -> str:
    if not before_us or not after_us or abs(after_us - before_us) < 0.01 * before_us:
        return "Before and after: the mean step takes as long"
    if after_us < before_us:
        return f"Before and after: the mean step is {units.number(before_us / after_us)} times as fast"
    return f"Before and after: the mean step takes {units.duration(after_us - before_us)} longer"
