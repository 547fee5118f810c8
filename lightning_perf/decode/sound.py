"""Which complete events have times that can be used."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_perf.decode.clock import LARGEST_SUM_NS, LONGEST_NS, MISSING_NS, OUT_OF_RANGE_NS
from lightning_perf.decode.quality import Notes
from lightning_perf.decode.trace import Int64s

FAR_FROM_ZERO_NS: Final = 10**12
"""1000 s: no recorded window is longer, so a start at 0 beside starts above this one is not a time (kineto #109)."""


def sound(start_ns: Int64s, duration_ns: Int64s, notes: Notes) -> Int64s:
    """The places of the complete events that have a start and a duration."""
    timed = (start_ns > OUT_OF_RANGE_NS) & (duration_ns > OUT_OF_RANGE_NS)
    far = (start_ns == OUT_OF_RANGE_NS) | (duration_ns == OUT_OF_RANGE_NS)
    negative = timed & (duration_ns < 0)
    at_zero = timed & ~negative & (start_ns == 0)
    others = start_ns[timed & (start_ns != 0)]
    if others.size == 0 or others.min() < FAR_FROM_ZERO_NS:
        at_zero[:] = False
    usable = np.flatnonzero(timed & ~negative & ~at_zero)
    kept = _close_together(start_ns, duration_ns, usable)
    notes.add("out_of_range", np.count_nonzero(far) + usable.size - kept.size)
    notes.add("missing_timestamp", np.count_nonzero(~far & (start_ns == MISSING_NS)))
    notes.add("missing_duration", np.count_nonzero((start_ns > OUT_OF_RANGE_NS) & (duration_ns == MISSING_NS)))
    notes.add("negative_duration", np.count_nonzero(negative))
    notes.add("zero_timestamps", np.count_nonzero(at_zero))
    return kept


def _close_together(start_ns: Int64s, duration_ns: Int64s, rows: Int64s) -> Int64s:
    """Those rows that one recording can hold: the others are far from most, or last too long.

    Of the rows that are kept, durations add up to less than :data:`LARGEST_SUM_NS`, and the last one ends less than
    :data:`LONGEST_NS` after the first one begins.
    """
    if rows.size == 0:
        return rows
    starts, durations = start_ns[rows], duration_ns[rows]
    if (starts + durations).max() - starts.min() > LONGEST_NS:
        near = np.abs(starts - np.sort(starts)[starts.size // 2]) <= LONGEST_NS // 4
        rows = rows[near & (durations <= LONGEST_NS // 4)]
    if duration_ns[rows].sum(dtype=np.float64) > LARGEST_SUM_NS:
        rows = rows[duration_ns[rows] <= LARGEST_SUM_NS // rows.size]
    return rows
