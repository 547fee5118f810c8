"""A trace file's bytes: read in one go and unpacked, whatever its name says."""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
from typing import Final

from lightning_perf.decode.quality import Notes
from lightning_perf.errors import TraceError

EXPECTED: Final = "expected a torch.profiler trace (.json or .json.gz)"

GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP: Final = 16 + zlib.MAX_WBITS
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


def read_source(path: str, notes: Notes) -> bytes | bytearray:
    """All of the file's JSON text, as bytes.

    Raises:
        TraceError: there is no such file, it cannot be read, or it is empty.
    """
    try:
        packed = Path(path).read_bytes()
    except IsADirectoryError as error:
        raise TraceError(f"{path}: is a folder; {EXPECTED}; name a file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path}: cannot be read ({reason}); {EXPECTED}; check the path") from error
    content = _as_utf8(_unpacked(packed, notes) if packed.startswith(GZIP_MAGIC) else packed)
    if not content[:_BLANK_BYTES].strip(_BLANK) and not content.strip(_BLANK):
        raise TraceError(f"{path}: is empty; {EXPECTED}; the run may have ended before it was written, record again")
    return content


def other_format(content: bytes | bytearray) -> str | None:
    """What a file seems to be that is no trace, by how it begins."""
    if content[:_BLANK_BYTES].lstrip().startswith(b"<"):
        return "HTML or XML"
    return next((what for magic, what in _OTHER_FORMATS if content.startswith(magic)), None)


def _unpacked(content: bytes, notes: Notes) -> bytearray:
    """What a gzip file holds, also of one that is cut short or damaged.

    In pieces: what came before a damage is kept, and no second copy of the whole is ever made.
    """
    unpacked = bytearray()
    unpacker = zlib.decompressobj(wbits=GZIP)
    for offset in range(0, len(content), _PIECE_BYTES):
        piece = content[offset : offset + _PIECE_BYTES]
        while piece:
            try:
                unpacked += unpacker.decompress(piece)
            except zlib.error:
                notes.add("corrupt_gzip")
                return unpacked
            piece = unpacker.unused_data
            if unpacker.eof and piece:  # a gzip file may have several members
                unpacker = zlib.decompressobj(wbits=GZIP)
    if not unpacker.eof:
        notes.add("truncated_gzip")
    return unpacked


def _as_utf8(content: bytes | bytearray) -> bytes | bytearray:
    """Without a byte order mark; UTF-16 (a redirected PowerShell) converted."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode()
    if content.startswith(BOM_UTF8):
        return content[len(BOM_UTF8) :]
    return content
