"""A trace file to a :class:`Trace`: the one function other stages call."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from lightning_perf.decode.clock import InexactTimesError
from lightning_perf.decode.columns import Collector, Columns, start_unix_ns
from lightning_perf.decode.events import File, decode_file, has_decimals_since_1970
from lightning_perf.decode.pieces import NotInPiecesError, decode_pieces
from lightning_perf.decode.quality import Notes
from lightning_perf.decode.salvage import salvage
from lightning_perf.decode.source import EXPECTED, check_file, other_format, read_source
from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, DeviceProperties, Trace
from lightning_perf.errors import TraceError

_AT_ONCE_BYTES: Final = 2**26
"""Of text. More is read event by event where it cannot be read in pieces: all events at once are much larger."""

_RANK_IN_NAME: Final = re.compile(r"(?<![a-z])rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)


def read_trace(
    path: str | os.PathLike[str], *, inputs: bool = False, progress: Callable[[float], None] | None = None
) -> Trace:
    """Read a torch.profiler trace of any torch version and vendor, packed or not, sound or damaged.

    What is sound in a damaged file is kept with its exact values, and ``quality`` says what was wrong.

    Args:
        path: the file.
        inputs: whether to keep the inputs (shapes, types) of all operators.
        progress: called now and then, in another thread, with the share of the file that was read: 0 to 1. It begins
            again where a file has to be read twice, and ends early where it is damaged.

    Raises:
        TraceError: the file cannot be read, is not a trace, or holds no complete event.
    """
    name = os.fspath(path)
    check_file(name)
    try:
        return _read(name, exact=False, inputs=inputs, progress=progress)
    except InexactTimesError:  # rare: the first events did not show it
        return _read(name, exact=True, inputs=inputs, progress=progress)


def _read(name: str, *, exact: bool, inputs: bool, progress: Callable[[float], None] | None) -> Trace:
    try:
        notes = Notes()
        columns, facts = _collected(decode_pieces(name, exact=exact, progress=progress), notes, inputs=inputs)
    except NotInPiecesError:
        notes = Notes()
        whole = _decoded(read_source(name, notes), name, notes, exact=exact)
        columns, facts = _collected(whole, notes, inputs=inputs)
    if columns is None:
        raise TraceError(f"{name}: holds no complete event; {EXPECTED}; record at least one step")
    if not np.any(columns.category <= LAST_DEVICE_OPERATION):
        notes.add("no_device_operations")
    rank, world_size = _place(facts.distributed, name)
    return Trace(
        path=os.fsencode(name).decode(errors="backslashreplace"),  # a name that is no UTF-8 would be no JSON
        names=columns.names,
        processes=columns.processes,
        threads=columns.threads,
        name_id=columns.name_id,
        category=columns.category,
        start_ns=columns.start_ns,
        duration_ns=columns.duration_ns,
        process=columns.process,
        thread=columns.thread,
        device=columns.device,
        stream=columns.stream,
        correlation=columns.correlation,
        external_id=columns.external_id,
        bytes=columns.bytes,
        memory=columns.memory,
        start_unix_ns=start_unix_ns(columns.first_ns, _whole(facts.base_time_ns)),
        rank=rank,
        world_size=world_size,
        devices=_devices(facts.device_properties),
        quality=notes.result(),
        sequence=columns.sequence,
        forward_thread=columns.forward_thread,
        inputs=columns.inputs,
        input_id=columns.input_id,
        collectives=columns.collectives,
        kernel_use=columns.kernel_use,
    )


def _collected(files: Iterable[File], notes: Notes, *, inputs: bool) -> tuple[Columns | None, File]:
    """Columns of all events, and the metadata: of a key that comes again, what comes last."""
    collector = Collector(notes, inputs=inputs)
    facts = File()
    for file in files:
        collector.add(file.events or [])
        for field in ("device_properties", "distributed", "base_time_ns"):
            if getattr(file, field) is not None:
                setattr(facts, field, getattr(file, field))
    return collector.columns(), facts


def _decoded(content: bytes | bytearray, name: str, notes: Notes, *, exact: bool) -> Iterable[File]:
    """The file as typed events: at once where it is sound and not large, else event by event."""
    problem = "is JSON without trace events"
    try:
        if len(content) > _AT_ONCE_BYTES:
            problem = "holds no trace events that can be read"
        else:
            file = decode_file(content, exact=exact or has_decimals_since_1970(content))
            if isinstance(file, list):
                notes.add("bare_list")
                return [File(events=file)]
            if file.events is not None:
                return [file]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        problem = f"holds no trace events that can be read ({error})"
    files = salvage(content, notes)
    first = next(files)
    if not first.events:
        other = other_format(content)
        problem = f"is {other}, not JSON" if other else problem
        raise TraceError(f"{name}: {problem}; {EXPECTED}; export it with prof.export_chrome_trace")
    return chain([first], files)


def _place(distributed: object, name: str) -> tuple[int | None, int | None]:
    """Rank and world size, as the trace says, else the rank from the file's name."""
    facts = distributed if isinstance(distributed, dict) else {}
    rank = _whole(facts.get("rank"))
    if rank is None:
        found = _RANK_IN_NAME.search(Path(name).name)
        rank = int(found.group(1)) if found else None
    return rank, _whole(facts.get("world_size"))


def _devices(properties: object) -> tuple[DeviceProperties, ...]:
    """Device properties as far as the trace gives them."""
    devices: dict[int, DeviceProperties] = {}
    for facts in properties if isinstance(properties, list) else []:
        index = _whole(facts.get("id")) if isinstance(facts, dict) else None
        if index is None:
            continue
        title = facts.get("name")
        major, minor = _whole(facts.get("computeMajor")), _whole(facts.get("computeMinor"))
        devices[index] = DeviceProperties(
            index=index,
            name=title if isinstance(title, str) else None,
            memory_bytes=_whole(facts.get("totalGlobalMem")),
            compute_capability=None if major is None or minor is None else (major, minor),
        )
    return tuple(devices.values())


def _whole(value: object) -> int | None:
    """An integer of 64 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
