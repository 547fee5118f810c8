"""What a browser shows of an analysis: views made of blocks, as records that are sent as JSON.

Text is plain text, never markup. Figures are plotly's JSON. Numbers in tables stay numbers, so that they can be sorted,
beside the scale that writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lightning_perf.errors import NothingToShow
from lightning_perf.report.tables import Kind, Value, scale_of
from lightning_perf.runinfo import Record

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

LONGEST_TEXT: Final = 500
"""Longer names are cut: a template's kernel can have thousands of characters."""


class Tile(Record, frozen=True, kw_only=True):
    """One key figure. ``trend`` is the same figure in the trace's windows, in their order; empty for fewer than two.

    ``value`` is a dash where it is unknown, and ``note`` says why then.
    """

    label: str
    value: str
    note: str | None = None
    view: str | None = None
    trend: list[float] = []


class Tiles(Record, frozen=True, kw_only=True, tag="tiles"):
    """Key figures side by side."""

    tiles: list[Tile]


class Card(Record, frozen=True, kw_only=True):
    """One finding: what it says, what to change and what that saves; ``why`` is its evidence.

    ``number`` is None for one that saves no time, ``view`` the view that shows more of it.
    """

    number: int | None
    title: str
    gain: str | None
    action: str
    why: list[str]
    severity: str
    rule: str
    link: str
    view: str | None


class Findings(Record, frozen=True, kw_only=True, tag="findings"):
    """The verdict, and what to change, the largest saving first. ``outcome``: what the last advice has brought."""

    verdict: list[str]
    cards: list[Card]
    outcome: str | None = None


class Figure(Record, frozen=True, kw_only=True, tag="figure"):
    """A plotly figure, with its title and one line that says how to read it. ``zooms``: its x axis is time in ms."""

    id: str
    title: str
    aid: str
    plot: msgspec.Raw
    zooms: bool = False


class TableColumn(Record, frozen=True, kw_only=True):
    """A column: numbers are divided by ``factor`` and written with ``decimals`` in ``unit``. Texts have no scale."""

    key: str
    name: str
    numeric: bool
    unit: str = ""
    factor: float = 1.0
    decimals: int = 0
    grouped: bool = True
    adds_up: bool = False


class Table(Record, frozen=True, kw_only=True, tag="table"):
    """Rows of values, sorted already. ``group_by`` names columns by which rows can be summed.

    ``zoom`` is the id of a figure over time on which a row's ``start_us`` and ``duration_us`` can be shown.
    """

    id: str
    title: str
    columns: list[TableColumn]
    rows: list[list[Value]]
    group_by: list[str] = []
    zoom: str | None = None
    aid: str | None = None


class Facts(Record, frozen=True, kw_only=True, tag="facts"):
    """Names and values."""

    title: str
    facts: list[tuple[str, str]]


class Note(Record, frozen=True, kw_only=True, tag="note"):
    """A sentence in the place of something that cannot be shown."""

    title: str
    text: str


Block = Tiles | Findings | Figure | Table | Facts | Note


class View(Record, frozen=True, kw_only=True):
    """One view: blocks from top to bottom; ``side`` stands beside them where there is room, ``below`` under both."""

    id: str
    title: str
    blocks: list[Block]
    side: list[Block] = []
    below: list[Block] = []


class StepRange(Record, frozen=True, kw_only=True):
    """Where a recorded step lies, microseconds from the trace's first event."""

    number: int
    start_us: float
    end_us: float


class Page(Record, frozen=True, kw_only=True):
    """Everything that is shown of a run or of one trace window."""

    title: str
    subtitle: str
    notes: list[str]
    steps: list[StepRange]
    views: list[View]
    trace: str | None


def plain(text: object, limit: int = LONGEST_TEXT) -> str:
    """A name for people: on one line, without control characters, and cut where it is longer than ``limit``."""
    shown = "".join(one if one.isprintable() else " " for one in str(text))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def figure(
    id: str,  # noqa: A002
    draw: Callable[[], Plot],
    *,
    title: str,
    height_px: int | None = None,
    zooms: bool = False,
) -> Figure | Note:
    """A block that holds what ``draw`` gives, or says why there is nothing to draw under ``title``."""
    try:
        plot = draw()
    except NothingToShow as nothing:
        return Note(title=title, text=str(nothing))
    heading, aid = str(plot.layout.title.text), str((plot.layout.meta or {}).get("aid", ""))
    if height_px is not None:
        plot.update_layout(height=height_px)
    return Figure(id=id, title=heading, aid=aid, plot=msgspec.Raw(plot.to_json(engine="json").encode()), zooms=zooms)


def table(
    id: str,  # noqa: A002
    title: str,
    columns: Sequence[tuple[str, Kind]],
    rows: Sequence[dict[str, Value]],
    *,
    group_by: Sequence[str] = (),
    zoom: str | None = None,
    aid: str | None = None,
    names: dict[str, str] | None = None,
    one_unit: bool = False,
) -> Table | Note:
    """A table of some columns of rows; without those that are empty or 0 in every row.

    Args:
        id: of the block.
        title: what it lists.
        columns: keys of the rows and what they hold.
        rows: in the order in which they are shown first.
        group_by: keys of texts that occur in several rows.
        zoom: see :class:`Table`.
        aid: one line that says how to read it.
        names: headers that are not the key's own words.
        one_unit: all times in the same unit, as they are read along a row.
    """
    if not rows:
        return Note(title=title, text="There are none.")
    shown = [(key, kind) for key, kind in columns if any(row[key] for row in rows)]
    times = [row[key] for key, kind in shown if kind == "time" for row in rows]
    heads = [
        _head(key, kind, times if one_unit and kind == "time" else [row[key] for row in rows], (names or {}).get(key))
        for key, kind in shown
    ]
    return Table(
        id=id,
        title=title,
        columns=heads,
        rows=[[plain(row[key]) if isinstance(row[key], str) else row[key] for key, _ in shown] for row in rows],
        group_by=[key for key, _ in shown if key in group_by and 1 < len({row[key] for row in rows}) < len(rows)],
        zoom=zoom,
        aid=aid,
    )


_ADDS_UP: Final = frozenset({"count", "time", "bytes", "flops"})
_DO_NOT_ADD_UP: Final = ("mean_us", "min_us", "max_us", "launch_latency_us", "start_us", "group_size")


def _head(key: str, kind: Kind, values: Sequence[Value], name: str | None) -> TableColumn:
    scale = scale_of(kind, values)
    return TableColumn(
        key=key,
        name=name or key.removesuffix("_us").removesuffix("_ratio").replace("_", " "),
        numeric=kind != "text",
        unit=scale.unit,
        factor=scale.factor,
        decimals=scale.decimals,
        grouped=scale.grouped,
        adds_up=kind in _ADDS_UP and key not in _DO_NOT_ADD_UP,
    )
