"""Comparison -> text for a terminal, and Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lightning_perf import units
from lightning_perf.comparison.guard import Breach
from lightning_perf.comparison.records import Comparison, Metric, Part, SideSteps
from lightning_perf.report.tables import shortened

UNKNOWN: Final = "n/a"

MOST_PARTS: Final = 6
"""Hooks, operators and kernels that are listed."""

SMALL: Final = 0.005
"""Parts that differ by less than this share of the step are not listed."""

GONE: Final = 0.05
"""A part of which less than this share is left is called gone."""

_NAMES: Final = {
    "step_time": "step time, median",
    "step_time_p95": "step time, p95",
    "samples_per_second": "samples a second",
    "data_loading_ratio": "waiting for data",
    "gpu_busy_ratio": "device busy",
    "epoch_start": "start of an epoch",
    "memory_peak_allocated": "memory peak, allocated",
    "memory_peak_reserved": "memory peak, reserved",
    "memory_peak_rss": "memory peak, process",
}


def verdict(comparison: Comparison) -> str:
    """What came of it, in one or two sentences."""
    change = comparison.step
    if change.verdict is None or change.ratio is None or change.low is None or change.high is None:
        return "No verdict: too few steps."
    unit = "sample" if change.per_sample else "step"
    best, worst = sorted((abs(change.low - 1), abs(change.high - 1)))
    by = f"{_percent(abs(change.ratio - 1))} ({_percent(best)} to {_percent(worst)})"
    if change.verdict == "faster":
        times = units.number(1 / change.ratio)
        return f"Faster: a typical {unit} takes {by} less time, {times} times as fast."
    if change.verdict == "slower":
        return f"Slower: a typical {unit} takes {by} more time."
    more = " Only repeats of both could show one of this size."
    if change.more_steps is not None:
        more = f" {units.count(change.more_steps)} more steps of each could show one of this size."
    between = f"{_percent(max(0.0, 1 - change.low))} less and {_percent(max(0.0, change.high - 1))} more time"
    return f"No difference that these steps can show: a typical {unit} takes between {between}.{more}"


def reason(comparison: Comparison) -> str | None:
    """The part of the step that changed most in the direction of the verdict; None if there is no such part."""
    direction = {"faster": -1, "slower": 1}.get(comparison.step.verdict or "", 0)
    part = next((one for one in comparison.phases if one.difference_us * direction > 0), None)
    if part is None or abs(part.difference_us) < SMALL * comparison.base.mean_us:
        return None
    before, after = part.base_us or 0.0, part.candidate_us or 0.0
    name = part.name.replace("_", " ")
    what = f"{units.duration(before)} a step before, {units.duration(after)} after"
    if after < GONE * before:
        return f"Most of it: {name} is gone ({what})."
    how = f"{units.duration(abs(after - before))} {'less' if direction < 0 else 'more'}"
    return f"Most of it: {name} takes {how} ({what})."


def metric_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Name, before, after and change of each figure."""
    return [
        (_NAMES[one.name], _value(one, one.base), _value(one, one.candidate), _change(one))
        for one in comparison.metrics
    ]


def part_rows(parts: Sequence[Part], step_us: float, most: int | None = None) -> list[tuple[str, str, str, str]]:
    """Name, before, after and difference of the parts that differ enough to matter, in the order given."""
    shown = [part for part in parts if abs(part.difference_us) >= SMALL * step_us][:most]
    return [
        (
            shortened(part.name),
            UNKNOWN if part.base_us is None else units.duration(part.base_us),
            UNKNOWN if part.candidate_us is None else units.duration(part.candidate_us),
            _difference(part),
        )
        for part in shown
    ]


def outcomes(comparison: Comparison) -> list[str]:
    """What the base's findings that are gone were to save, and what was saved."""
    if not comparison.predictions:
        return []
    lines = [
        f"{one.rule} was to save {units.duration(one.low_us)} to {units.duration(one.high_us)} a step"
        for one in comparison.predictions
    ]
    saved = comparison.saved_us
    what = f"{units.duration(saved)} were saved" if saved >= 0 else f"a step takes {units.duration(-saved)} longer"
    return [*lines, f"{what} (mean of the compared steps, all changes together)"]


def comparison_text(comparison: Comparison, failed: Sequence[Breach] = ()) -> str:
    """The comparison for a terminal."""
    base, candidate = comparison.base, comparison.candidate
    lines = [
        f"{base.label} -> {candidate.label} · {_steps(base)} and {_steps(candidate)}",
        "",
        f"  {verdict(comparison)}",
    ]
    because = reason(comparison)
    lines += [f"  {because}"] if because else []
    lines += ["", *_table(("", "before", "after", "change"), metric_rows(comparison))]
    step_us = max(base.mean_us, candidate.mean_us)
    for title, parts, most in _sections(comparison):
        rows = part_rows(parts, step_us, most)
        if rows:
            lines += ["", *_table((title, "before", "after", "difference"), rows)]
    for title, texts in (
        ("what differs", [f"{one.name} {one.base} -> {one.candidate}" for one in comparison.settings]),
        ("predicted", outcomes(comparison)),
        ("next", [comparison.next] if comparison.next else []),
        ("note", comparison.notices),
        ("fails", [breach_text(one) for one in failed]),
    ):
        lines += [""] if texts else []
        lines += [f"  {title if place == 0 else '':14}{text}" for place, text in enumerate(texts)]
    return "\n".join(lines)


def comparison_markdown(comparison: Comparison, failed: Sequence[Breach] = ()) -> str:
    """The comparison for a pull request: the verdict, the figures, and the rest folded."""
    base, candidate = comparison.base, comparison.candidate
    lines = [f"### {_escaped(base.label)} → {_escaped(candidate.label)}", "", f"**{_escaped(verdict(comparison))}**"]
    because = reason(comparison)
    lines += [_escaped(because)] if because else []
    lines += ["", *(f"- ❌ {_escaped(breach_text(one))}" for one in failed), *([""] if failed else [])]
    lines += _markdown_table(("", "before", "after", "change"), metric_rows(comparison))
    lines += ["", "<details><summary>Where it comes from</summary>", ""]
    step_us = max(base.mean_us, candidate.mean_us)
    for title, parts, most in _sections(comparison):
        rows = part_rows(parts, step_us, most)
        if rows:
            lines += [*_markdown_table((title, "before", "after", "difference"), rows), ""]
    settings = [(one.name, one.base, one.candidate) for one in comparison.settings]
    if settings:
        lines += [*_markdown_table(("what differs", "before", "after"), settings), ""]
    lines += [f"- {_escaped(text)}" for text in [*outcomes(comparison), *comparison.notices]]
    return "\n".join([*lines, "", "</details>", ""])


def breach_text(breach: Breach) -> str:
    """A limit that was not kept."""
    return f"{breach.metric} is worse by {_percent(breach.change)}, more than {_percent(breach.limit)}"


def _sections(comparison: Comparison) -> list[tuple[str, Sequence[Part], int | None]]:
    return [
        ("mean step", comparison.phases, None),
        ("hooks", comparison.hooks, MOST_PARTS),
        ("operators", comparison.operators, MOST_PARTS),
        ("kernels", comparison.kernels, MOST_PARTS),
    ]


def _steps(side: SideSteps) -> str:
    runs = f" of {side.runs} runs" if side.runs > 1 else ""
    return f"{units.count(side.steps)} steps{runs}"


def _value(metric: Metric, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if metric.kind == "time":
        return units.duration(value)
    if metric.kind == "bytes":
        return units.size(value)
    return units.percent(value) if metric.kind == "ratio" else units.number(value)


def _change(metric: Metric) -> str:
    if metric.change is None:
        return UNKNOWN
    if metric.kind == "ratio":
        return f"{100 * metric.change:+.0f} points"
    return _signed(metric.change)


def _difference(part: Part) -> str:
    sign = "+" if part.difference_us > 0 else "-"
    text = f"{sign}{units.duration(abs(part.difference_us))}"
    return f"{text} (new)" if part.base_us is None else f"{text} (gone)" if part.candidate_us is None else text


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %" if ratio >= 0.095 else f"{100 * ratio:.1f} %"


def _signed(ratio: float) -> str:
    return f"{'+' if ratio >= 0 else '-'}{_percent(abs(ratio))}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    return [
        "  "
        + "   ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    ]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = [":---", *("---:" for _ in header[1:])]
    return (
        [f"| {' | '.join(map(_escaped, row))} |" for row in (header,)]
        + [f"| {' | '.join(rule)} |"]
        + [f"| {' | '.join(map(_escaped, row))} |" for row in rows]
    )


def _escaped(text: str) -> str:
    """Text that stays text in Markdown: names come from traces."""
    for character in "\\`*_[]|<>":
        text = text.replace(character, f"\\{character}")
    return text
