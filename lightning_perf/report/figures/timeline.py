"""The timeline of a window: streams, gaps by cause, and the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, get_args

from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Step, Window
from lightning_perf.measure.timeline import HostLane, IdleLane, Lane, Timeline, WorkKind
from lightning_perf.names import CAUSES, Cause
from lightning_perf.report.colors import CAUSE_PAINT, HOST_COMPUTES, WHITE, WORK_PAINT, Paint
from lightning_perf.report.figures.style import (
    ROW_HEIGHT,
    exact_time,
    figure,
    fill,
    name_rows,
    share,
    spoken,
    tick_name,
    vertical_lines,
    wrapped,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_WITH_DEVICES: Final = (
    "Above: what each stream ran. Below it: when the device waited, coloured by the cause. At the bottom: what the "
    "host did then."
)
_HOST_ALONE: Final = "What the thread that runs the loop did; no device works in this trace."
_MOST_STREAMS: Final = 16
_MOST_STEP_NAMES: Final = 24
_FEW_STEPS: Final = 6
"""Steps up to which there is room for the word before each number."""

_MS: Final = 1000.0
_BLOCK_TOP: Final = -0.04
_BLOCK_DEPTH: Final = 0.5
_PALE: Final = "#E3E3E3"
"""For white: of blocks thinner than a pixel only the outline would be seen."""

_NAME_CHARACTERS: Final = 120
"""Of an operation's name on hover: thousands of blocks each carry one."""


@dataclass(slots=True)
class _Blocks:
    """All blocks of one colour, in whatever rows: one trace of plotly."""

    row: list[int] = field(default_factory=list)
    start_us: list[float] = field(default_factory=list)
    duration_us: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def add(self, row: int, start_us: float, duration_us: float, text: str) -> None:
        self.row.append(row)
        self.start_us.append(start_us)
        self.duration_us.append(duration_us)
        self.text.append(text)


def gaps_figure(window: Window) -> go.Figure:
    """Bars over milliseconds from the trace's first event, one row per stream, per device's gaps, and for the host."""
    timeline = window.timeline
    if timeline is None or not (timeline.lanes or timeline.idle or timeline.host):
        raise NothingToShow("The timeline was not stored with this record. Analyse the trace itself to see it.")
    lanes, left_out = _busiest(timeline.lanes)
    names = [wrapped(name, _NAME_CHARACTERS) for name in timeline.names]
    work: dict[WorkKind, _Blocks] = defaultdict(_Blocks)
    waits: dict[Cause, _Blocks] = defaultdict(_Blocks)
    rows: list[str] = []
    for device in dict.fromkeys([*(lane.device for lane in lanes), *(lane.device for lane in timeline.idle)]):
        _device_rows(device, lanes, timeline, names, rows, work, waits)
    if timeline.host is not None:
        _add_waits(waits, len(rows), timeline.host, names, "host", computes=not rows)
        rows.append("host: the thread that runs the loop")
    devices = bool(timeline.lanes or timeline.idle)
    drawing = figure(
        "Devices, their gaps and the host over time" if devices else "The host over time",
        (_WITH_DEVICES if devices else _HOST_ALONE)
        + " Drag to zoom, double-click to see all."
        + (f" {left_out} quieter streams are not shown." if left_out else ""),
        height=190 + ROW_HEIGHT * len(rows),
    )
    for kind in get_args(WorkKind):
        _draw(drawing, work[kind], spoken(kind), WORK_PAINT[kind])
    for cause in CAUSES:
        if cause == "launch" and not devices:
            _draw(drawing, waits[cause], HOST_COMPUTES, WORK_PAINT["compute"])
        else:
            _draw(drawing, waits[cause], spoken(cause), CAUSE_PAINT[cause])
    name_rows(drawing, rows, 1.0)
    drawing.update_yaxes(range=[len(rows) - 0.4, -1.0])
    _steps(drawing, window.steps, len(rows))
    drawing.update_xaxes(
        title_text="time since the trace began (ms)",
        range=[timeline.start_us / _MS, timeline.end_us / _MS],
        fixedrange=False,
        showgrid=False,
    )
    drawing.update_layout(dragmode="zoom", barmode="overlay")
    return drawing


def _device_rows(
    device: str,
    lanes: Sequence[Lane],
    timeline: Timeline,
    names: Sequence[str],
    rows: list[str],
    work: dict[WorkKind, _Blocks],
    waits: dict[Cause, _Blocks],
) -> None:
    """The streams of a device, then its gaps."""
    for lane in (lane for lane in lanes if lane.device == device):
        for start, duration, busy, kind, longest in zip(
            lane.start_us, lane.duration_us, lane.busy_us, lane.kind, lane.longest, strict=True
        ):
            text = f"<b>{spoken(kind)}</b> for {exact_time(duration)}"
            if busy < 0.999 * duration:
                text += f", working {exact_time(busy)}{share(busy, duration)}"
            work[kind].add(len(rows), start, duration, f"{text}<br>{names[longest]}")
        rows.append(tick_name(f"device {device}, stream {lane.stream}"))
    for idle in (idle for idle in timeline.idle if idle.device == device):
        _add_waits(waits, len(rows), idle, names, "device waits")
        rows.append(tick_name(f"device {device}: idle, by cause"))


def _add_waits(
    waits: dict[Cause, _Blocks],
    row: int,
    lane: IdleLane | HostLane,
    names: Sequence[str],
    who: str,
    *,
    computes: bool = False,
) -> None:
    for start, duration, cause, activity in zip(
        lane.start_us, lane.duration_us, lane.cause, lane.activity, strict=True
    ):
        what = HOST_COMPUTES if computes and cause == "launch" else spoken(cause)
        text = f"<b>{who}: {what}</b>, {exact_time(duration)}<br>during {names[activity]}"
        waits[cause].add(row, start, duration, text)


def _draw(drawing: go.Figure, blocks: _Blocks, name: str, paint: Paint) -> None:
    if not blocks.row:
        return
    marker = fill(paint)
    if paint.color == WHITE:
        marker |= {"color": _PALE, "line": {"width": 0}}
    drawing.add_bar(
        base=[start / _MS for start in blocks.start_us],
        x=[duration / _MS for duration in blocks.duration_us],
        y=blocks.row,
        width=_BLOCK_DEPTH,
        offset=_BLOCK_TOP,
        orientation="h",
        name=name,
        marker=marker,
        hoverinfo="text",
        hovertext=blocks.text,
    )


def _steps(drawing: go.Figure, steps: Sequence[Step], rows: int) -> None:
    """A line where each step begins, with its number above the rows as far as these have room."""
    if not steps:
        return
    vertical_lines(drawing, [step.start_us / _MS for step in steps], rows, None, "dot")
    every = -(-len(steps) // _MOST_STEP_NAMES)
    word = "step " if len(steps) <= _FEW_STEPS else ""
    drawing.add_scatter(
        x=[step.start_us / _MS for step in steps[::every]],
        y=[-0.75] * len(steps[::every]),
        text=[f" {word}{step.number}" for step in steps[::every]],
        mode="text",
        textposition="middle right",
        textfont={"size": 10},
        hoverinfo="text",
        hovertext=[f"step {step.number}, {exact_time(step.duration_us)}" for step in steps[::every]],
        showlegend=False,
    )


def _busiest(lanes: Sequence[Lane]) -> tuple[list[Lane], int]:
    """The streams that worked most, in their order, and how many others there are."""
    ranked = sorted(range(len(lanes)), key=lambda place: -sum(lanes[place].busy_us))[:_MOST_STREAMS]
    return [lanes[place] for place in sorted(ranked)], len(lanes) - len(ranked)
