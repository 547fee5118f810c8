"""Ranks side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Analysis, Step
from lightning_perf.report.colors import ORANGE, VERMILION, WHITE
from lightning_perf.report.figures.style import INK, exact_time, figure, share, spoken, time_scale

if TYPE_CHECKING:
    import plotly.graph_objects as go

_DARKEST: Final = "#3D1F00"
_ROW: Final = 26


def ranks_figure(analysis: Analysis) -> go.Figure:
    """A heat map, ranks from the top, steps from the left; several windows of a rank follow each other."""
    ranks: dict[int, dict[int, Step]] = {}
    for window in analysis.windows:
        if window.rank is not None:
            ranks.setdefault(window.rank, {}).update({step.number: step for step in window.steps if step.complete})
    ranks = {rank: ranks[rank] for rank in sorted(ranks) if ranks[rank]}
    if len(ranks) < 2:
        raise NothingToShow(
            f"Traces of {len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'} with steps; comparing takes two. "
            "Give the folder with the traces of all ranks."
        )
    numbers = sorted({number for steps in ranks.values() for number in steps})
    cells = [[steps.get(number) for number in numbers] for steps in ranks.values()]
    durations = [cell.duration_us for row in cells for cell in row if cell is not None]
    scale = time_scale(durations)
    drawing = figure(
        f"Step time of {len(ranks)} ranks",
        "One row per rank, dark is slow; the ring marks the slowest rank of a step. A row marked again and again is a "
        "straggler.",
        height=max(240, 150 + _ROW * len(ranks)),
    )
    names = [f"rank {rank}" for rank in ranks]
    drawing.add_heatmap(
        z=[[None if cell is None else cell.duration_us / scale.factor for cell in row] for row in cells],
        x=list(range(len(numbers))),
        y=list(range(len(names))),
        customdata=[numbers] * len(names),
        colorscale=[[0.0, "#FFF3D6"], [0.4, ORANGE], [0.75, VERMILION], [1.0, _DARKEST]],
        colorbar={"title": {"text": scale.unit}, "thickness": 12, "outlinewidth": 0},
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hoverinfo="text",
        hovertext=[[_text(name, cell) for cell in row] for name, row in zip(names, cells, strict=True)],
    )
    _mark_slowest(drawing, cells)
    every = -(-len(numbers) // 16)
    drawing.update_xaxes(
        title_text="step",
        tickmode="array",
        tickvals=list(range(0, len(numbers), every)),
        ticktext=[str(number) for number in numbers[::every]],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
    drawing.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(names))),
        ticktext=names,
        range=[len(names) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
    return drawing


def _mark_slowest(drawing: go.Figure, cells: list[list[Step | None]]) -> None:
    x, y = [], []
    for place, column in enumerate(zip(*cells, strict=True)):
        known = {rank: cell.duration_us for rank, cell in enumerate(column) if cell is not None}
        if len(known) > 1:
            x.append(place)
            y.append(max(known, key=lambda rank: known[rank]))
    drawing.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": 9, "color": WHITE, "line": {"width": 2, "color": INK}},
        name="slowest",
        hoverinfo="skip",
        showlegend=False,
    )


def _text(name: str, step: Step | None) -> str:
    if step is None:
        return ""
    lines = [
        f"<b>{name}, step {step.number}</b>: {exact_time(step.duration_us)}",
        f"data loading: {exact_time(step.data_loading_us)}{share(step.data_loading_us, step.duration_us)}",
    ]
    longest = sorted(step.phases_us.items(), key=lambda item: -item[1])[:4]
    lines += [f"{spoken(phase)}: {exact_time(spent)}{share(spent, step.duration_us)}" for phase, spent in longest]
    return "<br>".join(lines)
