"""Collectives on the devices: how long, how much of it hidden by other work, how many bytes."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Category, CollectiveArgs, Int64s, Trace
from lightning_perf.measure.analysis import Collective
from lightning_perf.measure.intervals import Intervals, union
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.messages import message_of_range
from lightning_perf.measure.nesting import NO_RANGE, nest

_COMMUNICATES: Final = ("nccl", "rccl", "hccl", "oneccl", "cross_device_reduce")
"""In the names of device operations that communicate, of every vendor's library, in any letter case."""
_NO_ARGS: Final = CollectiveArgs(
    name=None, in_elements=None, out_elements=None, dtype=None, group_size=None, group=None
)

_SIZES: Final[dict[str, int]] = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Int": 4, "Long": 8, "Half": 2, "BFloat16": 2, "Float": 4,
    "Double": 8, "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e5m2": 1, "Float8_e4m3fn": 1,
    "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
"""Bytes of an element by its type's name in c10/core/ScalarType.h."""


_NO_MORE_OUT: Final = frozenset(
    {"allreduce", "broadcast", "reduce", "reducescatter", "reducescatterbase", "send", "recv"}
)
"""Calls from which no rank gets more than it puts in, without underscores."""


def is_collective(name: str) -> bool:
    """Whether a device operation communicates, by its name."""
    lowered = name.lower()
    return any(word in lowered for word in _COMMUNICATES)


def measure_collectives(trace: Trace, launches: Int64s) -> list[Collective]:
    """Collectives by name and arguments, those that took the most time first.

    The arguments are those of the device operation, else those of the innermost operator around its launch, else what
    the shapes of the range around the launch tell (:mod:`~lightning_perf.measure.messages`).

    Args:
        trace: the trace.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
    """
    operations = np.flatnonzero(trace.category <= LAST_DEVICE_OPERATION)
    names = np.unique(trace.name_id[operations])
    collective = np.isin(
        trace.name_id[operations], [name for name in names.tolist() if is_collective(trace.names[name])]
    )
    rows = operations[collective]
    if rows.size == 0:
        return []
    overlapped_ns = _overlapped(trace, rows, operations[~collective])
    args = _arguments(trace, rows, launches)
    groups: defaultdict[tuple[str, CollectiveArgs], list[int]] = defaultdict(list)
    for place, (name, arg) in enumerate(zip(trace.name_id[rows].tolist(), args, strict=True)):
        groups[trace.names[name], arg].append(place)
    found = [
        _collective(name, arg, trace.duration_ns[rows[places]], overlapped_ns[places])
        for (name, arg), places in groups.items()
    ]
    return sorted(found, key=lambda one: -one.total_us)


def _collective(name: str, args: CollectiveArgs, duration_ns: Int64s, overlapped_ns: Int64s) -> Collective:
    total_ns, hidden_ns = int(duration_ns.sum()), int(overlapped_ns.sum())
    size = _size(args)
    size = None if size is None else size * int(duration_ns.size)
    return Collective(
        name=name,
        collective=args.name,
        dtype=args.dtype,
        in_elements=args.in_elements,
        out_elements=args.out_elements,
        group=args.group,
        group_size=args.group_size,
        calls=int(duration_ns.size),
        total_us=total_ns / 1000,
        exposed_us=(total_ns - hidden_ns) / 1000,
        overlapped_us=hidden_ns / 1000,
        bytes=size,
        gb_per_s=size / total_ns if size is not None and total_ns else None,
    )


def _size(args: CollectiveArgs) -> int | None:
    """Bytes of one call: the larger of what goes in and what comes out. Unknown if only the smaller may be known."""
    if args.out_elements is None and (args.name or "").strip("_").replace("_", "") not in _NO_MORE_OUT:
        return None
    element = _SIZES.get(args.dtype or "")
    elements = [count for count in (args.in_elements, args.out_elements) if count is not None]
    return max(elements) * element if elements and element is not None else None


def _overlapped(trace: Trace, rows: Int64s, others: Int64s) -> Int64s:
    """Time of each row during which one of the others ran on the same device."""
    found = np.zeros(rows.size, dtype=np.int64)
    for device in np.unique(trace.device[rows]).tolist():
        mine, rest = trace.device[rows] == device, others[trace.device[others] == device]
        cover = union(trace.start_ns[rest], trace.end_ns[rest])
        found[mine] = _before(cover, trace.end_ns[rows[mine]]) - _before(cover, trace.start_ns[rows[mine]])
    return found


def _before(one: Intervals, times_ns: Int64s) -> Int64s:
    """How much of a set lies before each time."""
    if len(one) == 0:
        return np.zeros(times_ns.size, dtype=np.int64)
    whole = np.concatenate(([0], np.cumsum(one.lengths)))
    place = np.searchsorted(one.starts, times_ns, side="right")
    beyond = np.maximum(one.ends[np.maximum(place - 1, 0)] - times_ns, 0)
    return whole[place] - np.where(place > 0, beyond, 0)


def _arguments(trace: Trace, rows: Int64s, launches: Int64s) -> list[CollectiveArgs]:
    """What is known about the call of each device operation."""
    own = [trace.collectives.get(row) for row in rows.tolist()]
    if trace.collectives and None in own:
        told = np.array(sorted(trace.collectives), dtype=np.int64)
        told = told[trace.category[told] == Category.CPU_OP]
        nesting = nest(trace, told)
        launched = launches[rows] != NO_LAUNCH
        around = nesting.innermost(trace, np.where(launched, launches[rows], 0))
        around[~launched] = NO_RANGE
        own = [
            trace.collectives[int(nesting.rows[place])] if args is None and place != NO_RANGE else args
            for args, place in zip(own, around.tolist(), strict=True)
        ]
    if None in own:
        unknown = [place for place, args in enumerate(own) if args is None]
        for place, args in zip(unknown, message_of_range(trace, launches[rows[unknown]]), strict=True):
            own[place] = args
    return [args or _NO_ARGS for args in own]
