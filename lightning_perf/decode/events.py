"""The fields of a trace file that are needed, as msgspec types, and the decoders for them.

msgspec skips every other field without building it, which is why it is several times faster than an untyped
parser. Arguments are ``Any``: what a vendor wrote there (a hexadecimal address as a stream, say) must not cost us
the file. ``gc=False`` keeps hundreds of thousands of objects away from Python's collector.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

NO_NUMBER = -1
"""Stands for an argument that an event does not have."""

_NOTHING: Final = msgspec.Raw()

Phase = Literal[
    "", "X", "B", "E", "i", "I", "C", "b", "n", "e", "s", "t", "f", "N", "O", "D", "M", "V", "v", "R", "c", "P",
    "S", "T", "p", "F", "(", ")", "=",
]  # fmt: skip
"""Chrome's event phases: a closed set, so that they are no new text in every event."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are needed. Inputs stay the text that they are: few ask for them."""

    device: Any = NO_NUMBER
    stream: Any = NO_NUMBER
    correlation: Any = NO_NUMBER
    external_id: Any = msgspec.field(default=NO_NUMBER, name="External id")
    legacy_external_id: Any = msgspec.field(default=NO_NUMBER, name="external id")
    bytes: Any = NO_NUMBER
    memory_bytes: Any = msgspec.field(default=NO_NUMBER, name="Bytes")
    memory_device_type: Any = msgspec.field(default=NO_NUMBER, name="Device Type")
    memory_device: Any = msgspec.field(default=NO_NUMBER, name="Device Id")
    total_allocated: Any = msgspec.field(default=NO_NUMBER, name="Total Allocated")
    total_reserved: Any = msgspec.field(default=NO_NUMBER, name="Total Reserved")
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    blocks_per_sm: Any = msgspec.field(default=NO_NUMBER, name="blocks per SM")
    occupancy: Any = msgspec.field(default=NO_NUMBER, name="est. achieved occupancy %")
    sequence: Any = msgspec.field(default=NO_NUMBER, name="Sequence number")
    forward_thread: Any = msgspec.field(default=NO_NUMBER, name="Fwd thread id")
    input_shapes: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    input_types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")
    input_values: msgspec.Raw = msgspec.field(default=_NOTHING, name="Concrete Inputs")


NO_ARGS: Final = Args()
"""Stands for the arguments of an event that has none. Never changed."""


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``."""

    ph: Phase = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: int | float | str | None = None
    args: Args | None = None


class File(msgspec.Struct):
    """A trace file: its events and its metadata."""

    events: list[Event] | None = msgspec.field(default=None, name="traceEvents")
    device_properties: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    base_time_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")


_FAST: Final = msgspec.json.Decoder(File | list[Event])
_EXACT: Final = msgspec.json.Decoder(File | list[Event], float_hook=str.encode)
_FAST_EVENTS: Final = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS: Final = msgspec.json.Decoder(list[Event], float_hook=str.encode)
_ONE_EXACT: Final = msgspec.json.Decoder(Event, float_hook=str.encode)

_DECIMALS_SINCE_1970: Final = re.compile(rb'"ts":\s*\d{14,}\.\d')
_SNIFFED_BYTES: Final = 2**20


def decode_file(content: bytes | bytearray, *, exact: bool) -> File | list[Event]:
    """A sound file: an object with events and metadata, or a bare list of events.

    Args:
        content: the JSON text.
        exact: whether starts that are no integers stay text (as bytes), with every digit. Else they are floats.

    Raises:
        msgspec.DecodeError: the file is not JSON, or not what we know as a trace.
        RecursionError: it is nested too deeply.
    """
    return (_EXACT if exact else _FAST).decode(content)


def decode_events(content: bytes, *, exact: bool) -> list[Event]:
    """A list of events, as :func:`decode_file` does.

    Raises:
        msgspec.DecodeError: it is none.
        RecursionError: it is nested too deeply.
    """
    return (_EXACT_EVENTS if exact else _FAST_EVENTS).decode(content)


def has_decimals_since_1970(content: bytes | bytearray) -> bool:
    """Whether the file's first times are such that a float64 would lose digits."""
    return _DECIMALS_SINCE_1970.search(content, 0, _SNIFFED_BYTES) is not None


def decode_event(content: bytes | bytearray) -> Event:
    """One event; its start is int or text as bytes."""
    return _ONE_EXACT.decode(content)
