"""Memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import MemoryPeak, TraceMemory, Window
from lightning_perf.measure.timeline import MemoryCurve
from lightning_perf.report.colors import BLUE, GREEN, ORANGE, OUTLINE, PINK
from lightning_perf.report.figures.style import (
    Scale,
    exact_size,
    exact_time,
    figure,
    plain,
    size_scale,
    vertical_lines,
    wrapped,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MS: Final = 1000.0
_HOST: Final = "cpu"
_LINES: Final = (BLUE, GREEN, PINK, ORANGE)
_NAME_CHARACTERS: Final = 32
"""Of a name in the annotation at the peak: it must fit a narrow window."""

_MOST_DEVICES: Final = 4


def memory_figure(window: Window) -> go.Figure:
    """Allocated memory as a line per device, reserved memory dashed above it."""
    memory = window.memory
    if memory is None:
        raise NothingToShow("The trace has no memory events. Record with profile_memory=True.")
    curves = _shown(memory)
    if not curves:
        raise NothingToShow("Memory over time was not stored with this record. Analyse the trace itself to see it.")
    sizes = [value for curve in curves for value in (*curve.allocated_bytes, *(curve.reserved_bytes or ()))]
    scale = size_scale(sizes)
    since = all(curve.since_start for curve in curves)
    drawing = figure(
        "Memory over time" + (", since recording began" if since else ""),
        "Line: in use. Dashed: kept by the allocator, use it or not. A level that rises from step to step is a leak.",
        height=380,
    )
    top = max([1.0 * scale.factor, *sizes]) / scale.factor if not any(sizes) else max(sizes) / scale.factor
    if window.steps:
        vertical_lines(drawing, [step.start_us / _MS for step in window.steps], 1.05 * top, "steps", "dot")
    for curve, color in zip(curves, _LINES, strict=False):
        _draw(drawing, curve, scale, color)
        peak = memory.peaks.get(curve.device)
        if peak is not None and (curve is curves[0] or len(curves) == 1):
            _mark_peak(drawing, curve, peak, scale)
    drawing.update_xaxes(title_text="time since the trace began (ms)", showgrid=False)
    lowest = min([0.0, *sizes]) / scale.factor
    drawing.update_yaxes(title_text=f"memory ({scale.unit})", range=[1.05 * lowest, 1.3 * top], fixedrange=True)
    drawing.update_layout(dragmode="zoom")
    return drawing


def _shown(memory: TraceMemory) -> list[MemoryCurve]:
    """The devices' curves, the fullest first; the host's where there is no device's."""
    curves = [curve for curve in memory.curves if curve.time_us]
    devices = [curve for curve in curves if curve.device != _HOST]
    return sorted(devices or curves, key=lambda curve: -max(curve.allocated_bytes))[:_MOST_DEVICES]


def _draw(drawing: go.Figure, curve: MemoryCurve, scale: Scale, color: str) -> None:
    who = "host" if curve.device == _HOST else f"device {plain(curve.device, 8)}"
    lines = [("allocated", curve.allocated_bytes, "solid")]
    if curve.reserved_bytes is not None:
        lines.insert(0, ("reserved", curve.reserved_bytes, "dash"))
    for name, sizes, dash in lines:
        drawing.add_scatter(
            x=[time / _MS for time in curve.time_us],
            y=scale.of(sizes),
            mode="lines",
            line={"color": color, "width": 1.5, "dash": dash, "shape": "hv"},
            name=f"{who}: {name}",
            hoverinfo="text",
            hovertext=[
                f"<b>{who}: {name}</b><br>{exact_size(size)}<br>at {exact_time(time)}"
                for time, size in zip(curve.time_us, sizes, strict=True)
            ],
        )


def _mark_peak(drawing: go.Figure, curve: MemoryCurve, peak: MemoryPeak, scale: Scale) -> None:
    most = peak.allocated_bytes if peak.allocated_bytes is not None else max(curve.allocated_bytes)
    side = _side((peak.time_us - curve.time_us[0]) / (curve.time_us[-1] - curve.time_us[0] or 1.0))
    holders = [f"step {peak.step}" if peak.step is not None else None, peak.phase]
    named = [plain(name, _NAME_CHARACTERS) for name in (peak.module, peak.operator) if name is not None]
    known = [holder for holder in holders if holder is not None]
    drawing.add_annotation(
        x=peak.time_us / _MS,
        y=most / scale.factor,
        text="<br>".join([f"peak {units.size(most)}", *([", ".join(known)] if known else []), *named]),
        hovertext="<br>".join(wrapped(name) for name in (peak.module, peak.operator) if name is not None) or None,
        align=side,
        xanchor=side,
        yanchor="bottom",
        ax=0,
        ay=-12,
        showarrow=True,
        arrowhead=6,
        arrowwidth=1,
        arrowcolor=OUTLINE,
        font={"size": 11},
    )


def _side(place: float) -> str:
    """Where a text is anchored that must stay inside the figure; ``place`` is between 0 and 1."""
    return "left" if place < 1 / 3 else "right" if place > 2 / 3 else "center"
