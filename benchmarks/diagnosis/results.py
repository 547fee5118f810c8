"""Outcomes of all rounds -> the tables that the benchmark prints."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.diagnosis import peers
from benchmarks.diagnosis.measured import Found, Outcome
from benchmarks.printing import table, with_spread

CLOSE = 0.2
"""An error of the predicted saving below which it counts as close."""
ALARM = 0.05
"""Share of the step from which on a finding about a healthy run counts."""
NONE = "-"


@dataclass(frozen=True)
class Row:
    """A case over all rounds. Savings are milliseconds per step.

    ``tops`` holds the rule that came first in each round, "" for none; ``predicted`` what the expected rule predicted
    wherever it was ranked; ``error`` that of the medians, None if either is missing.
    """

    name: str
    expected: str
    tops: list[str]
    slow_ms: list[float]
    fixed_ms: list[float]
    predicted: list[float]
    verdicts: dict[str, str]
    failed: str | None

    @property
    def measured(self) -> list[float]:
        """Savings by the stopwatch, of neighbours in the same round."""
        return [slow - fixed for slow, fixed in zip(self.slow_ms, self.fixed_ms, strict=False)]

    @property
    def top(self) -> str:
        """The rule that came first in most rounds."""
        return Counter(self.tops).most_common(1)[0][0] if self.tops else ""

    @property
    def right(self) -> bool:
        """Whether it is the expected one."""
        return self.top == self.expected

    @property
    def error(self) -> float | None:
        """How much more was predicted than measured, as a share of that."""
        if not self.predicted or not self.measured:
            return None
        measured = statistics.median(self.measured)
        return (statistics.median(self.predicted) - measured) / abs(measured) if measured else None


def row(name: str, expected: str, outcomes: Mapping[str, Sequence[Outcome]]) -> Row:
    """One case."""
    diagnosed = [one["findings"] for one in outcomes["diagnosed"] if "findings" in one]
    everything = [one for how in outcomes.values() for one in how]
    return Row(
        name=name,
        expected=expected,
        tops=[_first(found) for found in diagnosed],
        slow_ms=[one["step_ms"] for one in outcomes["slow"] if "step_ms" in one],
        fixed_ms=[one["step_ms"] for one in outcomes["fixed"] if "step_ms" in one],
        predicted=[saving for found in diagnosed for saving in [saving_of(found, expected)] if saving is not None],
        verdicts={tool: one[0].get("verdict", "") for tool in peers.PEERS if (one := outcomes.get(tool))},
        failed=next((one["error"] for one in everything if "error" in one), None),
    )


def _first(found: Sequence[Found]) -> str:
    return found[0]["rule"] if found else ""


def saving_of(found: Sequence[Found], rule: str) -> float | None:
    """What a rule predicts, wherever it is ranked."""
    return next((one["saving_ms"] for one in found if one["rule"] == rule), None)


def case_table(rows: Sequence[Row], tools: Sequence[str]) -> str:
    """One line for each case; what is wrong is in bold."""
    header = ["case", "bottleneck", "top finding", *(peers.HEADINGS[tool] for tool in tools)]
    lines = [
        [
            one.name,
            one.expected,
            "right" if one.right else f"**{one.top or NONE}**",
            *(_verdict(tool, one.verdicts.get(tool), one.expected) for tool in tools),
            with_spread(one.slow_ms) if one.slow_ms else NONE,
            with_spread(one.measured) if one.measured else NONE,
            with_spread(one.predicted) if one.predicted else NONE,
            f"{one.error:+.0%}" if one.error is not None else NONE,
        ]
        for one in rows
    ]
    return table([*header, "step, ms", "saves, ms", "predicted, ms", "error"], lines, texts=len(header))


def _verdict(tool: str, verdict: str | None, expected: str | None) -> str:
    if not verdict:
        return NONE
    said = peers.text(tool, verdict)
    return said if peers.is_right(tool, verdict, expected) else f"**{said}**"


def summary(rows: Sequence[Row], tools: Sequence[str]) -> str:
    """What the table of cases comes to."""
    count = len(rows)
    errors = [abs(one.error) for one in rows if one.error is not None]
    lines = [f"Top finding right: {sum(one.right for one in rows)} of {count}."]
    if errors:
        close = sum(error <= CLOSE for error in errors)
        lines.append(
            f"Predicted saving: median error {statistics.median(errors):.0%}; within {CLOSE:.0%} in {close} of {count}."
        )
    for tool in tools:
        right = sum(peers.is_right(tool, one.verdicts.get(tool, ""), one.expected) for one in rows)
        lines.append(f"{peers.HEADINGS[tool]} names the place: {right} of {count}. It predicts no saving.")
    return "\n".join(lines)


def healthy_table(outcomes: Mapping[str, Mapping[str, Sequence[Outcome]]], tools: Sequence[str]) -> str:
    """One line for each healthy run, and how many findings of consequence there are."""
    lines = []
    alarms = runs = 0
    for name, done in outcomes.items():
        largest: list[tuple[float, str]] = []
        for one in done["diagnosed"]:
            if "findings" not in one:
                continue
            runs += 1
            shares = [((found["saving_ms"] or 0.0) / one["step_ms"], found["rule"]) for found in one["findings"]]
            alarms += sum(share > ALARM for share, _ in shares)
            largest += shares
        share, rule = max(largest, default=(0.0, ""))
        said = {tool: verdicts[0].get("verdict") for tool in tools if (verdicts := done.get(tool))}
        lines.append(
            [
                name,
                f"{rule} {share:.0%}" if share else "none",
                *(_verdict(tool, said.get(tool), None) for tool in tools),
                with_spread([one["step_ms"] for one in done["fixed"] if "step_ms" in one] or [0.0]),
            ]
        )
    header = ["healthy run", "largest finding, of a step", *(peers.HEADINGS[tool] for tool in tools)]
    found = f"Findings of more than {ALARM:.0%} of the step: {alarms} in {runs} healthy runs."
    return f"{table([*header, 'step, ms'], lines, texts=len(header))}\n\n{found}"


def report(
    expected: Mapping[str, str | None], rounds: Mapping[str, Mapping[str, Sequence[Outcome]]], tools: Sequence[str]
) -> str:
    """Everything that is printed after the heading."""
    rows = [row(name, rule, rounds[name]) for name, rule in expected.items() if rule is not None]
    healthy = {name: rounds[name] for name, rule in expected.items() if rule is None}
    parts = [case_table(rows, tools), summary(rows, tools)] if rows else []
    if healthy:
        parts.append(healthy_table(healthy, tools))
    failed = [f"{one.name}: {one.failed}" for one in rows if one.failed]
    return "\n\n".join([*parts, *failed])
