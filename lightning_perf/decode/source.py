"""A trace file's bytes: read in one go and unpacked, whatever its name says, up to a limit."""

from __future__ import annotations

import os
import stat
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
from typing import Final

from lightning_perf.decode.quality import Notes
from lightning_perf.errors import TraceError

EXPECTED: Final = "expected a torch.profiler trace (.json or .json.gz)"

GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP: Final = 16 + zlib.MAX_WBITS
LARGEST_BYTES: Final = 2**31
"""Of text that is held at once. Sound files of any size are read in pieces instead."""

LARGEST_RATIO: Final = 200
"""Text is at most as many times larger than the packed file. A trace is 5 to 60 times larger; gzip can do 1032."""

RATIO_FROM_BYTES: Final = 2**26
"""Less text than this may be packed as well as gzip can."""

SMALLEST_MEMBER_BYTES: Final = 64
"""Of text, on average, where a gzip file has more than a thousand members."""
_FEW_MEMBERS: Final = 1000

_BLANK: Final = b"\0 \t\r\n"
_BLANK_BYTES: Final = 64
_PIECE_BYTES: Final = 2**18
_OTHER_FORMATS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
)


def check_file(path: str) -> None:
    """See that a path is that of a file: to open a pipe would wait for its other end, and a device may have no end.

    Raises:
        TraceError: it is not.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _not_readable(path, error) from error
    if stat.S_ISDIR(mode):
        raise TraceError(f"{path}: is a folder; {EXPECTED}; name a file in it")
    if not stat.S_ISREG(mode):
        raise TraceError(f"{path}: is a pipe or a device, not a file; {EXPECTED}; write its content to a file first")


def check_size(path: str, packed_bytes: int, text_bytes: int) -> None:
    """See that a packed file is none that was made to fill a memory.

    Args:
        path: the file.
        packed_bytes: how much of it was unpacked.
        text_bytes: to how much text.

    Raises:
        TraceError: it is.
    """
    if text_bytes > max(RATIO_FROM_BYTES, LARGEST_RATIO * packed_bytes):
        raise TraceError(
            f"{path}: unpacks to more than {LARGEST_RATIO} times its size, as no trace does; {EXPECTED}; "
            "if it is one, unpack it and read the .json"
        )


def tiny_members(members: int, text_bytes: int) -> bool:
    """Whether a gzip file is cut into so many members that reading them would take for ever."""
    return members > _FEW_MEMBERS and text_bytes < members * SMALLEST_MEMBER_BYTES


def _not_readable(path: str, error: OSError | ValueError) -> TraceError:
    reason = getattr(error, "strerror", None) or str(error)
    return TraceError(f"{path}: cannot be read ({reason}); {EXPECTED}; check the path")


def read_source(path: str, notes: Notes) -> bytes | bytearray:
    """The file's JSON text, as bytes: all of it, or the first :data:`LARGEST_BYTES`.

    Raises:
        TraceError: there is no such file, it cannot be read, it is empty, or it was made to fill a memory.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path with a NUL must fail here, as ValueError
            # No more than there is now: the file may be growing.
            packed = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_BYTES + 1))
    except (OSError, ValueError) as error:
        raise _not_readable(path, error) from error
    content = _as_utf8(_unpacked(path, packed, notes) if packed.startswith(GZIP_MAGIC) else packed)
    if len(content) > LARGEST_BYTES:
        notes.add("too_large")
        content = content[:LARGEST_BYTES]
    if not content[:_BLANK_BYTES].strip(_BLANK) and not content.strip(_BLANK):
        raise TraceError(f"{path}: is empty; {EXPECTED}; the run may have ended before it was written, record again")
    return content


def other_format(content: bytes | bytearray) -> str | None:
    """What a file seems to be that is no trace, by how it begins."""
    if content[:_BLANK_BYTES].lstrip().startswith(b"<"):
        return "HTML or XML"
    return next((what for magic, what in _OTHER_FORMATS if content.startswith(magic)), None)


def _unpacked(path: str, content: bytes, notes: Notes) -> bytes | bytearray:
    """What a gzip file holds, also of one that is cut short or damaged.

    In pieces: what came before a damage is kept, and no second copy of the whole is ever made.
    """
    unpacked, members = bytearray(), 1
    unpacker = zlib.decompressobj(wbits=GZIP)
    for offset in range(0, len(content), _PIECE_BYTES):
        piece = content[offset : offset + _PIECE_BYTES]
        while piece:
            before = unpacker.copy()
            try:
                unpacked += unpacker.decompress(piece)
            except zlib.error:
                _unpack_to_damage(before, piece, unpacked)
                if not unpacked:  # a text that only begins as a gzip file does
                    return content
                notes.add("corrupt_gzip")
                return unpacked
            piece = unpacker.unused_data
            if unpacker.eof and piece:  # a gzip file may have several members
                unpacker, members = zlib.decompressobj(wbits=GZIP), members + 1
                if tiny_members(members, len(unpacked)):
                    notes.add("corrupt_gzip")
                    return unpacked
        check_size(path, offset + _PIECE_BYTES, len(unpacked))
        if len(unpacked) > LARGEST_BYTES:
            return unpacked
    if not unpacker.eof:
        notes.add("truncated_gzip")
    return unpacked


def _unpack_to_damage(unpacker: zlib._Decompress, piece: bytes, unpacked: bytearray) -> None:
    """Add what a damaged piece holds before its damage: with the error, zlib forgets what it had unpacked."""
    for at in range(len(piece)):
        try:
            unpacked += unpacker.decompress(piece[at : at + 1])
        except zlib.error:
            return


def _as_utf8(content: bytes | bytearray) -> bytes | bytearray:
    """Without a byte order mark; UTF-16 (a redirected PowerShell) converted."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode()
    if content.startswith(BOM_UTF8):
        return content[len(BOM_UTF8) :]
    return content
