"""A trace file's bytes: read in one go and unpacked, whatever its name says."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from lightning_perf.decode.quality import Notes
from lightning_perf.errors import TraceError

EXPECTED: Final = "expected a torch.profiler trace (.json or .json.gz)"

_GZIP_MAGIC: Final = b"\x1f\x8b"
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


def read_source(path: str, notes: Notes) -> bytes:
    """All of the file's JSON text, as bytes.

    Raises:
        TraceError: there is no such file, it cannot be read, or it is empty or of another format.
    """
    try:
        content = Path(path).read_bytes()
    except IsADirectoryError as error:
        raise TraceError(f"{path}: is a folder; {EXPECTED}; name a file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path}: cannot be read ({reason}); {EXPECTED}; check the path") from error
    if content.startswith(_GZIP_MAGIC):
        content = _unpacked(content, notes)
    content = _as_utf8(content)
    if not content.strip(b"\0 \t\r\n"):
        raise TraceError(f"{path}: is empty; {EXPECTED}; the run may have ended before it was written, record again")
    for magic, what in _OTHER_FORMATS:
        if content.startswith(magic):
            raise TraceError(f"{path}: is {what}; {EXPECTED}; export it with prof.export_chrome_trace")
    return content


def _unpacked(content: bytes, notes: Notes) -> bytes:
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error):  # BadGzipFile is an OSError
        return _salvaged(content, notes)


def _salvaged(content: bytes, notes: Notes) -> bytes:
    """What can be decompressed of a gzip file that is cut short or damaged."""
    parts: list[bytes] = []
    rest = memoryview(content)
    while bytes(rest[:2]) == _GZIP_MAGIC:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            # In pieces, so that what came before a damaged block is kept.
            for offset in range(0, len(rest), 16384):
                parts.append(unpacker.decompress(rest[offset : offset + 16384]))
                if unpacker.eof:
                    break
        except zlib.error:
            notes.add("corrupt_gzip")
            break
        if not unpacker.eof:
            notes.add("truncated_gzip")
            break
        rest = memoryview(unpacker.unused_data + bytes(rest[offset + 16384 :]))
    else:
        if rest.nbytes:
            notes.add("stray_bytes", rest.nbytes)
    return b"".join(parts)


def _as_utf8(content: bytes) -> bytes:
    """Without a byte order mark; UTF-16 (a redirected PowerShell) converted."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace").encode()
    return content.removeprefix(b"\xef\xbb\xbf")
