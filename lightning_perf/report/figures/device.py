"""Devices and their communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Collective, Device, Window
from lightning_perf.names import CAUSES
from lightning_perf.report.colors import CAUSE_PAINT, IDLE_PAINT, PINK, WORK_PAINT, Paint, tint
from lightning_perf.report.figures.style import (
    BAR_DEPTH,
    BAR_TOP,
    LEGEND_ROW,
    ROW_HEIGHT,
    amounts,
    calls,
    exact_size,
    exact_time,
    figure,
    fill,
    hatched,
    ink,
    name_rows,
    plain,
    share,
    spoken,
    tick_name,
    time_scale,
    wrapped,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

NO_DEVICE: Final = (
    "No device works in this trace. If the training uses one: record with ProfilerActivity.CUDA, on a machine whose "
    "driver allows profiling."
)
_IDLE: Final = "idle: "
_WORTH_TEXT: Final = 0.04
_MOST: Final = 15
_OVERLAPPED: Final = Paint(tint(PINK, 0.4))


def device_figure(window: Window) -> go.Figure:
    """One bar of 100 % per device: busy by kind of work, then idle by cause.

    Kinds of work are known over the trace, idle causes over its complete steps: there, busy time is split as it is over
    the whole trace.
    """
    if not window.devices:
        raise NothingToShow(NO_DEVICE)
    parts = [_parts(device) for device in window.devices]
    shown = [name for name in _ORDER if any(name in part for part in parts)]
    drawing = figure(
        "What the device did" if len(parts) == 1 else f"What {len(parts)} devices did",
        "Solid: it worked. Hatched or white: it waited, and the colour says for what.",
        height=130 + ROW_HEIGHT * len(parts) + LEGEND_ROW * -(-len(shown) // 2),
    )
    wholes = [sum(part.values()) for part in parts]
    for name in shown:
        spent = [part.get(name, 0.0) for part in parts]
        drawing.add_bar(
            x=[100 * part / whole if whole else 0.0 for part, whole in zip(spent, wholes, strict=True)],
            y=list(range(len(parts))),
            width=BAR_DEPTH,
            offset=BAR_TOP,
            orientation="h",
            name=name.removeprefix(_IDLE),
            showlegend=max(part / whole if whole else 0.0 for part, whole in zip(spent, wholes, strict=True)) >= 0.002,
            marker=fill(_ORDER[name]),
            customdata=spent,
            text=[
                f"{name}<br>{units.percent(part / whole)}" if whole and part > _WORTH_TEXT * whole else ""
                for part, whole in zip(spent, wholes, strict=True)
            ],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": ink(_ORDER[name])},
            hoverinfo="text",
            hovertext=[
                f"<b>{name}</b><br>{exact_time(part)} of {exact_time(whole)}{share(part, whole)}"
                f"<br>device {plain(device.index, 8)}"
                for device, part, whole in zip(window.devices, spent, wholes, strict=True)
            ],
        )
    name_rows(drawing, list(map(_row_name, window.devices)), 100.0)
    drawing.update_xaxes(title_text="share of the time (%)", range=[0, 100], dtick=25, ticksuffix=" %")
    drawing.update_layout(uniformtext={"mode": "hide", "minsize": 10})
    return drawing


def communication_figure(window: Window) -> go.Figure:
    """One bar per collective: exposed first, then overlapped."""
    rows = sorted(window.collectives, key=lambda one: -one.total_us)[:_MOST]
    if not rows:
        raise NothingToShow("The trace has no collectives: the run used one rank, or recorded no device operations.")
    scale = time_scale([row.total_us for row in rows])
    drawing = figure(
        "Collectives: exposed and overlapped time",
        "Dark: the device did nothing else, training waits. Pale: other work ran meanwhile, it costs nothing.",
        height=120 + ROW_HEIGHT * len(rows),
    )
    for name, paint, spent in (
        ("exposed", WORK_PAINT["communication"], [row.exposed_us for row in rows]),
        ("overlapped", _OVERLAPPED, [row.overlapped_us for row in rows]),
    ):
        drawing.add_bar(
            x=scale.of(spent),
            y=list(range(len(rows))),
            width=BAR_DEPTH,
            offset=BAR_TOP,
            orientation="h",
            name=name,
            marker=fill(paint),
            hoverinfo="text",
            hovertext=[
                f"{wrapped(row.name)}<br>{name}: {exact_time(part)}{share(part, row.total_us)}{_details(row)}"
                for row, part in zip(rows, spent, strict=True)
            ],
        )
    lengths = scale.of([row.exposed_us + row.overlapped_us for row in rows])
    name_rows(
        drawing, [tick_name(_title(row)) for row in rows], max(lengths), hovers=[wrapped(row.name) for row in rows]
    )
    amounts(drawing, lengths, [units.duration(row.total_us) for row in rows])
    drawing.update_xaxes(title_text=f"time in the trace ({scale.unit})")
    return drawing


_ORDER: Final[dict[str, Paint]] = {
    "compute": WORK_PAINT["compute"],
    "communication": WORK_PAINT["communication"],
    "copies": WORK_PAINT["copy"],
    **{f"{_IDLE}{spoken(cause)}": hatched(CAUSE_PAINT[cause]) for cause in CAUSES},
    "idle": IDLE_PAINT,
}
"""Parts of a device's time in the order in which they are drawn."""


def _parts(device: Device) -> dict[str, float]:
    """A device's time, microseconds: parts add up to its window, or to its span where there is none."""
    copies_us = device.busy_us - device.compute_us - device.exposed_communication_us
    work = {
        "compute": device.compute_us,
        "communication": device.exposed_communication_us,
        "copies": copies_us,
    }
    measured = device.window
    if measured is None:
        return _positive({**work, "idle": device.idle_us})
    within = measured.busy_us / device.busy_us if device.busy_us else 0.0
    causes = {f"{_IDLE}{spoken(cause)}": measured.idle_causes_us.get(cause, 0.0) for cause in CAUSES}
    return _positive(
        {
            **{name: within * spent for name, spent in work.items()},
            **causes,
            "idle": measured.idle_us - sum(causes.values()),
        }
    )


def _positive(parts: dict[str, float]) -> dict[str, float]:
    """Parts of more than a nanosecond: less is rounding."""
    return {name: spent for name, spent in parts.items() if spent > 1e-3}


def _row_name(device: Device) -> str:
    name = f" · {device.name}" if device.name else ""
    measured = device.window
    busy, whole = (device.busy_us, device.span_us) if measured is None else (measured.busy_us, measured.duration_us)
    return f"{tick_name(f'device {device.index}{name}')}: {units.percent(busy / whole if whole else None)} busy"


def _title(row: Collective) -> str:
    if row.collective is None:
        return row.name
    sizes = "" if row.in_elements is None else f" of {units.count(row.in_elements)}"
    return f"{row.collective}{sizes} {row.dtype or ''}".rstrip()


def _details(row: Collective) -> str:
    lines = [f"{calls(row.calls)}, {exact_time(row.total_us)} together"]
    if row.bytes is not None:
        lines.append(exact_size(row.bytes))
    if row.gb_per_s is not None:
        lines.append(f"{row.gb_per_s:,.1f} GB/s")
    return "".join(f"<br>{line}" for line in lines)
