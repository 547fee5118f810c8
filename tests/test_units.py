"""Numbers as people read them."""

from __future__ import annotations

import pytest

from lightning_perf import units


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "-"),
        (0.0, "0.00 µs"),
        (0.1234, "0.123 µs"),
        (1.5, "1.50 µs"),
        (999.0, "999.0 µs"),
        (1000.0, "1.00 ms"),
        (177_600.0, "177.6 ms"),
        (1_230_000.0, "1.23 s"),
        (4_321_000_000.0, "4,321.0 s"),
    ],
)
def test_duration(microseconds: float | None, text: str) -> None:
    assert units.duration(microseconds) == text


def test_times_of_one_table_share_a_unit() -> None:
    assert units.durations([177_600.0, 900.0]) == (["177.6", "0.9"], "ms")
    assert units.durations([]) == ([], "µs")


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (512, "512 B"), (1536, "1.50 KiB"), (1_299_227_607, "1.21 GiB"), (79 << 30, "79.0 GiB")],
)
def test_size(size: float | None, text: str) -> None:
    assert units.size(size) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "-"), (0.0, "0 %"), (0.004, "<1 %"), (0.005, "0 %"), (0.43, "43 %"), (1.0, "100 %")]
)
def test_percent(ratio: float | None, text: str) -> None:
    assert units.percent(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00 FLOP/s"),
        (8.5e8, "850.0 MFLOP/s"),
        (63e9, "63.0 GFLOP/s"),
        (2.345e15, "2,345.0 TFLOP/s"),
    ],
)
def test_flops_per_s(value: float | None, text: str) -> None:
    assert units.flops_per_s(value) == text
