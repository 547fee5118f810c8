"""Which runtime or driver call launched which device operation, and which of these have a certain name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Category, Int64s, Trace

NO_LAUNCH = -1

Booleans = npt.NDArray[np.bool_]


def names_where(trace: Trace, rows: Int64s, wanted: Callable[[str], bool]) -> Booleans:
    """Which of the trace's names are wanted, of those that some events have; others are not."""
    found = np.zeros(len(trace.names), dtype=np.bool_)
    for name in np.flatnonzero(np.bincount(trace.name_id[rows], minlength=len(trace.names))).tolist():
        found[name] = wanted(trace.names[name])
    return found


def launch_rows(trace: Trace) -> Int64s:
    """Row of the call that launched an event's work, by correlation id, on any host thread.

    Returns:
        One row per event; :data:`NO_LAUNCH` for events that are no device operation or whose launch was not
        recorded. One call may launch many operations (a CUDA graph); of calls that share an id the first counts.
    """
    rows = np.full(len(trace), NO_LAUNCH, dtype=np.int64)
    linked = trace.correlation > 0
    calls = np.flatnonzero(linked & ((trace.category == Category.RUNTIME) | (trace.category == Category.DRIVER)))
    operations = np.flatnonzero(linked & (trace.category <= LAST_DEVICE_OPERATION))
    if calls.size == 0 or operations.size == 0:
        return rows
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    ids = trace.correlation[calls]
    wanted = trace.correlation[operations]
    place = np.minimum(np.searchsorted(ids, wanted, side="left"), ids.size - 1)
    found = ids[place] == wanted
    rows[operations[found]] = calls[place[found]]
    return rows
