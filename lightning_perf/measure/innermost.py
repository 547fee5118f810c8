"""What a thread ran in a stretch of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from lightning_perf.measure.host import Host, ThreadId
from lightning_perf.measure.nesting import nest

_STEP_MARK: Final = "ProfilerStep"


def running_longest(host: Host, thread: ThreadId | None, start_ns: int, end_ns: int) -> str | None:
    """Name of what was innermost on a thread for most of a time, marks of steps aside; None if nothing ran."""
    if thread is None:
        return None
    trace, rows = host.trace, host.thread_rows(thread)
    rows = rows[: np.searchsorted(trace.start_ns[rows], end_ns, side="left")]
    rows = rows[trace.end_ns[rows] > start_ns]
    starts = np.clip(trace.start_ns, start_ns, end_ns)
    ranges = nest(replace(trace, start_ns=starts, duration_ns=np.clip(trace.end_ns, start_ns, end_ns) - starts), rows)
    names, place = np.unique(trace.name_id[ranges.rows], return_inverse=True)
    totals = np.bincount(place.reshape(-1), weights=ranges.self_ns, minlength=names.size)
    ranked = [
        (-total, trace.names[name])
        for name, total in zip(names.tolist(), totals.tolist(), strict=True)
        if total and not trace.names[name].startswith(_STEP_MARK)
    ]
    return min(ranked)[1] if ranked else None
