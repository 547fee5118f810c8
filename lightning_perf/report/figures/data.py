"""The input pipeline: what other numbers of worker processes would bring, or how long steps wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Analysis
from lightning_perf.recommend.evidence import Evidence, evidence_of_run
from lightning_perf.recommend.predict import (
    CONTENDED,
    HAND_OVER_US,
    MOST_HAND_OVER_US,
    MOST_WORKERS,
    exposed,
    left_with_workers,
    saving_with_workers,
    workers_needed,
)
from lightning_perf.report.colors import GREEN, ORANGE, OUTLINE, PHASE_PAINT
from lightning_perf.report.figures.style import exact_time, figure, fill, share, time_scale

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KEEPS_UP: Final = 0.02
"""Share of a step below which a wait is none: there is nothing to predict from."""

_UNSURE: Final = 0.5
"""Share of its time in which a worker computes of which nobody knows whether it computes or waits for a disk."""

_MOST_BARS: Final = 1_500
_EACH_NUMBERED: Final = 12


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What the closed form needs, microseconds per mean step, and how many workers there are now.

    ``at_once`` is how many workers the cores let work at the same time.
    """

    now: int
    step_us: float
    fetch_us: float
    rest_us: float
    cpu_us: float
    cores: int
    at_once: int

    def step_with(self, workers: int, contended: float) -> float:
        """The step with some workers: with fewer than now it may be longer, with more it is not."""
        left_us = left_with_workers(
            self.fetch_us,
            self.rest_us,
            max(1, min(workers, self.at_once)),
            cpu_us=self.cpu_us,
            cores=self.cores,
            contended=contended,
        )
        return left_us if workers < self.now else min(self.step_us, left_us)

    def at_most(self, workers: int, likely_us: float, ideal_us: float) -> float:
        """The longest step that is expected: the other end of the range that the advice gives."""
        if workers <= self.now:
            return likely_us
        return self.step_us - saving_with_workers(self.step_us, likely_us, "", least_us=ideal_us).low_us


def data_figure(analysis: Analysis) -> go.Figure:
    """The curve where the run tells what a batch costs, else the wait in each step."""
    evidence = evidence_of_run(analysis)
    pipeline = _pipeline(evidence) if evidence is not None else None
    return _workers_figure(pipeline) if pipeline is not None else _waiting_figure(analysis)


def _pipeline(evidence: Evidence) -> _Pipeline | None:
    """None where workers keep up (then nobody knows what a batch costs them), or the loader is not known.

    Without workers the loop itself made each batch. With workers that do not keep up, each of ``now`` was always busy:
    a batch takes it that many steps.
    """
    loader, run = evidence.loader, evidence.run
    if loader is None or loader.num_workers is None or run is None or not evidence.step_us:
        return None
    now, cores, data_us = loader.num_workers, evidence.cores or 1, evidence.phases_us.get("data", 0.0)
    if now == 0:
        waits_us = exposed(evidence, "data_loading", data_us)
        ratio = run.loop.fetch_cpu_ratio if run.loop is not None else None
        computing = 1.0 if ratio is None else ratio
        hand_over_us = HAND_OVER_US * computing if evidence.device is None else 0.0
        rest_us, fetch_us, cpu_us = evidence.step_us - waits_us + hand_over_us, data_us, evidence.cpu_us or 0.0
    else:
        taken_us = min(evidence.quick_fetch_us, MOST_HAND_OVER_US)
        waits_us = exposed(evidence, "data_loading", max(0.0, data_us - taken_us))
        computing = _UNSURE if run.worker_cpu_ratio is None else run.worker_cpu_ratio
        rest_us, fetch_us = evidence.step_us - waits_us, now * evidence.step_us
        cpu_us = (evidence.cpu_us or 0.0) + computing * fetch_us
    if waits_us < _KEEPS_UP * evidence.step_us or rest_us <= 0:
        return None
    at_once = max(workers_needed(1e12, 1.0, cores=cores, cpu_ratio=computing), now)
    return _Pipeline(now, evidence.step_us, fetch_us, rest_us, cpu_us, cores, at_once)


def _workers_figure(pipeline: _Pipeline) -> go.Figure:
    most = min(MOST_WORKERS, max(6, pipeline.now + 4, pipeline.at_once + 2))
    workers = list(range(1, max(most, pipeline.now) + 1))
    likely = [pipeline.step_with(count, CONTENDED) for count in workers]
    ideal = [pipeline.step_with(count, 1.0) for count in workers]
    longest = [pipeline.at_most(*pair) for pair in zip(workers, likely, ideal, strict=True)]
    scale = time_scale([*longest, pipeline.step_us])
    drawing = figure(
        "Step time against the number of workers",
        f"The point was measured; the line is a prediction, within the band. Where it reaches the dashed line "
        f"({units.duration(pipeline.rest_us)}) nothing waits for data; where it is flat above, all cores are busy.",
        height=340,
    )
    drawing.add_scatter(
        x=workers + workers[::-1],
        y=scale.of(longest + ideal[::-1]),
        fill="toself",
        fillcolor="rgba(0, 158, 115, 0.18)",
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        name="range",
    )
    drawing.add_scatter(
        x=workers,
        y=scale.of(likely),
        mode="lines+markers",
        line={"color": GREEN, "width": 2},
        marker={"size": 6},
        name="predicted",
        hoverinfo="text",
        hovertext=[
            f"<b>{_some(count)}</b><br>{exact_time(one)}, between {exact_time(best)} and {exact_time(worst)}"
            for count, one, best, worst in zip(workers, likely, ideal, longest, strict=True)
        ],
    )
    drawing.add_scatter(
        x=[0, max(workers)],
        y=scale.of([pipeline.rest_us, pipeline.rest_us]),
        mode="lines",
        line={"color": OUTLINE, "dash": "dash", "width": 1},
        name="step without waiting",
        hoverinfo="skip",
    )
    drawing.add_scatter(
        x=[pipeline.now],
        y=scale.of([pipeline.step_us]),
        mode="markers",
        marker={"size": 12, "color": ORANGE, "line": {"width": 1, "color": OUTLINE}},
        name="measured",
        hoverinfo="text",
        hovertext=[
            f"<b>{_some(pipeline.now)}</b>, measured<br>{exact_time(pipeline.step_us)}<br>a batch costs "
            + exact_time(pipeline.fetch_us)
        ],
    )
    drawing.update_xaxes(title_text="num_workers", dtick=1, range=[-0.5, max(workers) + 0.5], fixedrange=True)
    drawing.update_yaxes(title_text=f"time per step ({scale.unit})", rangemode="tozero", fixedrange=True)
    return drawing


def _waiting_figure(analysis: Analysis) -> go.Figure:
    """Wait for data in each step: of the loop clock, else of the last window that marks steps."""
    numbers, waits_us, steps_us = _waits(analysis)
    if not numbers:
        raise NothingToShow("No complete step was recorded, so there is no wait for data. Record with PerfCallback().")
    whole, waited = sum(steps_us), sum(waits_us)
    if not waited:
        raise NothingToShow(
            "No step shows a wait for data. A loader that is not torch's DataLoader is seen by PerfCallback() alone."
        )
    scale = time_scale(waits_us)
    drawing = figure(
        f"Wait for data in each step, {units.percent(waited / whole if whole else 0.0)} of the time",
        "One bar per step. Every n-th bar tall: n workers that do not keep up. All tall: batches are made while "
        "training waits.",
        height=300,
    )
    drawing.add_bar(
        x=numbers,
        y=scale.of(waits_us),
        width=_bar_width(numbers),
        marker=fill(PHASE_PAINT["data"]),
        customdata=numbers,
        name="waits for data",
        hoverinfo="text",
        hovertext=[
            f"<b>step {number:,}</b><br>waits {exact_time(wait)}{share(wait, step)}"
            for number, wait, step in zip(numbers, waits_us, steps_us, strict=True)
        ],
    )
    few = numbers[-1] - numbers[0] < _EACH_NUMBERED
    drawing.update_xaxes(title_text="step", tickformat=",d", showgrid=False, dtick=1 if few else None)
    drawing.update_yaxes(title_text=f"waits for data ({scale.unit})", rangemode="tozero", fixedrange=True)
    drawing.update_layout(dragmode="zoom")
    return drawing


def _waits(analysis: Analysis) -> tuple[list[int], list[float], list[float]]:
    """Numbers of steps, their wait for data and their duration in microseconds; the longest waits of a long run."""
    record = analysis.run.loop if analysis.run is not None else None
    if record is not None and any(record.series.complete):
        series = record.series
        rows = [row for row, complete in enumerate(series.complete) if complete]
        every = -(-len(rows) // _MOST_BARS)
        picked = [
            max(rows[place : place + every], key=lambda row: series.phases_ns["data"][row])
            for place in range(0, len(rows), every)
        ]
        return (
            [series.number[row] for row in picked],
            [series.phases_ns["data"][row] / 1000 for row in picked],
            [series.duration_ns[row] / 1000 for row in picked],
        )
    for window in reversed(analysis.windows):
        steps = [step for step in window.steps if step.complete]
        if steps:
            return (
                [step.number for step in steps],
                [step.data_loading_us for step in steps],
                [step.duration_us for step in steps],
            )
    return [], [], []


def _bar_width(numbers: list[int]) -> float:
    return 0.8 * (numbers[-1] - numbers[0]) / max(1, len(numbers) - 1) or 0.8


def _some(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
