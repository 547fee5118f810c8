"""The whole run as the loop clock saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Analysis
from lightning_perf.names import PHASES, Phase
from lightning_perf.report.colors import FAINT, ORANGE, OUTLINE, PHASE_PAINT, Paint
from lightning_perf.report.figures.style import (
    BAR_DEPTH,
    BAR_TOP,
    ROW_HEIGHT,
    Scale,
    amounts,
    exact_time,
    figure,
    fill,
    name_rows,
    share,
    spoken,
    tick_name,
    time_scale,
    vertical_lines,
    wrapped,
)
from lightning_perf.runinfo import RunInfo, StepSeries

if TYPE_CHECKING:
    import plotly.graph_objects as go

NO_LOOP: Final = "No run was recorded, only traces. Add PerfCallback() to the Trainer: its clock sees every step."

_EACH_DRAWN: Final = 400
"""Steps up to which each is drawn; those of a longer run are drawn together in :data:`_STRETCHES`."""

_STRETCHES: Final = 250
_MOST_MARKS: Final = 200
_MOST_EPOCHS: Final = 25
"""Epochs up to which each start is a line through the figure; more are ticks at its bottom."""

_BAND: Final = "rgba(128, 128, 128, 0.28)"
_MOST_SPANS: Final = 15
_OUTLIER: Final = 3.0
"""Medians from which on the first step is one that is spoken of."""

_MARKED: Final[tuple[tuple[Phase, str], ...]] = (("validation", "diamond"), ("checkpoint", "square"))

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Run:
    """The complete steps that the loop clock kept: numbers, epochs, and microseconds."""

    number: Integers
    epoch: Integers
    duration_us: Floats
    phases_us: dict[Phase, Floats]

    def take(self, rows: Integers) -> _Run:
        return _Run(
            self.number[rows],
            self.epoch[rows],
            self.duration_us[rows],
            {phase: spent[rows] for phase, spent in self.phases_us.items()},
        )


def loop_figure(analysis: Analysis) -> go.Figure:
    """Step time over the wait for data: dots in a short run; bands with the longest steps as dots in a long one."""
    record = analysis.run.loop if analysis.run is not None else None
    if analysis.run is None or record is None:
        raise NothingToShow(NO_LOOP)
    run = _complete_steps(record.series)
    if run.number.size == 0:
        raise NothingToShow("The run completed no step. Let it train for longer.")
    top_us = _top_us(run.duration_us)
    scale = time_scale([top_us])
    median_us = analysis.loop.step_time_us.p50 if analysis.loop is not None else float(np.median(run.duration_us))
    drawing = figure(
        f"Step time over the run, median {units.duration(median_us)}",
        "Grey: how long steps took; orange: how much of it waited for data."
        + (" Triangles at the edge are slower than the axis shows." if float(run.duration_us.max()) > top_us else "")
        + " Drag to zoom.",
        height=360,
    )
    long = run.number.size > _EACH_DRAWN
    stretches = np.array_split(np.arange(run.number.size), _STRETCHES if long else run.number.size)
    drawn = run.take(_singles(run, stretches))
    top = top_us / scale.factor
    _windows(drawing, analysis.run, top)
    starts = run.number[1:][np.diff(run.epoch) > 0].tolist()
    if starts:
        height = top if len(starts) <= _MOST_EPOCHS else 0.04 * top
        vertical_lines(drawing, [number - 0.5 for number in starts], height, "epoch starts", "dot")
    if long:
        _band(drawing, run, stretches, scale)
    _data_wait(drawing, run, stretches, scale)
    _step_times(drawing, drawn, scale, top_us, name="longest steps" if long else "step")
    for phase, symbol in _MARKED:
        _mark(drawing, drawn, phase, symbol, scale, top_us)
    _first_step(drawing, run, scale, top_us)
    ends = int(run.number[0]), int(run.number[-1])
    room = max(0.6, 0.01 * (ends[1] - ends[0]))
    drawing.update_xaxes(title_text="step", range=[ends[0] - room, ends[1] + room], tickformat=",d", showgrid=False)
    drawing.update_yaxes(title_text=f"time per step ({scale.unit})", range=[0, 1.04 * top], fixedrange=True)
    drawing.update_layout(dragmode="zoom")
    return drawing


def hooks_figure(analysis: Analysis) -> go.Figure:
    """Horizontal bars, the most expensive span first, coloured by its phase."""
    if analysis.loop is None or not analysis.loop.hooks_us:
        raise NothingToShow(NO_LOOP)
    ranked = sorted(analysis.loop.hooks_us.items(), key=lambda item: -item[1])[:_MOST_SPANS]
    names, spent = [name for name, _ in ranked], [time_us for _, time_us in ranked]
    step_us = analysis.loop.step_time_us.mean
    phases = [_phase_of(analysis, name) for name in names]
    scale = time_scale(spent)
    drawing = figure(
        "What the loop spends its time in, per step",
        "Time of each hook, callback or fetch alone, without what runs inside it; colours are those of the phases.",
        height=120 + ROW_HEIGHT * len(names),
    )
    for phase in (*PHASES, None):
        rows = [row for row, of in enumerate(phases) if of == phase]
        if rows:
            drawing.add_bar(
                x=scale.of([spent[row] for row in rows]),
                y=rows,
                width=BAR_DEPTH,
                offset=BAR_TOP,
                orientation="h",
                name=spoken(phase) if phase is not None else "no phase",
                marker=fill(PHASE_PAINT[phase] if phase is not None else Paint("#DEDEDE")),
                hoverinfo="text",
                hovertext=[
                    f"<b>{wrapped(names[row])}</b><br>{exact_time(spent[row])} per step{share(spent[row], step_us)}"
                    for row in rows
                ],
            )
    lengths = scale.of(spent)
    name_rows(drawing, list(map(tick_name, names)), max(lengths), hovers=list(map(wrapped, names)))
    amounts(drawing, lengths, [f"{units.duration(one)}{share(one, step_us)}" for one in spent])
    drawing.update_xaxes(title_text=f"time per step ({scale.unit})", range=[0, 1.4 * max(lengths)])
    return drawing


def _complete_steps(series: StepSeries) -> _Run:
    rows = np.flatnonzero(np.array(series.complete, dtype=np.bool_))
    return _Run(
        np.array(series.number, dtype=np.int64)[rows],
        np.array(series.epoch, dtype=np.int64)[rows],
        np.array(series.duration_ns, dtype=np.int64)[rows] / 1000,
        {
            phase: np.array(series.phases_ns.get(phase, [0] * len(series.number)), dtype=np.int64)[rows] / 1000
            for phase in PHASES
        },
    )


def _top_us(durations_us: Floats) -> float:
    """Where the axis ends: a few outliers must not flatten all others."""
    most = float(durations_us.max())
    usual = max(1.4 * float(np.percentile(durations_us, 97)), 1.6 * float(np.median(durations_us)))
    return most if most <= 1.3 * usual else usual


def _singles(run: _Run, stretches: list[Integers]) -> Integers:
    """Steps that have a dot of their own: all of a short run, else the longest of each stretch, and the first.

    Steps with a validation or a checkpoint stay as far as there are few.
    """
    size = run.number.size
    if size <= _EACH_DRAWN:
        return np.arange(size)
    longest = [rows[run.duration_us[rows].argmax()] for rows in stretches]
    marked = [np.flatnonzero(run.phases_us[phase] > 0) for phase, _ in _MARKED]
    return np.unique(np.concatenate([[0], longest, *(rows for rows in marked if rows.size <= _MOST_MARKS)]))


def _band(drawing: go.Figure, run: _Run, stretches: list[Integers], scale: Scale) -> None:
    """What nine of ten steps of each stretch of a long run take, and the median."""
    middle = [float(run.number[rows].mean()) for rows in stretches]
    low, median, high = (
        scale.of([float(np.percentile(run.duration_us[rows], level)) for rows in stretches]) for level in (5, 50, 95)
    )
    drawing.add_scatter(
        x=middle + middle[::-1],
        y=high + low[::-1],
        mode="lines",
        fill="toself",
        fillcolor=_BAND,
        line={"width": 0},
        name="9 of 10 steps",
        hoverinfo="skip",
    )
    drawing.add_scatter(
        x=middle,
        y=median,
        mode="lines",
        line={"width": 1.5, "color": OUTLINE},
        name="median",
        hoverinfo="text",
        hovertext=[
            f"<b>steps {run.number[rows[0]]:,} to {run.number[rows[-1]]:,}</b>"
            f"<br>median {exact_time(one * scale.factor)}"
            for rows, one in zip(stretches, median, strict=True)
        ],
    )


def _windows(drawing: go.Figure, run: RunInfo, top: float) -> None:
    """Recorded windows as bands behind the data, with an edge so that they are seen in a long run too."""
    own = [window for window in run.windows if window.rank == run.rank]
    x: list[float | None] = []
    y: list[float | None] = []
    for window in own:
        first, last = window.first_step - 0.5, window.last_step + 0.5
        x += [first, first, last, last, first, None]
        y += [0, top, top, 0, 0, None]
    if own:
        drawing.add_scatter(
            x=x,
            y=y,
            mode="lines",
            fill="toself",
            fillcolor=FAINT,
            line={"width": 1, "color": FAINT},
            name="recorded",
            hoverinfo="skip",
        )


def _data_wait(drawing: go.Figure, run: _Run, stretches: list[Integers], scale: Scale) -> None:
    """The mean wait of each stretch."""
    drawing.add_scatter(
        x=[float(run.number[rows].mean()) for rows in stretches],
        y=scale.of([float(run.phases_us["data"][rows].mean()) for rows in stretches]),
        mode="lines",
        line={"width": 1, "color": ORANGE, "shape": "hvh" if run.number.size <= _EACH_DRAWN else "linear"},
        fill="tozeroy",
        fillcolor="rgba(230, 159, 0, 0.45)",
        name="waits for data",
        hoverinfo="skip",
    )


def _step_times(drawing: go.Figure, run: _Run, scale: Scale, top_us: float, *, name: str) -> None:
    beyond = run.duration_us > top_us
    for rows, symbol, label in ((~beyond, "circle", name), (beyond, "triangle-up", "slower")):
        picked = run.take(np.flatnonzero(rows))
        if picked.number.size == 0:
            continue
        drawing.add_scatter(
            x=picked.number.tolist(),
            y=scale.of(np.minimum(picked.duration_us, top_us).tolist()),
            mode="markers",
            marker={"size": 9 if symbol != "circle" else 5, "color": OUTLINE, "symbol": symbol},
            name=label,
            customdata=picked.number.tolist(),
            hoverinfo="text",
            hovertext=_texts(picked),
        )


def _mark(drawing: go.Figure, run: _Run, phase: Phase, symbol: str, scale: Scale, top_us: float) -> None:
    """Steps with a validation or a checkpoint; of too many, the longest."""
    rows = np.flatnonzero(run.phases_us[phase] > 0)
    picked = run.take(np.sort(rows[np.argsort(-run.phases_us[phase][rows])[:_MOST_MARKS]]))
    if rows.size:
        drawing.add_scatter(
            x=picked.number.tolist(),
            y=scale.of(np.minimum(picked.duration_us, top_us).tolist()),
            mode="markers",
            marker={
                "size": 9,
                "color": PHASE_PAINT[phase].color,
                "symbol": symbol,
                "line": {"width": 1, "color": "#FFFFFF"},
            },
            name=f"with {phase}",
            customdata=picked.number.tolist(),
            hoverinfo="text",
            hovertext=_texts(picked),
        )


def _texts(run: _Run) -> list[str]:
    texts = []
    for place, (number, epoch, total_us) in enumerate(
        zip(run.number.tolist(), run.epoch.tolist(), run.duration_us.tolist(), strict=True)
    ):
        parts = sorted(((float(spent[place]), phase) for phase, spent in run.phases_us.items()), reverse=True)[:4]
        lines = [f"{spoken(phase)}: {exact_time(spent)}{share(spent, total_us)}" for spent, phase in parts if spent]
        texts.append("<br>".join([f"<b>step {number:,}</b>, epoch {epoch}", exact_time(total_us), *lines]))
    return texts


def _first_step(drawing: go.Figure, run: _Run, scale: Scale, top_us: float) -> None:
    first_us = float(run.duration_us[0])
    if run.number[0] > 0 or first_us < _OUTLIER * float(np.median(run.duration_us)):
        return
    drawing.add_annotation(
        x=int(run.number[0]),
        y=min(first_us, top_us) / scale.factor,
        text=f"first step {units.duration(first_us)}",
        xanchor="left",
        ax=16,
        ay=18,
        showarrow=True,
        arrowwidth=1,
        arrowcolor=OUTLINE,
        arrowhead=0,
    )


def _phase_of(analysis: Analysis, name: str) -> Phase | None:
    """The phase of a span: as the loop clock says, else as its name begins."""
    record = analysis.run.loop if analysis.run is not None else None
    known = next((span.phase for span in (record.spans if record is not None else []) if span.name == name), None)
    return known or next((phase for phase in PHASES if phase == name.split("/", 1)[0]), None)
