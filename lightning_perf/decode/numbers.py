"""Arguments of events, which can be anything, as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_perf.decode.events import NO_NUMBER
from lightning_perf.decode.trace import Floats, Int32s, Int64s

LARGEST_INT32: Final = 2**31 - 1
_LARGEST_INT: Final = 2**63 - 1
_LARGEST_BYTES: Final = 2**43
"""8 TiB: no device or host has as much, and a million times as much can be summed in 64 bits."""


def integers(values: Sequence[object]) -> Int64s:
    """Values as int64; :data:`NO_NUMBER` for what is not an integer of 64 bits."""
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    return np.array([integer(value) for value in values], dtype=np.int64)


def integer(value: object) -> int:
    """A value as integer, also one that is text; :data:`NO_NUMBER` for what is none of 64 bits."""
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        value = int(value) if len(value) < 20 else NO_NUMBER
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not abs(value) <= _LARGEST_INT:
        return NO_NUMBER
    return value


def sizes(values: Int64s) -> Int64s:
    """Bytes; :data:`NO_NUMBER` for what no memory holds."""
    return np.where((values >= -_LARGEST_BYTES) & (values <= _LARGEST_BYTES), values, NO_NUMBER)


def floats(values: Sequence[object]) -> Floats:
    """Values as float64; :data:`NO_NUMBER` for what is not a finite number that is at least 0."""
    if set(map(type, values)) <= {int, float}:
        numbers = np.array(values, dtype=np.float64)
    else:
        numbers = np.fromiter(map(_float, values), dtype=np.float64, count=len(values))
    return np.where(np.isfinite(numbers) & (numbers >= 0), numbers, NO_NUMBER)


def _float(value: object) -> float:
    """A number, also one that kept its text."""
    if isinstance(value, bool) or not isinstance(value, float | int | bytes | str):
        return NO_NUMBER
    try:
        return float(value)
    except (ValueError, OverflowError):
        return NO_NUMBER


def small(values: Int64s) -> Int32s:
    """Values as int32; :data:`NO_NUMBER` for those that are larger."""
    inside = (values >= -LARGEST_INT32 - 1) & (values <= LARGEST_INT32)
    return np.where(inside, values, NO_NUMBER).astype(np.int32)
