"""The fields of a trace file that are needed, as msgspec types, and the decoders for them.

msgspec skips every other field without building it, which is why it is several times faster than an untyped
parser. Numbers are ``Any``: what a vendor wrote there (a hexadecimal address as a stream, say) must not cost us
the file. ``gc=False`` keeps hundreds of thousands of objects away from Python's collector.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

NO_NUMBER = -1
"""Stands for an argument that an event does not have."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are needed."""

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


NO_ARGS: Final = Args()
"""Stands for the arguments of an event that has none. Never changed."""


class Event(msgspec.Struct, gc=False):
    """One entry of ``traceEvents``."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class File(msgspec.Struct):
    """A trace file: its events and its metadata."""

    events: list[Event] | None = msgspec.field(default=None, name="traceEvents")
    device_properties: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    base_time_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")


FAST: Final = msgspec.json.Decoder(File | list[Event])
"""Times as int or float, which is exact for all traces but those of :func:`needs_exact_times`."""

EXACT: Final = msgspec.json.Decoder(File | list[Event], float_hook=Decimal)
"""Every digit of the times as written. Slower."""

ONE_FAST: Final = msgspec.json.Decoder(Event)
ONE_EXACT: Final = msgspec.json.Decoder(Event, float_hook=Decimal)
