"""What is sound in a damaged trace file, event by event.

The text is cut where events begin; each piece is decoded alone, so that damage costs the events it lies in and
no others. A piece that is not JSON is read as leniently as its meaning is clear, or left out and counted.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, get_args

import msgspec

from lightning_perf.decode.events import Args, Event, File, Phase, decode_event
from lightning_perf.decode.quality import Notes
from lightning_perf.decode.repair import repaired

# An object whose first key is an event's, unless it is the value of a key (such as "args": {"name": ...}). What begins
# with a phase is no such value, unless a damage has put it behind a key.
_EVENT_START: Final = re.compile(rb'\{(?:(?<!:\{)(?<!: \{)\s*"(?:name|cat|pid|tid|ts|dur|args)"|\s*"ph")\s*:')
_BETWEEN_EVENTS: Final = b", \t\r\n\0"
_END_OF_EVENTS: Final = re.compile(rb"\][\s\0]*(?:[,}]|$)")
_EVENT_LIST: Final = re.compile(rb'"traceEvents"\s*:\s*\[\s*$')
_METADATA: Final = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds")

_PHASES: Final = tuple(filter(None, get_args(Phase)))
_LARGEST_EVENT_BYTES: Final = 2**23
"""No event is as large, nor is what comes before the first or after the last one."""

_LARGEST_REPAIR_BYTES: Final = 2**20
"""Larger pieces are not repaired."""

_USUAL_EVENT_BYTES: Final = 2**12
_LARGEST_FACT_BYTES: Final = 2**16

_EVENTS_AT_ONCE: Final = 50_000
"""Events are handed over so many at a time: their objects are many times larger than what is kept of them."""

_HOPELESS: Final = 1000
"""After so many pieces in a row that cannot be read, nothing is tried that takes long."""

_KEYS_TRIED: Final = 100

_PIECES_OF_AN_EVENT: Final = 16
"""An event's arguments can hold objects that look like events. This many pieces are joined at most."""

_MANY_DIGITS: Final = 40
"""Python refuses to read integers of thousands of digits."""

_ARGUMENTS: Final = tuple((field.name, field.encode_name) for field in msgspec.structs.fields(Args))
_NOT_DECODED: Final = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)


def salvage(content: bytes | bytearray, notes: Notes) -> Iterator[File]:
    """All events that can be read, in their order, some at a time; the last file holds the metadata that can be read.

    Args:
        content: the text.
        notes: takes what was wrong.

    Returns:
        One file at least; the first one has no events only if there are none.
    """
    starts = array("q", (match.start() for match in _EVENT_START.finditer(content)))
    if not starts:
        yield File()
        return
    pieces = _Pieces(content, starts, notes)
    for events in pieces.read_all():
        yield File(events=events)
    facts, bare_list = _header(content, starts[0], notes)
    if pieces.last_failed and content.rstrip(_BETWEEN_EVENTS).endswith((b"}", b"]")):
        notes.add("unreadable_events")
    elif pieces.last_failed:
        notes.add("truncated_json")
    else:
        facts |= _tail(content, pieces.end, notes, bare_list=bare_list)
    if "unreadable_metadata" in notes or "truncated_json" in notes:
        facts = _loose_facts(content) | facts
    yield File(
        events=pieces.events,
        device_properties=facts.get("deviceProperties"),
        distributed=facts.get("distributedInfo"),
        base_time_ns=facts.get("baseTimeNanoseconds"),
    )


class _Pieces:
    """Reads the pieces between the places where events begin."""

    def __init__(self, content: bytes | bytearray, starts: Sequence[int], notes: Notes) -> None:
        self.events: list[Event] = []
        self.end = starts[0]
        self.last_failed = False
        self._content = content
        self._starts = array("q", starts)
        self._starts.append(len(content))
        self._failed_in_a_row = 0
        self._notes = notes

    def read_all(self) -> Iterator[list[Event]]:
        """All events but the last ones, which ``events`` holds then; ``end`` is where the last sound one ends."""
        piece = 0
        while piece < len(self._starts) - 1:
            if len(self.events) >= _EVENTS_AT_ONCE:
                yield self.events
                self.events = []
            start, stop = self._starts[piece], self._starts[piece + 1]
            if stop - start > _LARGEST_EVENT_BYTES:
                piece = self._read_leniently(piece)
                continue
            text = bytes(self._content[start:stop]).rstrip(_BETWEEN_EVENTS)
            try:
                self.events.append(decode_event(text))
                self.end = start + len(text)
                self._failed_in_a_row = 0
                piece += 1
            except msgspec.ValidationError:
                known = len(self.events)
                piece = self._read_leniently(piece)
                self._notes.add("unexpected_types", len(self.events) > known)
            except _NOT_DECODED:
                piece = self._read_leniently(piece)

    def _read_leniently(self, piece: int) -> int:
        """Read one piece (or several that are one event) that is not plainly an event; returns the next."""
        start, stop = self._starts[piece], self._starts[piece + 1]
        joined = self._starts[min(piece + _PIECES_OF_AN_EVENT, len(self._starts) - 1)]
        hopeless = self._failed_in_a_row > _HOPELESS and stop < len(self._content)
        if not hopeless and (
            self._read_object(start, stop) or self._repair(start, stop) or self._read_object(start, joined)
        ):
            self._failed_in_a_row = 0
            piece = max(bisect_left(self._starts, self.end), piece + 1)
        else:
            self._failed_in_a_row += 1
            self.last_failed = stop == len(self._content)
            self._notes.add("unreadable_events", not self.last_failed)
            return piece + 1
        self._read_rest(self._starts[piece])
        return piece

    def _read_rest(self, stop: int) -> None:
        """What follows an event before the next: events whose first key is not known, or nothing of use."""
        while (start := self._content.find(b"{", self.end, stop)) >= 0 and (
            self._read_object(start, min(stop, start + _USUAL_EVENT_BYTES)) or self._read_object(start, stop)
        ):
            pass
        if stop < len(self._content):
            self._notes.add("stray_bytes", len(bytes(self._content[self.end : stop]).strip(_BETWEEN_EVENTS)))

    def _read_object(self, start: int, stop: int) -> bool:
        """Take the event at ``start`` as Python's decoder reads it, which forgives control characters and NaN."""
        # As Latin-1 every byte is one character: positions in the text are positions in the file.
        text = bytes(self._content[start : min(stop, start + _LARGEST_EVENT_BYTES)]).decode("latin-1")
        for strict in (True, False):
            decoder = _Decoder(strict=strict)
            try:
                value, length = decoder.raw_decode(text)
                if not text.isascii():
                    value = _Decoder(strict=strict).decode(self._utf8(text[:length]))
                value = _encodable(value)
            except _NOT_DECODED:
                continue
            if self._take(value, start + length):
                self._notes.add("not_a_number", decoder.not_numbers)
                self._notes.add("repaired_text", not strict)
                return True
        return False

    def _repair(self, start: int, stop: int) -> bool:
        """Take the event at ``start`` after a repair of its text."""
        if stop - start > _LARGEST_REPAIR_BYTES:
            return False
        fixed = repaired(bytes(self._content[start:stop]).decode("latin-1"))
        try:
            if fixed is None or not self._take(
                _encodable(_Decoder(strict=True).decode(self._utf8(fixed.text))), start + fixed.length
            ):
                return False
        except _NOT_DECODED:
            return False
        self._notes.add("repaired_text", fixed.texts_changed > 0)
        self._notes.add("not_a_number", fixed.not_numbers)
        return True

    def _utf8(self, text: str) -> str:
        """The text that was read as Latin-1, as the UTF-8 that it is."""
        content = text.encode("latin-1")
        try:
            return content.decode()
        except UnicodeDecodeError:
            self._notes.add("invalid_utf8")
            return content.decode(errors="replace")

    def _take(self, value: object, end: int) -> bool:
        if not isinstance(value, dict) or value.get("ph") not in _PHASES:
            return False
        self.events.append(_event(value))
        self.end = end
        return True


class _Decoder(json.JSONDecoder):
    """Python's decoder. Numbers with a fraction stay text as bytes, with every digit, as in ``decode_event``."""

    def __init__(self, *, strict: bool) -> None:
        self.not_numbers = 0
        super().__init__(
            strict=strict,
            parse_float=str.encode,
            parse_int=_integer,
            parse_constant=self._not_a_number,
        )

    def _not_a_number(self, _name: str) -> None:
        self.not_numbers += 1


def _integer(text: str) -> int | bytes:
    return int(text) if len(text) < _MANY_DIGITS else text.encode()


def _encodable(value: object) -> object:
    """The same value; halves of a surrogate pair, which are no characters, replaced in all texts."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inside) for key, inside in value.items()}
    return [_encodable(inside) for inside in value] if isinstance(value, list) else value


def _event(value: dict[str, Any]) -> Event:
    """An event from untyped JSON; what is not of its type is taken as missing."""
    args = value.get("args")
    return Event(
        ph=value["ph"],
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=value.get("pid"),
        tid=value.get("tid"),
        ts=value.get("ts"),
        dur=value.get("dur"),
        args=_args(args) if isinstance(args, dict) else None,
    )


def _args(values: dict[str, Any]) -> Args:
    known = {ours: values[theirs] for ours, theirs in _ARGUMENTS if theirs in values}
    for field in ("input_shapes", "input_types", "input_values"):
        if field in known:
            known[field] = msgspec.Raw(msgspec.json.encode(known[field]))
    return Args(**known)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _header(content: bytes | bytearray, first: int, notes: Notes) -> tuple[dict[str, Any], bool]:
    """The metadata before the first event, and whether the file is a bare list."""
    if first > _LARGEST_EVENT_BYTES:
        notes.add("unreadable_metadata")
        return {}, False
    header = bytes(content[:first])
    opening = re.search(rb"[{\[]", header)
    if opening is None:
        notes.add("stray_bytes", len(header.strip(_BETWEEN_EVENTS)))
        notes.add("no_event_list")
        return {}, False
    notes.add("stray_bytes", len(header[: opening.start()].strip(_BETWEEN_EVENTS)))
    header = header[opening.start() :]
    if header.strip() == b"[":
        notes.add("bare_list")
        return {}, True
    if not _EVENT_LIST.search(header):
        notes.add("no_event_list")
    facts, _ = _object(header + b"]}")
    notes.add("unreadable_metadata", facts is None)
    return facts or {}, False


def _tail(content: bytes | bytearray, end: int, notes: Notes, *, bare_list: bool) -> dict[str, Any]:
    """The metadata after the last event, which could be read."""
    tail = bytes(content[end : end + _LARGEST_EVENT_BYTES])
    closed = _END_OF_EVENTS.search(tail)
    if closed is None:
        notes.add("truncated_json")
        return {}
    notes.add("stray_bytes", len(tail[: closed.start()].strip(_BETWEEN_EVENTS)))
    tail = tail[closed.start() + 1 :].strip(_BETWEEN_EVENTS)
    if bare_list:
        notes.add("stray_bytes", len(tail))
        return {}
    facts, length = _object(b"{" + tail)
    if facts is None:
        notes.add("unreadable_metadata" if tail.endswith(b"}") else "truncated_json")
        return {}
    notes.add("stray_bytes", len(tail[length - 1 :].strip(_BETWEEN_EVENTS)))
    return facts


def _object(content: bytes) -> tuple[dict[str, Any] | None, int]:
    """The JSON object at the start of some bytes, and its length."""
    try:
        value, length = _Decoder(strict=False).raw_decode(content.decode("latin-1"))
        value = _encodable(value)
    except _NOT_DECODED:
        return None, 0
    return (value, length) if isinstance(value, dict) else (None, 0)


def _loose_facts(content: bytes | bytearray) -> dict[str, Any]:
    """The needed metadata wherever it lies, for files whose metadata is damaged elsewhere."""
    facts: dict[str, Any] = {}
    for key in _METADATA:
        for match in islice(re.finditer(rb'"' + key.encode() + rb'"\s*:\s*', content), _KEYS_TRIED):
            text = bytes(content[match.end() : match.end() + _LARGEST_FACT_BYTES]).decode("latin-1")
            try:
                facts[key] = _encodable(_Decoder(strict=False).raw_decode(text)[0])
                break
            except _NOT_DECODED:
                continue
    return facts
