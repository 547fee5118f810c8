"""Timestamps as written (microseconds, in three generations) to integer nanoseconds, exactly.

1. Integer microseconds since 1970 (torch until 2023): below 2**53, so exact even as a float64.
2. Microseconds since 1970 with three decimals: more digits than a float64 holds. These come as the text itself.
3. Microseconds with three decimals since ``baseTimeNanoseconds``, which is at most 7,889,238 s ago (libkineto's
   ChromeTraceBaseTime), so below 2**43: a float64 is off by less than half a nanosecond, and rounding restores it,
   if only the fraction is scaled (the scaled whole would be rounded twice).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Final, cast

import numpy as np

from lightning_perf.decode.quality import Notes
from lightning_perf.decode.trace import Int64s

EXACT_FLOAT_US: Final = 2.0**43
"""Below this many microseconds, float64 microseconds times 1000 round to the right nanosecond."""

LARGEST_US: Final = 4 * 10**15
"""The year 2096. A start and a duration below it, in nanoseconds, cannot overflow 64 bits in any difference here."""

LONGEST_US: Final = 2**43 - 1
"""Durations are below a hundred days, so that a float64 holds them exactly."""

LONGEST_NS: Final = 2**41 * 1000
"""25 days. No recording lasts as long: further apart, times are damaged, and as float microseconds inexact."""

LARGEST_SUM_NS: Final = 2**53
"""All durations of a trace together, so that float64 sums of them are exact: 2500 hours."""

EPOCH_US: Final = 10**15
"""Times above this (the year 2001) count from 1970, smaller ones from the trace's base."""

MISSING_NS: Final = int(np.iinfo(np.int64).min)
"""Stands for a time that is missing or not a number."""

OUT_OF_RANGE_NS: Final = MISSING_NS + 1
"""Stands for a time that is too large. All times that can be used are above it."""


_CONTEXT: Final = Context(prec=60)
"""Not the thread's own context: that is the user's."""


class InexactTimesError(Exception):
    """Times had more digits than the float64 they were decoded to can hold: decode them again, as text."""


def nanoseconds(times_us: Sequence[object], largest_us: int, notes: Notes) -> Int64s:
    """Integer nanoseconds of times in microseconds, each rounded once.

    Args:
        times_us: int, float, str (a text in the file) or bytes (a number's text), whatever the file had.
        largest_us: beyond this, in either direction, a time is :data:`OUT_OF_RANGE_NS`.
        notes: takes the number of times that were text.

    Returns:
        One value per time, or :data:`MISSING_NS` or :data:`OUT_OF_RANGE_NS`.

    Raises:
        InexactTimesError: a float is too large to be exact.
    """
    kinds = set(map(type, times_us))
    found = None
    if kinds == {bytes}:
        found = _from_digits(cast("Sequence[bytes]", times_us), largest_us)
    if found is None and kinds <= {int, float, bytes}:
        found = _from_numbers(cast("Sequence[float | bytes]", times_us), largest_us, whole=kinds == {int})
    if found is None:
        found = np.array([_one_nanoseconds(time, largest_us, notes) for time in times_us], dtype=np.int64)
    return found


def _from_numbers(times_us: Sequence[float | bytes], largest_us: int, *, whole: bool) -> Int64s | None:
    """Nanoseconds of numbers that float64 holds exactly; None for any others."""
    try:
        values = np.array(times_us, dtype=np.float64)
    except OverflowError:  # an integer of hundreds of digits
        return None
    largest = np.abs(values).max(initial=0.0)
    if largest < EXACT_FLOAT_US:
        floors = np.floor(values)
        exact: Int64s = floors.astype(np.int64) * 1000 + np.rint((values - floors) * 1000.0).astype(np.int64)
        return exact
    return values.astype(np.int64) * 1000 if whole and largest <= largest_us else None


def _from_digits(texts: Sequence[bytes], largest_us: int) -> Int64s | None:
    """Nanoseconds of numbers that all have as many digits, three of them decimals; None for any others.

    All starts since 1970 do, from the year 2001 to 2286: one matrix of digits instead of a Decimal for each.
    """
    width = len(texts[0])
    if not 5 <= width <= 20 or set(map(len, texts)) != {width}:
        return None
    characters = np.frombuffer(b"".join(texts), dtype=np.uint8).reshape(len(texts), width)
    if not (characters[:, -4] == ord(".")).all():
        return None
    values = np.zeros(len(texts), dtype=np.uint64)  # 19 digits fit
    for place in [*range(width - 4), *range(width - 3, width)]:
        digits = characters[:, place] - np.uint8(ord("0"))
        if digits.max() > 9:  # a minus sign, an exponent
            return None
        values = values * np.uint64(10) + digits
    return values.astype(np.int64) if values.max() <= largest_us * 1000 else None


def _one_nanoseconds(time_us: object, largest_us: int, notes: Notes) -> int:
    if isinstance(time_us, bool) or not isinstance(time_us, int | float | str | bytes):
        return MISSING_NS
    if isinstance(time_us, float) and EXACT_FLOAT_US <= abs(time_us) <= largest_us:
        raise InexactTimesError
    try:
        exact = Decimal(time_us.decode() if isinstance(time_us, bytes) else time_us)
    except InvalidOperation:
        return MISSING_NS
    if isinstance(time_us, str):
        notes.add("text_timestamps")
    if exact.is_nan():
        return MISSING_NS
    if exact.copy_abs() > largest_us:
        return OUT_OF_RANGE_NS
    return round(_CONTEXT.multiply(exact, Decimal(1000)))
