"""Findings as a person would say them: what costs time, then what to change and what it brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Achieved, Finding, is_a_guess

SHOWN: Final = 5
"""Findings that are shown unless all are asked for."""

MOST_SPEEDUP: Final = 3.0
"""Beyond this a small error in what is left of the step is a large one of the speedup: it is given as "at least"."""

_SURE: Final = 0.9
"""A range whose lower end is at least this share of its upper end is shown as one figure."""


def verdict(findings: Sequence[Finding]) -> list[str]:
    """What the first finding says, if it saves time and is no guess: its title, and the first line of its evidence."""
    if not findings or findings[0].saving_us_per_step is None or is_a_guess(findings[0]):
        return []
    return [findings[0].title, *findings[0].evidence[:1]]


def changes(findings: Sequence[Finding], *, everything: bool = False, rest: str = "--all-findings") -> list[str]:
    """Numbered changes to make, each with what it saves; then what is worth knowing and saves no time.

    Args:
        findings: ranked.
        everything: all findings, with their evidence and risks.
        rest: how to see the findings that are not shown.
    """
    shown = list(findings) if everything else list(findings[:SHOWN])
    lines = []
    for number, finding in enumerate(shown, 1):
        if finding.saving_us_per_step is None:
            lines += [f"-  {finding.title}", *_indented([finding.action])]
        else:
            head, *below = finding.action.splitlines()
            verb = "may save" if is_a_guess(finding) else "saves"
            lines += [f"{number}  {head}", *_indented(below), f"   {verb} {gain(finding)}"]
        if everything:
            lines += _indented(
                [*([finding.title] if finding.saving_us_per_step is not None else []), *finding.evidence]
            )
            lines += _indented([f"If {finding.assumption}."] if finding.assumption else [])
            lines += _indented([f"Mind: {risk}" for risk in finding.risks])
            lines += _indented([f"{finding.rule}: {finding.link}"])
    if len(findings) > len(shown):
        more = len(findings) - len(shown)
        lines.append(f"({more} more: {rest})")
    return lines


def gain(finding: Finding) -> str:
    """What a finding saves: about 52 ms of 178 ms a step (1.4 times as fast)."""
    low, high = finding.saving_range_us or (0.0, 0.0)
    best = finding.saving_us_per_step or 0.0
    amount = f"{units.duration(low)} to {units.duration(high)}"
    if low >= _SURE * high:
        amount = f"about {units.duration(best)}"
    elif low <= 0:
        amount = f"up to {units.duration(high)}"
    whole = f"{units.duration(finding.step_us)} a step" if finding.per == "step" else units.duration(finding.step_us)
    return f"{amount} of {whole} ({_speedup(finding.speedup or 1.0)})"


def outcome(achieved: Achieved) -> str:
    """What the last run's advice has brought."""
    predicted, before = units.duration(achieved.predicted_us), units.duration(achieved.step_before_us)
    return f"{achieved.rule} was to save {predicted} of {before} a step; {_brought(achieved.achieved_us)}"


def _brought(saved_us: float) -> str:
    return (
        f"{units.duration(saved_us)} were saved"
        if saved_us >= 0
        else f"a step now takes {units.duration(-saved_us)} longer"
    )


def _speedup(speedup: float) -> str:
    return "at least 3 times as fast" if speedup > MOST_SPEEDUP else f"{units.number(speedup)} times as fast"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"   {line}" for text in lines for line in text.splitlines()]
