"""What all figures share: their look, units, and how a name from a trace becomes harmless text.

plotly reads a kind of HTML in every text (``<b>``, ``<a href>``, ``<br>``, entities), fills in ``%{x}`` in some, and
makes formulas of what is between dollars where a page has MathJax. Every name that comes from a trace or from a user's
code passes :func:`plain`, :func:`wrapped` or :func:`tick_name` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from lightning_perf import units
from lightning_perf.report.colors import FAINT, OUTLINE, WHITE, Paint

LONGEST_NAME: Final = 300
"""Characters of a name that are shown on hover."""

HOVER_WIDTH: Final = 60
"""Characters of a line in hover text: three quarters of a narrow window."""

TITLE_HEIGHT: Final = 36
"""Pixels at the top of each figure that its title takes; the legend begins below."""

ROW_HEIGHT: Final = 36
"""Pixels of a row with its name above its bar: fits a narrow window where a name beside the bar would not."""

BAR_TOP: Final = -0.04
BAR_DEPTH: Final = 0.44
"""Where a bar lies in its row, in rows: below the name."""

WIDEST_NAME: Final = 54
"""Characters of a name above a bar: what fits a narrow window."""

LEGEND_ROW: Final = 19
"""Pixels of a row of the legend."""

INK: Final = "#1A1A1A"
"""Text on a light colour, on whatever page."""

_FONTS: Final = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
_LIGHT: Final = 118
"""Brightness (ITU-R BT.601, of 255) from which on dark text is easier to read."""

_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"})
_TIME_FACTORS: Final = {"µs": 1.0, "ms": 1e3, "s": 1e6}
_SIZE_FACTORS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Scale:
    """The one unit of a figure: microseconds or bytes are divided by ``factor``."""

    factor: float
    unit: str

    def of(self, values: Sequence[float]) -> list[float]:
        """Values in the unit."""
        return [value / self.factor for value in values]


def time_scale(values_us: Sequence[float]) -> Scale:
    """The unit that fits the largest of some times in microseconds."""
    _, unit = units.durations(list(values_us))
    return Scale(_TIME_FACTORS[unit], unit)


def size_scale(values_bytes: Sequence[float]) -> Scale:
    """The unit that fits the largest of some sizes in bytes."""
    unit = units.size(max(map(abs, values_bytes), default=0.0)).split()[-1]
    return Scale(_SIZE_FACTORS[unit], unit)


def exact_time(microseconds: float) -> str:
    """A time to three decimals of its unit: 177.592 ms."""
    scale = time_scale([microseconds])
    return f"{microseconds / scale.factor:,.3f} {scale.unit}"


def exact_size(size_bytes: float) -> str:
    """A size to three decimals of its unit: 10.207 GiB."""
    scale = size_scale([size_bytes])
    return f"{size_bytes / scale.factor:,.{0 if scale.factor == 1 else 3}f} {scale.unit}"


def share(part: float, whole: float) -> str:
    """A part of a whole in brackets: " (33 %)"; nothing where there is no whole."""
    return f" ({units.percent(part / whole)})" if whole else ""


def plain(name: str, limit: int = LONGEST_NAME) -> str:
    """A name from a trace as text that plotly shows as it is: on one line, cut at the end, nothing in it special."""
    return _one_line(name, limit).translate(_ESCAPES)


def wrapped(name: str, limit: int = LONGEST_NAME) -> str:
    """A name from a trace for hover text: like :func:`plain`, broken into lines of :data:`HOVER_WIDTH`."""
    text = _one_line(name, limit)
    lines = [text[place : place + HOVER_WIDTH] for place in range(0, len(text), HOVER_WIDTH)]
    return "<br>".join(line.translate(_ESCAPES) for line in lines)


def tick_name(name: str) -> str:
    """A name from a trace for an axis: cut in the middle, where kernels of one template differ least."""
    text = _one_line(name, len(name))
    tail = WIDEST_NAME // 2
    return (text if len(text) <= WIDEST_NAME else f"{text[: WIDEST_NAME - tail - 1]}…{text[-tail:]}").translate(
        _ESCAPES
    )


def _one_line(name: str, limit: int) -> str:
    text = "".join(character if character.isprintable() else " " for character in name[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def calls(number: int) -> str:
    """How often something was called: "1 call", "1,200 calls"."""
    return "1 call" if number == 1 else f"{units.count(number)} calls"


def spoken(word: str) -> str:
    """A phase, a cause or a kind of work as people read it."""
    return word.replace("_", " ")


def fill(paint: Paint) -> dict[str, object]:
    """A bar's ``marker``."""
    marker: dict[str, object] = {"color": paint.color, "line": {"width": 0}}
    if paint.color == WHITE:
        marker["line"] = {"width": 1, "color": OUTLINE}
    if paint.pattern:
        marker["pattern"] = {"shape": paint.pattern, "fgcolor": OUTLINE, "fillmode": "overlay", "size": 6}
    return marker


def ink(paint: Paint) -> str:
    """The colour of text on a paint: near-black or white, whichever is further from it in brightness."""
    red, green, blue = (int(paint.color[place : place + 2], 16) for place in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > _LIGHT else WHITE


def hatched(paint: Paint) -> Paint:
    """The same colour for waiting: hatched, where working is solid."""
    return paint if paint.pattern or paint.color == WHITE else Paint(paint.color, "/")


def template() -> go.layout.Template:
    """The look of every figure: transparent, without a colour of text that a dark page could not change."""
    axis = {
        "gridcolor": FAINT,
        "zerolinecolor": FAINT,
        "linecolor": FAINT,
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 12}},
    }
    return go.layout.Template(
        layout={
            "font": {"family": _FONTS, "size": 12},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 12, "r": 24, "t": TITLE_HEIGHT, "b": 44},
            "title": {
                "x": 0,
                "xref": "container",
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"l": 12, "t": 8},
                "font": {"size": 15},
            },
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "xref": "container",
                "x": 0,
                "xanchor": "left",
                "yref": "container",
                "yanchor": "top",
                "bgcolor": "rgba(0,0,0,0)",
                "font": {"size": 11},
                "itemwidth": 30,
            },
            "hoverlabel": {"align": "left", "namelength": -1, "font": {"family": _FONTS, "size": 12}},
            "hovermode": "closest",
            "xaxis": axis,
            "yaxis": axis,
            "bargap": 0.25,
        }
    )


def figure(title: str, aid: str, *, height: int) -> go.Figure:
    """An empty figure.

    Args:
        title: what it shows, in our own words.
        aid: one line that says how to read it; it stands in ``layout.meta["aid"]``.
        height: pixels. The width is that of the page.
    """
    return go.Figure(
        layout={
            "template": template(),
            "title": {"text": title},
            "meta": {"aid": aid},
            "height": height,
            "legend": {"y": 1 - TITLE_HEIGHT / height},
            "barmode": "stack",
            "dragmode": False,
        }
    )


def name_rows(drawing: go.Figure, names: Sequence[str], longest: float, *, hovers: Sequence[str] = ()) -> None:
    """Name the rows 0, 1, ... from the top, each above its bar, and leave room for an amount behind the longest.

    Labels of ticks cannot do that: inside the axes they keep a colour of their own, and hide those of the other axis.

    Args:
        drawing: its bars lie from :data:`BAR_TOP` on, :data:`BAR_DEPTH` deep.
        names: escaped already; two rows may have the same.
        longest: length of the longest bar, in the figure's unit.
        hovers: the full names, escaped already, shown on hover.
    """
    labels: list[dict[str, object]] = [
        {
            "xref": "x domain",
            "x": 0,
            "xanchor": "left",
            "y": row + BAR_TOP,
            "yanchor": "bottom",
            "text": name,
            "align": "left",
            "showarrow": False,
            "font": {"size": 11},
            "borderpad": 0,
        }
        for row, name in enumerate(names)
    ]
    for label, hover in zip(labels, hovers, strict=False):
        label["hovertext"] = hover
    drawing.update_layout(annotations=labels)
    drawing.update_yaxes(
        showticklabels=False,
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
        automargin=False,
        fixedrange=True,
    )
    drawing.update_xaxes(range=[0, 1.22 * longest or 1], fixedrange=True)


def amounts(
    drawing: go.Figure, lengths: Sequence[float], texts: Sequence[str], *, middle: float = BAR_TOP + BAR_DEPTH / 2
) -> None:
    """Write an amount behind each row's bar.

    Args:
        drawing: the figure.
        lengths: of the bars, in the figure's unit.
        texts: one for each.
        middle: of a bar, in rows from the row's own middle.
    """
    drawing.add_scatter(
        x=list(lengths),
        y=[row + middle for row in range(len(lengths))],
        text=[f"&nbsp;{text}" for text in texts],
        mode="text",
        textposition="middle right",
        textfont={"size": 11},
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )


def vertical_lines(drawing: go.Figure, places: Sequence[float], top: float, name: str | None, dash: str) -> None:
    """Lines from 0 to ``top``, all in one trace; with a name they are in the legend."""
    x: list[float | None] = []
    y: list[float | None] = []
    for place in places:
        x += [place, place, None]
        y += [0, top, None]
    drawing.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": OUTLINE, "width": 1, "dash": dash},
        hoverinfo="skip",
        name=name,
        showlegend=name is not None,
    )
