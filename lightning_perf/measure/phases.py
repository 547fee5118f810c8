"""Phases of a step from this package's labels: exclusive time, which adds up to the step exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from lightning_perf.decode.trace import Trace
from lightning_perf.measure.steps import HostStep, is_label, named
from lightning_perf.names import Phase, phase_of_label

Label = tuple[int, int, Phase]
"""Start, end (nanoseconds) and phase of a label."""


def step_phases(trace: Trace, steps: Sequence[HostStep]) -> list[dict[Phase, int]]:
    """Nanoseconds of every phase of each step, on the step's thread; the innermost label wins.

    Returns:
        One mapping per step; all are empty where the trace has no labels of this package.
    """
    rows = np.flatnonzero(named(trace, is_label))
    if rows.size == 0:
        return [{} for _ in steps]
    end_ns = trace.end_ns
    phases = []
    for step in steps:
        mine = rows[
            (trace.thread[rows] == step.thread)
            & (trace.process[rows] == step.process)
            & (trace.start_ns[rows] < step.end_ns)
            & (end_ns[rows] > step.start_ns)
        ]
        labels = [
            (int(trace.start_ns[row]), int(end_ns[row]), phase_of_label(trace.names[trace.name_id[row]]) or "other")
            for row in mine.tolist()
        ]
        phases.append(exclusive(labels, step.start_ns, step.end_ns))
    return phases


def exclusive(labels: Iterable[Label], start_ns: int, end_ns: int) -> dict[Phase, int]:
    """Split ``[start_ns, end_ns)`` between labels: every instant belongs to the one that began last.

    Args:
        labels: sorted by start, longest first on ties.
        start_ns: start of what is split.
        end_ns: its end.

    Returns:
        Nanoseconds by phase, ``other`` for time outside all labels. They add up to the whole exactly.
    """
    spent: defaultdict[Phase, int] = defaultdict(int)
    open_labels: list[tuple[int, Phase]] = []
    now = start_ns

    def spend_until(time: int) -> None:
        nonlocal now
        while now < time:
            while open_labels and open_labels[-1][0] <= now:
                open_labels.pop()
            until = min(time, open_labels[-1][0]) if open_labels else time
            spent[open_labels[-1][1] if open_labels else "other"] += until - now
            now = until

    for begin, end, phase in labels:
        spend_until(min(begin, end_ns))
        open_labels.append((end, phase))
    spend_until(end_ns)
    return dict(spent)
