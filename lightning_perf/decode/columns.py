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
    LARGEST_US,
    LONGEST_NS,
    LONGEST_US,
    OUT_OF_RANGE_NS,
    nanoseconds,
)
from lightning_perf.decode.events import NO_ARGS, NO_NUMBER, Args, Event
from lightning_perf.decode.numbers import LARGEST_INT32, floats, integer, integers, sizes, small
from lightning_perf.decode.quality import Notes
from lightning_perf.decode.sound import FAR_FROM_ZERO_NS, sound
from lightning_perf.decode.trace import (
    LAST_DEVICE_OPERATION,
    Category,
    CollectiveArgs,
    Inputs,
    Int8s,
    Int32s,
    Int64s,
    KernelUse,
    MemoryEvents,
)

_MEMORY_EVENT: Final = "[memory]"

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
        kept = sound(every["start_ns"], every["duration_ns"], self._notes)
        if kept.size == 0:
            return None
        order = kept[_in_order(every["start_ns"][kept], every["duration_ns"][kept])]
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
                "bytes": sizes(operations.column("bytes")),
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
            **{field: integers(list(map(attrgetter(field), args))) for field in fields},
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
        column[self.rows] = integers(list(map(attrgetter(field), self._args)))
        return column

    def kernel_use(self, first: int) -> _Pieces:
        """The arguments of kernels that tell of multiprocessors, and the event's place in the file."""
        blocks = floats([one.blocks_per_sm for one in self._args])
        occupancy = floats([one.occupancy for one in self._args])
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


def _external_ids(arguments: _Arguments) -> Int64s:
    ids = arguments.column("external_id")
    if (ids[arguments.rows] == NO_NUMBER).any():
        ids = np.where(ids == NO_NUMBER, arguments.column("legacy_external_id"), ids)
    return ids


def _devices(complete: Sequence[Event], operations: _Arguments) -> Int32s:
    """Device of every device operation: its argument, else its process id, which kineto sets to the device."""
    device = operations.column("device")
    unnamed = operations.rows[device[operations.rows] == NO_NUMBER]
    device[unnamed] = integers([complete[row].pid for row in unnamed.tolist()])
    device[(device < 0) | (device > LARGEST_INT32)] = NO_NUMBER
    return device.astype(np.int32)


def _collective(args: Args) -> CollectiveArgs:
    sizes = [integer(value) for value in (args.in_elements, args.out_elements, args.group_size)]
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
    timed = (time_ns > OUT_OF_RANGE_NS) & ((time_ns != 0) | (first_ns < FAR_FROM_ZERO_NS))
    keep = np.flatnonzero(timed & (np.abs(time_ns - first_ns) <= LONGEST_NS))
    order = keep[np.argsort(time_ns[keep], kind="stable")]
    every = {name: column[order] for name, column in every.items()}
    return MemoryEvents(
        time_ns=every["time_ns"] - first_ns,
        process=every["process"],
        thread=every["thread"],
        device_type=small(every["memory_device_type"]),
        device=small(every["memory_device"]),
        bytes=sizes(every["memory_bytes"]),
        total_allocated_bytes=sizes(every["total_allocated"]),
        total_reserved_bytes=sizes(every["total_reserved"]),
    )


def _if_among(known: Int32s, values: Int32s) -> Int32s:
    return np.where(np.isin(values, known), values, NO_NUMBER).astype(np.int32)


def start_unix_ns(first_ns: int, base_time_ns: int | None) -> int:
    """Wall clock of the first complete event, 0 where the trace does not say what its zero is."""
    if first_ns >= EPOCH_US * 1000:
        return first_ns
    if base_time_ns is None or not 0 < base_time_ns <= LARGEST_US * 1000:
        return 0
    return first_ns + base_time_ns
