"""Numbers -> text for people: few digits, always a unit."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "-"

_TIMES: Final = ((1.0, "µs"), (1e3, "ms"), (1e6, "s"))
_FLOPS: Final = ((1.0, "FLOP/s"), (1e6, "MFLOP/s"), (1e9, "GFLOP/s"), (1e12, "TFLOP/s"))
_SIZES: Final = ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"))


def number(value: float) -> str:
    """Three significant digits or one decimal, whichever shows more: 0.0123, 1.23, 12.3, 177.6, 1,234.5."""
    magnitude = abs(value)
    if magnitude >= 10:
        return f"{value:,.1f}"
    if magnitude >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3g}"


def duration(microseconds: float | None) -> str:
    """A time with its unit: 12.3 µs, 177.6 ms, 1.23 s."""
    if microseconds is None:
        return UNKNOWN
    factor, unit = _scale(_TIMES, abs(microseconds))
    return f"{number(microseconds / factor)} {unit}"


def durations(microseconds: list[float]) -> tuple[list[str], str]:
    """Times of one table, all in the unit that fits the largest: the numbers, and the unit."""
    factor, unit = _scale(_TIMES, max(map(abs, microseconds), default=0.0))
    return [number(value / factor) for value in microseconds], unit


def size(size_bytes: float | None) -> str:
    """A size with its unit: 512 B, 1.21 GiB."""
    if size_bytes is None:
        return UNKNOWN
    factor, unit = _scale(_SIZES, abs(size_bytes))
    return f"{size_bytes:.0f} B" if unit == "B" else f"{number(size_bytes / factor)} {unit}"


def flops_per_s(value: float | None) -> str:
    """Floating point operations per second with their unit: 850 MFLOP/s, 23.1 TFLOP/s."""
    if value is None:
        return UNKNOWN
    factor, unit = _scale(_FLOPS, abs(value))
    return f"{number(value / factor)} {unit}"


def percent(ratio: float | None) -> str:
    """A ratio as a whole percentage: 43 %; below 1 % "<1 %" unless it is nothing."""
    if ratio is None:
        return UNKNOWN
    return "<1 %" if 0 < ratio < 0.005 else f"{100 * ratio:.0f} %"


def count(value: int) -> str:
    """A count with thousands separated: 1,200."""
    return f"{value:,}"


def _scale(units: tuple[tuple[float, str], ...], magnitude: float) -> tuple[float, str]:
    best = units[0]
    for unit in units:
        if magnitude >= unit[0]:
            best = unit
    return best
