"""A sound trace file, decoded piece by piece.

A whole trace as Python objects is many times the size of its columns, and most of the time of building them goes into
fetching that memory. So the text is cut between events, and each piece is decoded and turned into columns while the
next one is unpacked in a thread. A piece that was cut in a wrong place is no JSON: nothing can be misread.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Final, TypeVar

import msgspec

from lightning_perf.decode.events import File, decode_events, decode_file, has_decimals_since_1970
from lightning_perf.decode.source import GZIP, GZIP_MAGIC, check_size, tiny_members

PIECE_BYTES: Final = 2**20
"""Of text: the objects of one piece fit into a processor's cache."""

BLOCK_BYTES: Final = 2**22
"""Of text, unpacked at once: a thread that asked for the interpreter more often would mostly wait for it."""

_FIRST_EVENT: Final = re.compile(rb'^\s*\{.*?"traceEvents"\s*:\s*\[(\s*)(?=\{)', re.DOTALL)
_BLOCKS_AHEAD: Final = 2
_WITHOUT_END: Final = 8
"""Pieces in which an event must end: none is larger."""

T = TypeVar("T")


class NotInPiecesError(Exception):
    """The file is damaged, or laid out in another way than torch does: it has to be read as a whole."""


def decode_pieces(path: str, *, exact: bool, progress: Callable[[float], None] | None = None) -> Iterator[File]:
    """The events of a file in their order, some at a time; the first and the last hold the metadata.

    Args:
        path: the file.
        exact: whether starts that are no integers stay text (as bytes), with every digit. Else they are floats.
        progress: called now and then with the share of the file, as it is stored, that was unpacked: 0 to 1. In
            another thread.

    Raises:
        NotInPiecesError: at any time. What came before is of no use then.
        TraceError: the file was made to fill a memory.
    """
    try:
        yield from _decoded(_ahead(_unpacked(path, progress)), exact=exact)
    except (OSError, ValueError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise NotInPiecesError from error


def _decoded(blocks: Iterator[bytes], *, exact: bool) -> Iterator[File]:
    start, first, between = _start(blocks)
    exact = exact or has_decimals_since_1970(start)
    yield _object(start[:first] + b"]}", exact=exact)
    begun: list[bytes] = []
    for block in chain([start[first:]], blocks):
        at = 0
        while at < len(block):
            stop = min(at + PIECE_BYTES, len(block))
            end = block.rfind(between, at, stop) + 1
            if end:
                # One copy of the text, and no other.
                piece = b"".join((b"[", *begun, memoryview(block)[at:end], b"]"))
                yield File(events=decode_events(piece, exact=exact))
                begun, at = [], end + 1
            elif len(begun) == _WITHOUT_END:
                raise NotInPiecesError
            else:
                begun.append(block[at:stop])
                at = stop
    yield _object(b"".join((b'{"traceEvents": [', *begun)), exact=exact)


def _start(blocks: Iterator[bytes]) -> tuple[bytes, int, bytes]:
    """The text up to the end of the first event at least, where that one begins, and what ends an event."""
    text = b""
    for block in islice(blocks, _WITHOUT_END):
        text += block
        first = _FIRST_EVENT.match(text)
        if first is not None:
            ends = (b"}," + first[1] + b"{", b"}, {", b"},{")
            between = next((end for end in ends if text.find(end, first.end()) >= 0), None)
            if between is not None:
                return text, first.end(), between
    raise NotInPiecesError


def _object(text: bytes, *, exact: bool) -> File:
    file = decode_file(text, exact=exact)
    if isinstance(file, list) or file.events is None:
        raise NotInPiecesError
    return file


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, made by a thread that is ahead of their use."""
    with ThreadPoolExecutor(1) as pool:
        coming = deque(pool.submit(next, items, None) for _ in range(_BLOCKS_AHEAD))
        while (item := coming.popleft().result()) is not None:
            coming.append(pool.submit(next, items, None))
            yield item


def _unpacked(path: str, progress: Callable[[float], None] | None) -> Iterator[bytes]:
    """The file's text in blocks, the first a small one."""
    with open(path, "rb") as file:  # noqa: PTH123 - a path with a NUL must fail here, as ValueError
        size = os.fstat(file.fileno()).st_size

        def tell(left: int = 0) -> None:
            if progress is not None and size:
                progress(min(1.0, (file.tell() - left) / size))

        def read() -> bytes:
            # No more than there was at first: the file may be growing.
            return file.read(min(BLOCK_BYTES, max(0, size - file.tell())))

        packed = read()
        if not packed.startswith(GZIP_MAGIC):
            while packed:
                tell()
                yield packed
                packed = read()
            return
        unpacker, members, text_bytes = zlib.decompressobj(wbits=GZIP), 1, 0
        block_bytes = PIECE_BYTES
        while packed:
            block = unpacker.decompress(packed, block_bytes)
            block_bytes = BLOCK_BYTES
            packed = unpacker.unconsumed_tail or unpacker.unused_data
            tell(len(packed))
            text_bytes += len(block)
            check_size(path, file.tell() - len(packed), text_bytes)
            yield block
            if unpacker.eof and packed:  # a gzip file may have several members
                unpacker, members = zlib.decompressobj(wbits=GZIP), members + 1
                if tiny_members(members, text_bytes):
                    raise NotInPiecesError
            packed = packed or read()
        yield unpacker.flush()
        if not unpacker.eof:
            raise NotInPiecesError
