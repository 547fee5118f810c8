"""Events to columns: one numpy array per field, names and ids interned."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeVar

import numpy as np

from lightning_perf.decode.categories import category_of
from lightning_perf.decode.clock import EPOCH_US, LARGEST_US, LONGEST_US, MISSING_NS, OUT_OF_RANGE_NS, nanoseconds
from lightning_perf.decode.events import NO_ARGS, NO_NUMBER, Args, Event
from lightning_perf.decode.quality import Notes
from lightning_perf.decode.trace import (
    LAST_DEVICE_OPERATION,
    Category,
    CollectiveArgs,
    Floats,
    Int8s,
    Int32s,
    Int64s,
    KernelUse,
    MemoryEvents,
)

_MEMORY_EVENT: Final = "[memory]"
_FAR_FROM_ZERO_NS: Final = 10**12
"""1000 s: no recorded window is longer, so a start at 0 beside starts above this one is not a time (kineto #109)."""

_LARGEST_INT: Final = 2**63 - 1
_INT32: Final = np.iinfo(np.int32)

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of :class:`Trace`, sorted, and where their zero lies."""

    names: tuple[str, ...]
    processes: tuple[str, ...]
    threads: tuple[str, ...]
    name_id: Int32s
    category: Int8s
    start_ns: Int64s
    duration_ns: Int64s
    process: Int32s
    thread: Int32s
    device: Int32s
    stream: Int64s
    correlation: Int64s
    external_id: Int64s
    bytes: Int64s
    memory: MemoryEvents
    shapes: tuple[str, ...]
    shape_id: Int32s
    collectives: dict[int, CollectiveArgs]
    kernel_use: KernelUse
    first_ns: int


def columns_of(events: Sequence[Event], notes: Notes, *, shapes: bool) -> Columns | None:
    """Columns of the complete events and the allocator's events, or None where no complete event is sound.

    Args:
        events: all events of a file.
        notes: takes what was wrong with them.
        shapes: whether to keep the input shapes of operators.
    """
    complete, start_ns, duration_ns = _sound([event for event in events if event.ph == "X"], notes)
    if not complete:
        return None
    order = np.lexsort((-duration_ns, start_ns))
    first_ns = int(start_ns[order[0]])

    names, name_id = _interned([event.name for event in complete])
    processes, process = _interned_ids([event.pid for event in complete])
    threads, thread = _interned_ids([event.tid for event in complete])
    kinds, kind = _interned([event.cat for event in complete])
    category = np.array([category_of(name) for name in kinds], dtype=np.int8)[kind]

    arguments = _Arguments(complete, np.flatnonzero(category != Category.PYTHON))
    operations = _Arguments(complete, np.flatnonzero(category <= LAST_DEVICE_OPERATION))
    operators = np.flatnonzero(category == Category.CPU_OP) if shapes else np.empty(0, dtype=np.int64)
    shape_texts, shape_id = _shapes(complete, operators)
    external_id, legacy_id = arguments.column("external_id"), arguments.column("legacy_external_id")
    return Columns(
        names=names,
        processes=processes,
        threads=threads,
        name_id=name_id[order],
        category=category[order],
        start_ns=start_ns[order] - first_ns,
        duration_ns=duration_ns[order],
        process=process[order],
        thread=thread[order],
        device=_devices(complete, operations, notes)[order],
        stream=operations.column("stream")[order],
        correlation=arguments.column("correlation")[order],
        external_id=np.where(external_id == NO_NUMBER, legacy_id, external_id)[order],
        bytes=operations.column("bytes")[order],
        memory=_memory(events, first_ns, processes, threads),
        shapes=shape_texts,
        shape_id=shape_id[order],
        collectives=arguments.collectives(order),
        kernel_use=operations.kernel_use(order),
        first_ns=first_ns,
    )


class _Arguments:
    """The arguments of some of the complete events."""

    def __init__(self, complete: Sequence[Event], rows: Int64s) -> None:
        self.rows = rows
        self._args = [complete[row].args or NO_ARGS for row in rows.tolist()]
        self._size = len(complete)

    def column(self, field: str) -> Int64s:
        """One argument as a column over all complete events."""
        column = np.full(self._size, NO_NUMBER, dtype=np.int64)
        column[self.rows] = _integers(list(map(attrgetter(field), self._args)))
        return column

    def kernel_use(self, order: Int64s) -> KernelUse:
        """The arguments of kernels that tell of multiprocessors, by the event's row once all are in this order."""
        blocks = _floats([one.blocks_per_sm for one in self._args])
        occupancy = _floats([one.occupancy for one in self._args])
        known = np.flatnonzero((blocks >= 0) | (occupancy >= 0))
        row = np.empty(order.size, dtype=np.int64)
        row[order] = np.arange(order.size)
        rows = row[self.rows[known]]
        by_row = np.argsort(rows)
        return KernelUse(
            rows=rows[by_row],
            blocks_per_sm=blocks[known][by_row],
            occupancy_percent=occupancy[known][by_row],
        )

    def collectives(self, order: Int64s) -> dict[int, CollectiveArgs]:
        """The arguments of collectives, by the event's row once all are in this order."""
        found = [place for place, one in enumerate(self._args) if one.collective is not None]
        if not found:
            return {}
        row = np.empty(order.size, dtype=np.int64)
        row[order] = np.arange(order.size)
        return {int(row[self.rows[place]]): _collective(self._args[place]) for place in found}


def _sound(complete: list[Event], notes: Notes) -> tuple[list[Event], Int64s, Int64s]:
    """The complete events that have a start and a duration, and both in nanoseconds."""
    start_ns = nanoseconds([event.ts for event in complete], LARGEST_US, notes)
    duration_ns = nanoseconds([event.dur for event in complete], LONGEST_US, notes)
    timed = (start_ns > OUT_OF_RANGE_NS) & (duration_ns > OUT_OF_RANGE_NS)
    far = (start_ns == OUT_OF_RANGE_NS) | (duration_ns == OUT_OF_RANGE_NS)
    negative = timed & (duration_ns < 0)
    at_zero = timed & ~negative & (start_ns == 0)
    others = start_ns[timed & (start_ns != 0)]
    if others.size == 0 or others.min() < _FAR_FROM_ZERO_NS:
        at_zero[:] = False
    notes.add("out_of_range", np.count_nonzero(far))
    notes.add("missing_timestamp", np.count_nonzero(~far & (start_ns == MISSING_NS)))
    notes.add("missing_duration", np.count_nonzero((start_ns > OUT_OF_RANGE_NS) & (duration_ns == MISSING_NS)))
    notes.add("negative_duration", np.count_nonzero(negative))
    notes.add("zero_timestamps", np.count_nonzero(at_zero))
    keep = timed & ~negative & ~at_zero
    if not keep.all():
        complete = [event for event, kept in zip(complete, keep.tolist(), strict=True) if kept]
    return complete, start_ns[keep], duration_ns[keep]


def _interned(values: Sequence[_Key]) -> tuple[tuple[_Key, ...], Int32s]:
    """Distinct values in order of appearance, and every value's index in them."""
    distinct = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return tuple(distinct), np.fromiter(map(distinct.__getitem__, values), dtype=np.int32, count=len(values))


def _interned_ids(values: Sequence[object]) -> tuple[tuple[str, ...], Int32s]:
    """Process or thread ids, interned as text: torch wrote 25738 and "25738" side by side."""
    try:
        distinct, index = _interned(values)
    except TypeError:  # not hashable: a list, say
        distinct, index = _interned([str(value) for value in values])
    texts, text_index = _interned([str(value) for value in distinct])
    return texts, text_index[index]


def _integers(values: Sequence[object]) -> Int64s:
    """Values as int64; :data:`NO_NUMBER` for what is not an integer of 64 bits."""
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: object) -> int:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        value = int(value) if len(value) < 20 else NO_NUMBER
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not abs(value) <= _LARGEST_INT:
        return NO_NUMBER
    return value


def _floats(values: Sequence[object]) -> Floats:
    """Values as float64; :data:`NO_NUMBER` for what is not a finite number that is at least 0."""
    numbers = np.fromiter(map(_float, values), dtype=np.float64, count=len(values))
    return np.where(np.isfinite(numbers) & (numbers >= 0), numbers, NO_NUMBER)


def _float(value: object) -> float:
    """A number, also one that kept its text."""
    if isinstance(value, bool) or not isinstance(value, float | int | bytes | str):
        return NO_NUMBER
    try:
        return float(value)
    except (ValueError, OverflowError):
        return NO_NUMBER


def _devices(complete: Sequence[Event], operations: _Arguments, notes: Notes) -> Int32s:
    """Device of every device operation: its argument, else its process id, which kineto sets to the device."""
    device = operations.column("device")
    unnamed = operations.rows[device[operations.rows] == NO_NUMBER]
    device[unnamed] = _integers([complete[row].pid for row in unnamed.tolist()])
    device[(device < 0) | (device > _INT32.max)] = NO_NUMBER
    notes.add("unknown_device", np.count_nonzero(device[operations.rows] == NO_NUMBER))
    return device.astype(np.int32)


def _collective(args: Args) -> CollectiveArgs:
    sizes = [_integer(value) for value in (args.in_elements, args.out_elements, args.group_size)]
    in_elements, out_elements, group_size = (size if size >= 0 else None for size in sizes)
    name, dtype, group = (
        str(value) if isinstance(value, str | int) and value != "" else None
        for value in (args.collective, args.dtype, args.group)
    )
    return CollectiveArgs(
        name=name,
        in_elements=in_elements,
        out_elements=out_elements,
        dtype=dtype,
        group_size=group_size,
        group=group,
    )


def _shapes(complete: Sequence[Event], rows: Int64s) -> tuple[tuple[str, ...], Int32s]:
    """Input shapes of some events: the distinct ones as text, and every event's index in them or -1."""
    column = np.full(len(complete), NO_NUMBER, dtype=np.int32)
    written, index = _interned([bytes((complete[row].args or NO_ARGS).input_dims) for row in rows.tolist()])
    texts, text_index = _interned(["".join(one.decode(errors="replace").split()).replace(",", ", ") for one in written])
    if rows.size:
        known = np.array([bool(text) for text in texts], dtype=np.bool_)[text_index[index]]
        column[rows[known]] = text_index[index][known]
    return texts, column


def _memory(events: Iterable[Event], first_ns: int, processes: Sequence[str], threads: Sequence[str]) -> MemoryEvents:
    """The allocator's events in time order."""
    rows = [event for event in events if event.name == _MEMORY_EVENT and event.ph != "X"]
    time_ns = nanoseconds([event.ts for event in rows], LARGEST_US, Notes())
    args = [event.args or NO_ARGS for event in rows]
    keep = np.flatnonzero((time_ns > OUT_OF_RANGE_NS) & ((time_ns != 0) | (first_ns < _FAR_FROM_ZERO_NS)))
    order = keep[np.argsort(time_ns[keep], kind="stable")]

    def column(values: Sequence[object]) -> Int64s:
        return _integers(values)[order]

    return MemoryEvents(
        time_ns=time_ns[order] - first_ns,
        process=_places([event.pid for event in rows], processes)[order],
        thread=_places([event.tid for event in rows], threads)[order],
        device_type=_small(column([one.memory_device_type for one in args])),
        device=_small(column([one.memory_device for one in args])),
        bytes=column([one.memory_bytes for one in args]),
        total_allocated_bytes=column([one.total_allocated for one in args]),
        total_reserved_bytes=column([one.total_reserved for one in args]),
    )


def _places(ids: Sequence[object], known: Sequence[str]) -> Int32s:
    """Places of process or thread ids among those known; :data:`NO_NUMBER` for others."""
    texts, index = _interned_ids(ids)
    place_of = {text: place for place, text in enumerate(known)}
    return np.array([place_of.get(text, NO_NUMBER) for text in texts], dtype=np.int32)[index]


def _small(values: Int64s) -> Int32s:
    inside = (values >= _INT32.min) & (values <= _INT32.max)
    return np.where(inside, values, NO_NUMBER).astype(np.int32)


def start_unix_ns(first_ns: int, base_time_ns: int | None) -> int:
    """Wall clock of the first complete event, 0 where the trace does not say what its zero is."""
    if first_ns >= EPOCH_US * 1000:
        return first_ns
    if base_time_ns is None or not 0 < base_time_ns <= LARGEST_US * 1000:
        return 0
    return first_ns + base_time_ns
