"""What ran, by cost: operators and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Kernel, Operator, Window
from lightning_perf.measure.collectives import is_collective
from lightning_perf.measure.tally import OTHERS
from lightning_perf.report.colors import BLUE, HOST_PAINT, WORK_PAINT, Paint
from lightning_perf.report.figures.device import NO_DEVICE
from lightning_perf.report.figures.style import (
    BAR_DEPTH,
    BAR_TOP,
    ROW_HEIGHT,
    amounts,
    calls,
    exact_time,
    figure,
    fill,
    name_rows,
    share,
    tick_name,
    time_scale,
    wrapped,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST: Final = 15
_TWO_BARS: Final = 54
"""Pixels of a row with two bars."""

_ON_CPU: Final = Paint(BLUE)
"""Without a device the host's time is the computing."""


def operators_figure(window: Window) -> go.Figure:
    """Two bars per operator, device and host; one where the trace has no device."""
    rows = [row for row in window.operators if row.name != OTHERS]
    if not rows:
        raise NothingToShow("The trace has no operators. Record with ProfilerActivity.CPU.")
    device = any(row.self_device_us for row in rows)
    rows = sorted(rows, key=lambda row: -((row.self_device_us or 0.0) if device else row.self_us))[:_MOST]
    host_us, device_us = [row.self_us for row in rows], [row.self_device_us or 0.0 for row in rows]
    scale = time_scale([*host_us, *device_us])
    drawing = figure(
        "Operators that cost most " + ("on the device" if device else "on the host"),
        "Time in the operator itself, without those inside it. Where the host takes longer than the device, launching "
        "is the limit."
        if device
        else "Time in the operator itself, without those inside it.",
        height=120 + (_TWO_BARS if device else ROW_HEIGHT) * len(rows),
    )
    depth = BAR_DEPTH / 2 if device else BAR_DEPTH
    wholes = [sum(row.self_us for row in window.operators), sum(row.self_device_us or 0.0 for row in window.operators)]
    bars = [("host", HOST_PAINT if device else _ON_CPU, host_us, wholes[0])]
    if device:
        bars.insert(0, ("device", WORK_PAINT["compute"], device_us, wholes[1]))
    for place, (name, paint, spent, whole) in enumerate(bars):
        drawing.add_bar(
            x=scale.of(spent),
            y=list(range(len(rows))),
            width=depth,
            offset=BAR_TOP + place * depth,
            orientation="h",
            name=name,
            marker=fill(paint),
            hoverinfo="text",
            hovertext=[
                f"<b>{wrapped(row.name)}</b>{_shapes(row)}<br>{name}: {exact_time(one)}{share(one, whole)}"
                f"<br>{calls(row.calls)}"
                for row, one in zip(rows, spent, strict=True)
            ],
        )
        middle = BAR_TOP + (place + 0.5) * depth
        amounts(drawing, scale.of(spent), [units.duration(one) if one else "" for one in spent], middle=middle)
    drawing.update_layout(barmode="overlay")
    name_rows(
        drawing,
        [tick_name(_operator_name(row)) for row in rows],
        max(scale.of([*host_us, *device_us])),
        hovers=[wrapped(_operator_name(row)) for row in rows],
    )
    drawing.update_xaxes(title_text=f"own time in the trace ({scale.unit})")
    return drawing


def kernels_figure(window: Window) -> go.Figure:
    """One bar per kernel's name."""
    rows = sorted((row for row in window.kernels if row.name != OTHERS), key=lambda row: -row.total_us)[:_MOST]
    if not rows:
        raise NothingToShow(NO_DEVICE)
    spent = [row.total_us for row in rows]
    whole = sum(row.total_us for row in window.kernels)
    scale = time_scale(spent)
    drawing = figure(
        "Kernels that took the device most time",
        f"The {len(rows)} at the top of {units.count(len(window.kernels))}; a few long bars are worth a look, many "
        "short ones are launch cost."
        + (" Pink: communication." if any(is_collective(row.name) for row in rows) else ""),
        height=100 + ROW_HEIGHT * len(rows),
    )
    drawing.add_bar(
        x=scale.of(spent),
        y=list(range(len(rows))),
        width=BAR_DEPTH,
        offset=BAR_TOP,
        orientation="h",
        name="device",
        showlegend=False,
        marker={"color": [_kernel_paint(row.name).color for row in rows], "line": {"width": 0}},
        hoverinfo="text",
        hovertext=[_kernel_text(row, whole) for row in rows],
    )
    lengths = scale.of(spent)
    name_rows(drawing, [tick_name(row.name) for row in rows], max(lengths), hovers=[wrapped(row.name) for row in rows])
    amounts(drawing, lengths, [f"{units.duration(one)}{share(one, whole)}" for one in spent])
    drawing.update_xaxes(title_text=f"time in the trace ({scale.unit})", range=[0, 1.4 * max(lengths)])
    return drawing


def _kernel_paint(name: str) -> Paint:
    return WORK_PAINT["communication" if is_collective(name) else "compute"]


def _kernel_text(row: Kernel, whole_us: float) -> str:
    return (
        f"<b>{wrapped(row.name)}</b><br>{exact_time(row.total_us)}{share(row.total_us, whole_us)}"
        f"<br>{calls(row.calls)}, {exact_time(row.min_us)} to {exact_time(row.max_us)}"
    )


def _operator_name(row: Operator) -> str:
    return " ".join(part for part in (row.name, row.shapes) if part)


def _shapes(row: Operator) -> str:
    return "".join(f"<br>{wrapped(part)}" for part in (row.shapes, row.call_site) if part)
