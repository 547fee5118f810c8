"""Comparison -> the view of two runs side by side, in the tab and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.comparison.compare import compare
from lightning_perf.comparison.records import Comparison, Part
from lightning_perf.errors import CompareError
from lightning_perf.measure.analysis import Analysis
from lightning_perf.report.blocks import Block, Findings, Note, View, figure, plain, table
from lightning_perf.report.comparison import metric_rows, outcomes, reason, verdict
from lightning_perf.report.figures import before_after
from lightning_perf.report.tables import Kind, Row

_PARTS: Sequence[tuple[str, Kind]] = (
    ("name", "text"),
    ("before_us", "time"),
    ("after_us", "time"),
    ("difference_us", "time"),
)


def compare_page(base: Analysis, candidate: Analysis) -> View:
    """Two runs, or two traces: the verdict, where the difference comes from, and what differs in the set-up."""
    try:
        compared = compare([base], [candidate], ("before", "after"))
    except CompareError as error:
        return View(id="compare", title="Compare", blocks=[Note(title="These cannot be compared", text=plain(error))])
    because = reason(compared)
    said = [verdict(compared), *([because] if because is not None else []), *compared.notices]
    outcome = "; ".join(outcomes(compared)) or None
    blocks: list[Block] = [
        Findings(verdict=[plain(line) for line in said], cards=[], outcome=outcome),
        figure("before-after", lambda: before_after(base, candidate), title="Before and after"),
        _metrics(compared),
    ]
    for name, title, parts in (
        ("phases", "Parts of the mean step", compared.phases),
        ("hooks-compared", "Hooks", compared.hooks),
        ("operators-compared", "Operators", compared.operators),
        ("kernels-compared", "Kernels", compared.kernels),
    ):
        if parts:
            blocks.append(table(name, title, _PARTS, [_row(part) for part in parts], one_unit=True))
    blocks.append(_settings(compared))
    return View(id="compare", title="Compare", blocks=blocks)


def _metrics(compared: Comparison) -> Block:
    keys = ("figure", "before", "after", "change")
    rows: list[Row] = [dict(zip(keys, row, strict=True)) for row in metric_rows(compared)]
    return table("metrics", "Figures", [(key, "text") for key in keys], rows)


def _row(part: Part) -> Row:
    return {
        "name": part.name,
        "before_us": part.base_us,
        "after_us": part.candidate_us,
        "difference_us": part.difference_us,
    }


def _settings(compared: Comparison) -> Block:
    rows: list[Row] = [{"setting": one.name, "before": one.base, "after": one.candidate} for one in compared.settings]
    if not rows:
        return Note(title="What differs in the set-up", text="Nothing that was recorded.")
    return table(
        "differences",
        "What differs in the set-up",
        [("setting", "text"), ("before", "text"), ("after", "text")],
        rows,
    )
