"""Tables of a trace, as people know them from ``key_averages().table()``: for the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import msgspec

from lightning_perf import units
from lightning_perf.measure.analysis import Window
from lightning_perf.measure.efficiency import CPU

TableName = Literal["operators", "kernels", "modules", "collectives", "copies", "gaps"]
TABLES: Final[tuple[TableName, ...]] = get_args(TableName)

TOP: Final = 20
"""Rows that a table shows unless told otherwise."""

WIDEST_TEXT: Final = 60
"""Longer names are cut in the middle, where kernels of one template differ least."""

Value = str | int | float | None
Row = dict[str, Value]
Kind = Literal["text", "index", "count", "number", "time", "ratio", "bytes", "flops", "flops_per_s"]

_UNITS_IN_KEYS: Final = ("_us", "_ratio")
_TIME_UNITS: Final = ((1e8, 1e6, "s"), (1e4, 1e3, "ms"), (0.0, 1.0, "µs"))
"""From which largest value on (microseconds) a column is shown in which unit."""
_SIZE_UNITS: Final = ((float(1 << 30), "GiB"), (float(1 << 20), "MiB"), (float(1 << 10), "KiB"), (1.0, "B"))
_FLOPS_UNITS: Final = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))

_COMPUTING: Final = "computing_us"
"""Key of the time in which an operator's arithmetic was done."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    ``key`` is the record's field and the name in CSV files; ``name``, the key without its unit, is what tables show
    and ``--sort`` takes. A derived column is the field ``of`` divided by the field ``per`` of the same row, or by the
    sum of ``of`` over all rows, and multiplied by ``times``.
    """

    key: str
    kind: Kind
    of: str | None = None
    per: str | None = None
    times: float = 1.0

    @property
    def name(self) -> str:
        """The key without its unit."""
        unit = next((unit for unit in _UNITS_IN_KEYS if self.key.endswith(unit)), "")
        return self.key.removesuffix(unit)


_NAME: Final = Column("name", "text")
_CALLS: Final = Column("calls", "count")
_HOST_AND_DEVICE: Final = (
    Column("self_share_ratio", "ratio", of="self_us"),
    Column("self_us", "time"),
    Column("total_us", "time"),
    Column("mean_us", "time", of="total_us", per="calls"),
    Column("self_device_share_ratio", "ratio", of="self_device_us"),
    Column("self_device_us", "time"),
    Column("device_us", "time"),
    Column("launches", "count"),
    _CALLS,
)
_BACKWARD: Final = (Column("backward_us", "time"), Column("backward_device_us", "time"))
_COLUMNS: Final[dict[TableName, tuple[Column, ...]]] = {
    "operators": (
        _NAME,
        Column("shapes", "text"),
        Column("call_site", "text"),
        *_HOST_AND_DEVICE,
        *_BACKWARD,
        Column("flops", "flops"),
        Column("flops_per_s", "flops_per_s", of="flops", per=_COMPUTING, times=1e6),
    ),
    "kernels": (
        _NAME,
        Column("total_us", "time"),
        Column("busy_ratio", "ratio"),
        _CALLS,
        Column("mean_us", "time"),
        Column("min_us", "time"),
        Column("max_us", "time"),
        Column("launch_latency_us", "time"),
        Column("queue_depth", "number"),
        Column("shorter_than_launch", "count"),
        Column("graph_calls", "count"),
        Column("negative_latencies", "count"),
    ),
    "modules": (
        _NAME,
        Column("source", "text"),
        *_HOST_AND_DEVICE,
        Column("self_backward_us", "time"),
        Column("self_backward_device_us", "time"),
        *_BACKWARD,
    ),
    "collectives": (
        _NAME,
        Column("collective", "text"),
        Column("dtype", "text"),
        Column("in_elements", "count"),
        Column("out_elements", "count"),
        Column("group", "text"),
        Column("group_size", "count"),
        _CALLS,
        Column("total_us", "time"),
        Column("exposed_us", "time"),
        Column("overlapped_us", "time"),
        Column("mean_us", "time", of="total_us", per="calls"),
        Column("bytes", "bytes"),
        Column("gb_per_s", "number"),
    ),
    "copies": (
        Column("kind", "text"),
        Column("memory", "text"),
        _CALLS,
        Column("total_us", "time"),
        Column("mean_us", "time", of="total_us", per="calls"),
        Column("bytes", "bytes"),
        Column("gb_per_s", "number"),
    ),
    "gaps": (
        Column("device", "text"),
        Column("step", "index"),
        Column("start_us", "time"),
        Column("duration_us", "time"),
        Column("cause", "text"),
        Column("activity", "text"),
        Column("host", "text"),
        Column("ended_by", "text"),
    ),
}
_COSTS: Final[dict[TableName, tuple[str, ...]]] = {
    "operators": ("self_device", "self"),
    "kernels": ("total",),
    "modules": ("device", "total"),
    "collectives": ("total",),
    "copies": ("total",),
    "gaps": ("duration",),
}
"""What a table can be sorted by if nothing is asked: the column with the largest sum."""

_ASCENDING: Final = frozenset({"start"})


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one trace, sorted. ``left_out`` counts the rows that are not shown."""

    name: TableName
    trace: str
    sort: str
    columns: tuple[Column, ...]
    rows: list[Row]
    left_out: int


def sort_names(name: TableName) -> list[str]:
    """What a table can be sorted by."""
    return [column.name for column in _COLUMNS[name]]


def table_of(window: Window, name: TableName, *, sort: str | None = None, top: int | None = TOP) -> Table:
    """A table of a trace: its rows with derived columns, the largest first, or in the order of names or of time.

    Args:
        window: the trace's measurements.
        name: which table.
        sort: one of :func:`sort_names`; None for the most expensive column.
        top: rows to keep; None for all.

    Raises:
        ValueError: there is no such column.
    """
    columns = _COLUMNS[name]
    if sort is not None and sort not in sort_names(name):
        raise ValueError(f"{name} have no column {sort!r}; expected one of: {', '.join(sort_names(name))}")
    rows = _rows(window, name)
    for column in columns:
        if column.of is not None:
            _derive(rows, column, column.of)
    sort = sort or max(_COSTS[name], key=lambda cost: _sum(rows, _column(columns, cost).key))
    _sort(rows, _column(columns, sort))
    kept = rows[:top]
    return Table(name=name, trace=window.trace, sort=sort, columns=columns, rows=kept, left_out=len(rows) - len(kept))


def table_text(table: Table) -> str:
    """A table for people: a title, the columns, and how many rows were left out.

    Every column has one unit. Columns that are empty or 0 in all rows are not shown.
    """
    title = f"{table.trace} · {table.name}"
    if not table.rows:
        return f"{title}\n  The trace has no {table.name}."
    shown = [column for column in table.columns if any(row[column.key] for row in table.rows)]
    cells = [_cells(column, [row[column.key] for row in table.rows]) for column in shown]
    widths = [max(map(len, column)) for column in cells]
    texts = [column.kind == "text" for column in shown]
    lines = [f"{title} by {table.sort}", ""]
    for number, line in enumerate(zip(*cells, strict=True)):
        padded = (
            cell.ljust(width) if is_text else cell.rjust(width)
            for cell, width, is_text in zip(line, widths, texts, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
        if number == 0:
            lines.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
    if table.left_out:
        rows = len(table.rows) + table.left_out
        lines.append(f"{units.count(table.left_out)} more of {units.count(rows)} rows; --top {rows} shows all")
    return "\n".join(lines)


def tables_csv(tables: Sequence[Table]) -> str:
    """The same table of several traces as CSV: a header, full names, raw values, nothing where a value is unknown."""
    if not tables:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = [column.key for column in tables[0].columns]
    writer.writerow(["trace", *keys])
    for table in tables:
        writer.writerows([table.trace, *(row[key] for key in keys)] for row in table.rows)
    return out.getvalue()


def _rows(window: Window, name: TableName) -> list[Row]:
    if name == "gaps":
        return [
            {"device": device.index, **msgspec.structs.asdict(gap)}
            for device in window.devices
            for gap in (device.window.largest_gaps if device.window is not None else [])
        ]
    records: Sequence[msgspec.Struct] = getattr(window, name)
    rows: list[Row] = [msgspec.structs.asdict(record) for record in records]
    if name == "operators":
        on_host = any(one.device == CPU for one in window.efficiency)
        for row in rows:
            row[_COMPUTING] = row["total_us" if on_host else "device_us"]
    return rows


def _column(columns: Sequence[Column], name: str) -> Column:
    return next(column for column in columns if column.name == name)


def _number(value: Value) -> float:
    return value if isinstance(value, int | float) else 0.0


def _sum(rows: Sequence[Row], key: str) -> float:
    return sum(_number(row[key]) for row in rows)


def _derive(rows: Sequence[Row], column: Column, of: str) -> None:
    whole = _sum(rows, of)
    for row in rows:
        divisor = whole if column.per is None else _number(row[column.per])
        row[column.key] = None if row[of] is None or not divisor else _number(row[of]) / divisor * column.times


def _sort(rows: list[Row], column: Column) -> None:
    """Numbers the largest first, texts and starts in their order; rows without a value last."""
    if column.kind == "text":
        rows.sort(key=lambda row: (row[column.key] is None, str(row[column.key])))
    else:
        sign = 1 if column.name in _ASCENDING else -1
        rows.sort(key=lambda row: (row[column.key] is None, sign * _number(row[column.key])))


def _cells(column: Column, values: Sequence[Value]) -> list[str]:
    """Header and cells of a column."""
    scale = scale_of(column.kind, values)
    header = f"{column.name} {scale.unit}".rstrip()
    if column.kind == "text":
        return [header, *(units.UNKNOWN if value is None else shortened(str(value)) for value in values)]
    return [header, *(units.UNKNOWN if value is None else scale.text(_number(value)) for value in values)]


@dataclass(frozen=True, slots=True)
class Scale:
    """How the numbers of a column are written: divided by ``factor``, with as many ``decimals``, in one ``unit``."""

    unit: str = ""
    factor: float = 1.0
    decimals: int = 0
    grouped: bool = True

    def text(self, value: float) -> str:
        """A number of the column, without the unit."""
        shown = value / self.factor
        return f"{shown:,.{self.decimals}f}" if self.grouped else f"{shown:.{self.decimals}f}"


_SCALES: Final[dict[Kind, Scale]] = {
    "text": Scale(),
    "index": Scale(grouped=False),
    "count": Scale(),
    "number": Scale(decimals=2),
    "ratio": Scale("%", 0.01, 1),
}


def scale_of(kind: Kind, values: Sequence[Value]) -> Scale:
    """The scale of a column of some kind that holds these values: its largest one chooses the unit."""
    if kind in _SCALES:
        return _SCALES[kind]
    largest = max((abs(_number(value)) for value in values), default=0.0)
    if kind == "time":
        factor, unit = next((factor, unit) for least, factor, unit in _TIME_UNITS if largest >= least)
        return Scale(unit, factor, 3)
    sizes = _SIZE_UNITS if kind == "bytes" else _FLOPS_UNITS
    factor, unit = next(((factor, unit) for factor, unit in sizes if largest >= factor), sizes[-1])
    return Scale(f"{unit}/s" if kind == "flops_per_s" else unit, factor, 0 if factor == 1 else 3)


def shortened(name: str) -> str:
    """A name on one line, cut in the middle where it is too long."""
    plain = "".join(character if character.isprintable() else " " for character in name)
    if len(plain) <= WIDEST_TEXT:
        return plain
    tail = WIDEST_TEXT // 2
    return f"{plain[: WIDEST_TEXT - tail - 1]}…{plain[-tail:]}"
