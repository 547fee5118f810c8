"""What can be wrong with a trace file, in words. Codes are stable: other tools compare them."""

from __future__ import annotations

from collections import Counter
from typing import Final, SupportsInt

from lightning_perf.decode.trace import QualityNote

_MESSAGES: Final[dict[str, str]] = {
    "truncated_gzip": "The compressed file ends early; what it holds up to there was read.",
    "corrupt_gzip": "The compressed file is damaged; what could be decompressed was read.",
    "too_large": "The file is damaged and too large to be read at once; the first 2 GiB of its text were read.",
    "truncated_json": "The JSON ends early; the events before its end were read.",
    "unreadable_events": "{count} events are not JSON and could not be repaired; they were left out.",
    "repaired_text": "{count} events held unescaped quotes, backslashes or control characters; they were repaired.",
    "unexpected_types": "{count} events held fields of another type than torch writes; those were taken as missing.",
    "not_a_number": "{count} numbers read NaN, Infinity or N/A; they were taken as missing.",
    "invalid_utf8": "{count} events held bytes that are not UTF-8; those were replaced.",
    "stray_bytes": "{count} bytes belong to no event; they were skipped.",
    "no_event_list": "The file has no list named traceEvents; the events in it were read nevertheless.",
    "unreadable_metadata": "The file's metadata is damaged; what could be read of it was.",
    "bare_list": "The file is a bare list of events; it has no metadata (devices, rank, time base).",
    "negative_duration": "{count} events had a negative duration and were left out.",
    "missing_duration": "{count} complete events had no duration and were left out.",
    "missing_timestamp": "{count} events had no readable start and were left out.",
    "text_timestamps": "{count} events wrote their times as text; they were read as numbers.",
    "zero_timestamps": "{count} events started at time 0, far from all others, and were left out.",
    "out_of_range": "{count} events had times that are too large, or far from all others, and were left out.",
    "unknown_device": "{count} device operations do not name their device; they are listed under device -1.",
    "no_device_operations": "The trace holds no device operations; device figures are absent.",
}


class Notes:
    """Counts what was wrong while a file is read."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, code: str, count: SupportsInt = 1) -> None:
        """Count a problem; a count of 0 changes nothing."""
        if int(count):
            self._counts[code] += int(count)

    def __contains__(self, code: str) -> bool:
        return code in self._counts

    def result(self) -> tuple[QualityNote, ...]:
        """One note per code, in the order of the table."""
        return tuple(
            QualityNote(code=code, message=message.format(count=self._counts[code]), count=self._counts[code])
            for code, message in _MESSAGES.items()
            if code in self._counts
        )
