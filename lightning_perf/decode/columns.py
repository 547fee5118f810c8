"""Events to columns: one numpy array per field, names and ids interned."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.categories import category_of
from lightning_perf.decode.clock import (
    EPOCH_US,
    LARGEST_SUM_NS,
    LARGEST_US,
    LONGEST_NS,
    LONGEST_US,
    MISSING_NS,
    OUT_OF_RANGE_NS,
    nanoseconds,
)
from lightning_perf.decode.events import NO_ARGS, NO_NUMBER, Args, Event
from lightning_perf.decode.quality import Notes
from lightning_perf.decode.trace import (
    LAST_DEVICE_OPERATION,
    Category,
    CollectiveArgs,
    Floats,
    Inputs,
    Int8s,
    Int32s,
    Int64s,
    KernelUse,
    MemoryEvents,
)

_MEMORY_EVENT: Final = "[memory]"
_FAR_FROM_ZERO_NS: Final = 10**12
"""1000 s: no recorded window is longer, so a start at 0 beside starts above this one is not a time (kineto #109)."""

_LARGEST_BYTES: Final = 2**43
"""8 TiB: no device or host has as much, and a million times as much can be summed in 64 bits."""

_LARGEST_INT: Final = 2**63 - 1
_INT32: Final = np.iinfo(np.int32)

WITH_INPUTS: Final = re.compile(
    r"aten::(\w*mm(_|_v\d+)?|\w*bmm\w*|_addmm_activation|\w*convolution\w*|\w*attention\w*)$"
    r"|(nccl|rccl|hccl|xccl|gloo|c10d|ucc|mpi):"
)
"""Operators and ranges whose inputs are always kept: they tell of arithmetic and of messages."""

_Key = TypeVar("_Key", bound=Hashable)
_Pieces = Mapping[str, npt.NDArray[Any]]
"""Columns by name: of one piece of a file, or of all of it."""


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
    sequence: Int64s
    forward_thread: Int64s
    memory: MemoryEvents
    inputs: tuple[Inputs, ...]
    input_id: Int32s
    collectives: dict[int, CollectiveArgs]
    kernel_use: KernelUse
    first_ns: int


class Collector:
    """Takes the events of a file, some at a time, and makes columns of its complete events and the allocator's.

    Args:
        notes: takes what was wrong with the events.
        inputs: whether to keep the inputs of all operators; else of those that :data:`WITH_INPUTS` names.
    """

    def __init__(self, notes: Notes, *, inputs: bool) -> None:
        self._notes = notes
        self._all_inputs = inputs
        self._names = _Interned[str]()
        self._kinds = _Interned[str]()
        self._processes = _Interned[object]()
        self._threads = _Interned[object]()
        self._inputs = _Interned[tuple[bytes, bytes, bytes]]()
        self._name_with_inputs: list[bool] = []
        self._complete: list[_Pieces] = []
        self._memory: list[_Pieces] = []
        self._collectives: dict[int, CollectiveArgs] = {}
        self._kernel_use: list[_Pieces] = []
        self._count = 0

    def add(self, events: Sequence[Event]) -> None:
        """Take events.

        Raises:
            InexactTimesError: a start is a float too large to be exact.
        """
        complete = [event for event in events if event.ph == "X"]
        if complete:
            self._add_complete(complete)
        if len(complete) < len(events):
            allocations = [event for event in events if event.name == _MEMORY_EVENT and event.ph != "X"]
            if allocations:
                self._memory.append(self._memory_columns(allocations))

    def columns(self) -> Columns | None:
        """The columns, or None where no complete event is sound."""
        if not self._complete:
            return None
        every = _joined(self._complete)
        sound = _sound(every["start_ns"], every["duration_ns"], self._notes)
        if sound.size == 0:
            return None
        order = sound[_in_order(every["start_ns"][sound], every["duration_ns"][sound])]
        first_ns = int(every["start_ns"][order[0]])
        row = np.full(self._count, NO_NUMBER, dtype=np.int64)
        row[order] = np.arange(order.size)
        every = {name: column[order] for name, column in every.items()}
        processes, process_of = _as_texts(self._processes)
        threads, thread_of = _as_texts(self._threads)
        process, thread = process_of[every["process"]], thread_of[every["thread"]]
        memory = _memory(self._memory, first_ns)
        without_device = (every["device"] == NO_NUMBER) & (every["category"] <= LAST_DEVICE_OPERATION)
        self._notes.add("unknown_device", np.count_nonzero(without_device))
        return Columns(
            names=self._names.values,
            processes=processes,
            threads=threads,
            name_id=every["name_id"],
            category=every["category"],
            start_ns=every["start_ns"] - first_ns,
            duration_ns=every["duration_ns"],
            process=process,
            thread=thread,
            device=every["device"],
            stream=every["stream"],
            correlation=every["correlation"],
            external_id=every["external_id"],
            bytes=every["bytes"],
            sequence=every["sequence"],
            forward_thread=every["forward_thread"],
            memory=replace(
                memory,
                process=_if_among(process, process_of[memory.process]),
                thread=_if_among(thread, thread_of[memory.thread]),
            ),
            inputs=tuple(Inputs(*map(_plain, one)) for one in self._inputs.values),
            input_id=every["input_id"],
            collectives={int(row[place]): one for place, one in self._collectives.items() if row[place] != NO_NUMBER},
            kernel_use=_kernel_use(self._kernel_use, row),
            first_ns=first_ns,
        )

    def _add_complete(self, complete: Sequence[Event]) -> None:
        name_id = self._names.places([event.name for event in complete])
        kind = self._kinds.places([event.cat for event in complete])
        category = np.array([category_of(name) for name in self._kinds.values], dtype=np.int8)[kind]
        arguments = _Arguments(complete, np.flatnonzero(category != Category.PYTHON))
        operations = _Arguments(complete, np.flatnonzero(category <= LAST_DEVICE_OPERATION))
        operators = _Arguments(complete, np.flatnonzero(category == Category.CPU_OP))
        self._complete.append(
            {
                "name_id": name_id,
                "category": category,
                "start_ns": nanoseconds([event.ts for event in complete], LARGEST_US, self._notes),
                "duration_ns": nanoseconds([event.dur for event in complete], LONGEST_US, self._notes),
                "process": _ids([event.pid for event in complete], self._processes),
                "thread": _ids([event.tid for event in complete], self._threads),
                "device": _devices(complete, operations),
                "stream": operations.column("stream"),
                "correlation": arguments.column("correlation"),
                "external_id": _external_ids(arguments),
                "bytes": _sizes(operations.column("bytes")),
                "sequence": operators.column("sequence"),
                "forward_thread": operators.column("forward_thread"),
                "input_id": self._input_places(complete, name_id, category),
            }
        )
        self._collectives.update(arguments.collectives(self._count))
        self._kernel_use.append(operations.kernel_use(self._count))
        self._count += len(complete)

    def _input_places(self, complete: Sequence[Event], name_id: Int32s, category: Int8s) -> Int32s:
        """Inputs of the events that are to keep theirs; :data:`NO_NUMBER` for others."""
        names = self._names.values[len(self._name_with_inputs) :]
        self._name_with_inputs += [WITH_INPUTS.match(name) is not None for name in names]
        operator = category == Category.CPU_OP
        wanted = np.array(self._name_with_inputs)[name_id] & (operator | (category == Category.ANNOTATION))
        rows = np.flatnonzero(wanted | operator if self._all_inputs else wanted)
        written = [_inputs_of(complete[row].args or NO_ARGS) for row in rows.tolist()]
        places = np.full(len(complete), NO_NUMBER, dtype=np.int32)
        places[rows] = self._inputs.places(written)
        return places

    def _memory_columns(self, events: Sequence[Event]) -> _Pieces:
        args = [event.args or NO_ARGS for event in events]
        fields = ("memory_bytes", "memory_device_type", "memory_device", "total_allocated", "total_reserved")
        return {
            "time_ns": nanoseconds([event.ts for event in events], LARGEST_US, Notes()),
            "process": _ids([event.pid for event in events], self._processes),
            "thread": _ids([event.tid for event in events], self._threads),
            **{field: _integers(list(map(attrgetter(field), args))) for field in fields},
        }


class _Interned(Generic[_Key]):
    """Distinct values in order of appearance, and the place of each."""

    def __init__(self) -> None:
        self._places = _Places[_Key]()

    def places(self, values: Sequence[_Key]) -> Int32s:
        """The place of every value."""
        return np.fromiter(map(self._places.__getitem__, values), dtype=np.int32, count=len(values))

    @property
    def values(self) -> tuple[_Key, ...]:
        """The distinct values."""
        return tuple(self._places)


class _Places(dict[_Key, int]):
    def __missing__(self, value: _Key) -> int:
        place = self[value] = len(self)
        return place


class _Arguments:
    """The arguments of some of the complete events of a piece."""

    def __init__(self, complete: Sequence[Event], rows: Int64s) -> None:
        self.rows = rows
        self._args = [complete[row].args or NO_ARGS for row in rows.tolist()]
        self._size = len(complete)

    def column(self, field: str) -> Int64s:
        """One argument as a column over all complete events."""
        column = np.full(self._size, NO_NUMBER, dtype=np.int64)
        column[self.rows] = _integers(list(map(attrgetter(field), self._args)))
        return column

    def kernel_use(self, first: int) -> _Pieces:
        """The arguments of kernels that tell of multiprocessors, and the event's place in the file."""
        blocks = _floats([one.blocks_per_sm for one in self._args])
        occupancy = _floats([one.occupancy for one in self._args])
        known = np.flatnonzero((blocks >= 0) | (occupancy >= 0))
        return {
            "place": first + self.rows[known],
            "blocks_per_sm": blocks[known],
            "occupancy_percent": occupancy[known],
        }

    def collectives(self, first: int) -> dict[int, CollectiveArgs]:
        """The arguments of collectives by the event's place in the file."""
        return {
            first + int(self.rows[place]): _collective(one)
            for place, one in enumerate(self._args)
            if one.collective is not None
        }


def _joined(pieces: Sequence[_Pieces]) -> _Pieces:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _sound(start_ns: Int64s, duration_ns: Int64s, notes: Notes) -> Int64s:
    """The places of the complete events that have a start and a duration."""
    timed = (start_ns > OUT_OF_RANGE_NS) & (duration_ns > OUT_OF_RANGE_NS)
    far = (start_ns == OUT_OF_RANGE_NS) | (duration_ns == OUT_OF_RANGE_NS)
    negative = timed & (duration_ns < 0)
    at_zero = timed & ~negative & (start_ns == 0)
    others = start_ns[timed & (start_ns != 0)]
    if others.size == 0 or others.min() < _FAR_FROM_ZERO_NS:
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


def _in_order(start_ns: Int64s, duration_ns: Int64s) -> Int64s:
    """Places by start, the longest first on ties. Files are sorted in long runs, which a stable sort makes use of."""
    order: Int64s = np.argsort(start_ns, kind="stable")
    same = np.diff(start_ns[order]) == 0
    tied = np.flatnonzero(np.append(same, [False]) | np.append([False], same))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    return order


def _ids(values: Sequence[object], known: _Interned[object]) -> Int32s:
    """Places of process or thread ids."""
    try:
        return known.places(values)
    except TypeError:  # not hashable: a list, say
        return known.places([str(value) for value in values])


def _as_texts(ids: _Interned[object]) -> tuple[tuple[str, ...], Int32s]:
    """Ids as distinct texts, and the text of every place: torch wrote 25738 and "25738" side by side."""
    texts = _Interned[str]()
    text_of = texts.places([str(value) for value in ids.values])
    return texts.values, text_of


def _inputs_of(args: Args) -> tuple[bytes, bytes, bytes]:
    return bytes(args.input_shapes), bytes(args.input_types), bytes(args.input_values)


def _plain(written: bytes) -> str:
    """JSON on one line."""
    return "".join(written.decode(errors="replace").split()).replace(",", ", ")


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


def _sizes(values: Int64s) -> Int64s:
    """Bytes; :data:`NO_NUMBER` for what no memory holds."""
    return np.where((values >= -_LARGEST_BYTES) & (values <= _LARGEST_BYTES), values, NO_NUMBER)


def _floats(values: Sequence[object]) -> Floats:
    """Values as float64; :data:`NO_NUMBER` for what is not a finite number that is at least 0."""
    if set(map(type, values)) <= {int, float}:
        numbers = np.array(values, dtype=np.float64)
    else:
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


def _external_ids(arguments: _Arguments) -> Int64s:
    ids = arguments.column("external_id")
    if (ids[arguments.rows] == NO_NUMBER).any():
        ids = np.where(ids == NO_NUMBER, arguments.column("legacy_external_id"), ids)
    return ids


def _devices(complete: Sequence[Event], operations: _Arguments) -> Int32s:
    """Device of every device operation: its argument, else its process id, which kineto sets to the device."""
    device = operations.column("device")
    unnamed = operations.rows[device[operations.rows] == NO_NUMBER]
    device[unnamed] = _integers([complete[row].pid for row in unnamed.tolist()])
    device[(device < 0) | (device > _INT32.max)] = NO_NUMBER
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


def _kernel_use(pieces: Sequence[_Pieces], row: Int64s) -> KernelUse:
    """Of all pieces, by the events' rows."""
    every = _joined(pieces)
    rows = row[every["place"]]
    order = np.argsort(rows)
    order = order[rows[order] != NO_NUMBER]
    return KernelUse(
        rows=rows[order],
        blocks_per_sm=every["blocks_per_sm"][order],
        occupancy_percent=every["occupancy_percent"][order],
    )


def _memory(pieces: Sequence[_Pieces], first_ns: int) -> MemoryEvents:
    """The allocator's events in time order. Processes and threads are still places of ids."""
    if not pieces:
        none, few = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return MemoryEvents(none, few, few, few, few, none, none, none)
    every = _joined(pieces)
    time_ns = every["time_ns"]
    timed = (time_ns > OUT_OF_RANGE_NS) & ((time_ns != 0) | (first_ns < _FAR_FROM_ZERO_NS))
    keep = np.flatnonzero(timed & (np.abs(time_ns - first_ns) <= LONGEST_NS))
    order = keep[np.argsort(time_ns[keep], kind="stable")]
    every = {name: column[order] for name, column in every.items()}
    return MemoryEvents(
        time_ns=every["time_ns"] - first_ns,
        process=every["process"],
        thread=every["thread"],
        device_type=_small(every["memory_device_type"]),
        device=_small(every["memory_device"]),
        bytes=_sizes(every["memory_bytes"]),
        total_allocated_bytes=_sizes(every["total_allocated"]),
        total_reserved_bytes=_sizes(every["total_reserved"]),
    )


def _if_among(known: Int32s, values: Int32s) -> Int32s:
    return np.where(np.isin(values, known), values, NO_NUMBER).astype(np.int32)


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
