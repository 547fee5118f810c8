"""What a thread ran in a stretch of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Int64s, Trace
from lightning_perf.measure.host import Host, ThreadId
from lightning_perf.measure.nesting import nest

_STEP_MARK: Final = "ProfilerStep"


def running_longest(host: Host, thread: ThreadId | None, start_ns: int, end_ns: int) -> str | None:
    """Name of what was innermost on a thread for most of a time, marks of steps aside; None if nothing ran."""
    if thread is None:
        return None
    trace, rows = host.trace, host.thread_rows(thread)
    rows = rows[: np.searchsorted(trace.start_ns[rows], end_ns, side="left")]
    rows = rows[trace.start_ns[rows] + trace.duration_ns[rows] > start_ns]
    ranges = nest(_cut(trace, rows, start_ns, end_ns), np.arange(rows.size))
    names, place = np.unique(trace.name_id[rows[ranges.rows]], return_inverse=True)
    totals = np.bincount(place.reshape(-1), weights=ranges.self_ns, minlength=names.size)
    ranked = [
        (-total, trace.names[name])
        for name, total in zip(names.tolist(), totals.tolist(), strict=True)
        if total and not trace.names[name].startswith(_STEP_MARK)
    ]
    return min(ranked)[1] if ranked else None


def _cut(trace: Trace, rows: Int64s, start_ns: int, end_ns: int) -> Trace:
    """The part of a trace that some events make, cut to a time."""
    columns = ("name_id", "category", "process", "thread", "device", "stream", "correlation", "external_id", "bytes")
    start = np.clip(trace.start_ns[rows], start_ns, end_ns)
    end = np.clip(trace.start_ns[rows] + trace.duration_ns[rows], start_ns, end_ns)
    kept = {column: getattr(trace, column)[rows] for column in columns}
    return replace(trace, start_ns=start, duration_ns=end - start, **kept)
