"""Modules as nested areas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Module, Window
from lightning_perf.measure.tally import OTHERS
from lightning_perf.report.colors import BLUE, tint
from lightning_perf.report.figures.style import calls, exact_time, figure, plain, share, wrapped

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LONGEST_LABEL: Final = 60
_DEEPEST: Final = 12
"""Levels beyond which parts of a name stay together."""


@dataclass(frozen=True, slots=True)
class _Area:
    """One area: microseconds of its own, forward and, where the trace tells, backward."""

    path: tuple[str, ...]
    forward_us: float
    backward_us: float | None
    calls: int
    name: str

    @property
    def own_us(self) -> float:
        return self.forward_us + (self.backward_us or 0.0)


def modules_figure(window: Window) -> go.Figure:
    """Areas hold a module's own time and the modules inside it: those named by a path, else those of one class."""
    labelled = [row for row in window.modules if row.source == "label"]
    rows = [row for row in labelled or window.modules if row.name != OTHERS]
    if not rows:
        raise NothingToShow(
            "The trace names no modules. PerfCallback(module_depth=2) labels them; with_stack=True in torch does too."
        )
    device = any(row.self_device_us or row.self_backward_device_us for row in rows)
    areas = _areas(rows, device=device)
    totals = _totals(areas)
    whole_us = sum(area.own_us for area in areas)
    if whole_us <= 0:
        raise NothingToShow("The modules took no time that the trace can tell.")
    ids = {area.path: str(place) for place, area in enumerate(areas)}
    where = "device" if device else "host"
    drawing = figure(
        f"Time of modules on the {where}, {units.duration(whole_us)} together",
        "An area is a module's time, forward and backward; inside it lie the modules that it calls. Click one to open.",
        height=440,
    )
    drawing.add_treemap(
        ids=[ids[area.path] for area in areas],
        labels=[plain(area.path[-1], _LONGEST_LABEL) for area in areas],
        parents=[ids.get(area.path[:-1], "") for area in areas],
        values=[area.own_us for area in areas],
        branchvalues="remainder",
        text=[units.duration(totals[area.path]) for area in areas],
        textinfo="label+text",
        hoverinfo="text",
        hovertext=[_text(area, totals[area.path], whole_us) for area in areas],
        marker={
            "colors": [tint(BLUE, max(0.25, 1 - 0.22 * (len(area.path) - 1))) for area in areas],
            "pad": {"t": 20, "l": 3, "r": 3, "b": 3},
            "line": {"width": 1},
        },
        tiling={"pad": 2},
        pathbar={"visible": True, "thickness": 20},
        root={"color": "rgba(0,0,0,0)"},
        maxdepth=4,
    )
    drawing.update_layout(margin={"b": 12}, uniformtext={"mode": "hide", "minsize": 9})
    return drawing


def _areas(rows: list[Module], *, device: bool) -> list[_Area]:
    """One area per module, and one without time for each part of a path that is no module itself.

    Names that frames tell (``Conv2d_3``) have no path: these modules lie in their class.
    """
    found: dict[tuple[str, ...], _Area] = {}
    for row in rows:
        path = _path(row)
        forward, backward = (
            (row.self_device_us, row.self_backward_device_us) if device else (row.self_us, row.self_backward_us)
        )
        found[path] = _Area(
            path,
            forward or 0.0,
            backward,
            row.calls,
            row.name,
        )
        for length in range(1, len(path)):
            found.setdefault(path[:length], _Area(path[:length], 0.0, None, 0, ".".join(path[:length])))
    return [found[path] for path in sorted(found)]


def _path(row: Module) -> tuple[str, ...]:
    if row.source == "label":
        return tuple(row.name.split(".", _DEEPEST))
    kind, _, number = row.name.rpartition("_")
    return (kind, row.name) if kind and number.isdigit() else (row.name,)


def _totals(areas: list[_Area]) -> dict[tuple[str, ...], float]:
    totals = dict.fromkeys((area.path for area in areas), 0.0)
    for area in areas:
        for length in range(1, len(area.path) + 1):
            totals[area.path[:length]] += area.own_us
    return totals


def _text(area: _Area, total_us: float, whole_us: float) -> str:
    lines = [
        f"<b>{wrapped(area.name)}</b>",
        f"{exact_time(total_us)}{share(total_us, whole_us)} with the modules inside",
    ]
    if area.calls:
        backward = f", backward {exact_time(area.backward_us)}" if area.backward_us is not None else ""
        lines.append(f"own: forward {exact_time(area.forward_us)}{backward}")
        lines.append(calls(area.calls))
    return "<br>".join(lines)
