"""Calls that hold the host until the device is done, and the lead over the device that they cost it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Category, Int64s, Trace
from lightning_perf.measure.launches import NO_LAUNCH

SHORTEST_STAGING_NS: Final = 30_000
"""A copy from pageable memory whose call is shorter than this has not been held up by the device."""

_TO_DEVICE: Final = re.compile(r"HtoD|HostToDevice|Host -> Device", re.IGNORECASE)
_TO_HOST: Final = re.compile(r"DtoH|DeviceToHost|Device -> Host", re.IGNORECASE)
_PAGEABLE: Final = re.compile(r"pageable", re.IGNORECASE)
_DEVICE_SYNC: Final = re.compile(r"(cuda|hip|xpu)DeviceSynchronize|cuCtxSynchronize")

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Blocking:
    """Rows of blocking calls by start, which of them moved data to the device, and the profiler's own."""

    rows: Int64s
    transfer: Booleans
    profilers: Int64s


def pageable_to_device(trace: Trace) -> Booleans:
    """Which events are a device's copies out of pageable memory."""
    copies: Booleans = trace.category == Category.MEMCPY
    rows = np.flatnonzero(copies)
    copies[rows] = matching(trace, rows, _TO_DEVICE) & matching(trace, rows, _PAGEABLE)
    return copies


def blocking_calls(trace: Trace, launches: Int64s, synchronising: Int64s) -> Blocking:
    """The blocking calls of a trace.

    They are the calls that synchronise, and copies between device and pageable memory that took long. A copy to the
    device, and a call that waits for a stream right after such a copy, is a transfer. The last call that waits
    for the whole device, after everything was launched, is the profiler's own: it is not among them.

    Args:
        trace: the trace.
        launches: its :func:`launch_rows`.
        synchronising: rows of the calls that block by their name, by start.
    """
    copies = np.flatnonzero((trace.category == Category.MEMCPY) & (launches != NO_LAUNCH))
    to_device = matching(trace, copies, _TO_DEVICE)
    to_host = matching(trace, copies, _TO_HOST)
    staged = matching(trace, copies, _PAGEABLE) & (trace.duration_ns[launches[copies]] > SHORTEST_STAGING_NS)
    calls = launches[copies]
    profilers = _profilers_own(trace, launches, synchronising)
    rows = np.union1d(calls[staged & (to_device | to_host)], np.setdiff1d(synchronising, profilers))
    moved_in = np.unique(calls[to_device])
    of_stream = ~matching(trace, rows, _DEVICE_SYNC)
    transfer = np.isin(rows, moved_in) | (of_stream & np.isin(_call_before(trace, rows), moved_in))
    return Blocking(rows=rows, transfer=transfer, profilers=profilers)


def matching(trace: Trace, rows: Int64s, pattern: re.Pattern[str]) -> Booleans:
    """In which of some rows' names a pattern is found; each name is looked at once."""
    ids, place = np.unique(trace.name_id[rows], return_inverse=True)
    found = np.array([pattern.search(trace.names[name]) is not None for name in ids.tolist()], dtype=np.bool_)
    matching: Booleans = found[place.reshape(-1)]
    return matching


def _profilers_own(trace: Trace, launches: Int64s, synchronising: Int64s) -> Int64s:
    """The last call that waits for the whole device, if nothing was launched after it."""
    last = synchronising[-1:]
    used = launches[launches != NO_LAUNCH]
    if last.size == 0 or (used.size and trace.start_ns[used].max() > trace.start_ns[last[0]]):
        return last[:0]
    return last[matching(trace, last, _DEVICE_SYNC)]


def _call_before(trace: Trace, rows: Int64s) -> Int64s:
    """The call of the same thread before each of some calls; a call itself where it is the thread's first."""
    calls = np.flatnonzero((trace.category == Category.RUNTIME) | (trace.category == Category.DRIVER))
    order = np.lexsort((calls, trace.thread[calls], trace.process[calls]))
    calls = calls[order]
    before = calls.copy()
    same = (trace.thread[calls[1:]] == trace.thread[calls[:-1]]) & (
        trace.process[calls[1:]] == trace.process[calls[:-1]]
    )
    before[1:][same] = calls[:-1][same]
    by_row = np.argsort(calls)
    found: Int64s = before[by_row[np.searchsorted(calls[by_row], rows)]]
    return found


@dataclass(frozen=True, slots=True)
class Lead:
    """What one blocking call cost: when it ended, how long it held the host back, and whether it moved data."""

    end_ns: int
    lost_ns: int
    transfer: bool


def repaid(starts: Int64s, lengths: Int64s, leads: Sequence[Lead]) -> tuple[Int64s, Int64s]:
    """Idle time that the host would have covered with the lead that blocking calls took from it.

    The latest call pays first: it is the nearest reason for the host to be late.

    Args:
        starts: starts of idle time while the host refills the queue, ascending, nanoseconds.
        lengths: its lengths.
        leads: blocking calls by end.

    Returns:
        For each idle time the part paid by calls that synchronised, and by calls that moved data.
    """
    synchronised = np.zeros(starts.size, dtype=np.int64)
    moved = np.zeros(starts.size, dtype=np.int64)
    if not leads:
        return synchronised, moved
    pending = iter(leads)
    coming = next(pending, None)
    unpaid: list[list[int]] = []
    for index, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        while coming is not None and coming.end_ns <= start:
            unpaid.append([coming.lost_ns, coming.transfer])
            coming = next(pending, None)
        left = length
        while unpaid and left:
            paid = min(left, unpaid[-1][0])
            (moved if unpaid[-1][1] else synchronised)[index] += paid
            left -= paid
            unpaid[-1][0] -= paid
            if not unpaid[-1][0]:
                unpaid.pop()
    return synchronised, moved
