"""Kernels and copies of small traces, tables written out beside them. Times in nanoseconds."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import Copy, Kernel
from lightning_perf.measure.kernels import measure_copies, measure_kernels
from lightning_perf.measure.launches import launch_rows
from lightning_perf.measure.tally import OTHERS
from tests.traces import TraceBuilder


def kernels(trace, **options):
    options = {"busy_ns": 1000, "limit": None, **options}
    return {row.name: row for row in measure_kernels(trace, launch_rows(trace), **options)}


def kernel(name: str, calls: int, total: float, **figures) -> Kernel:
    """A row of kernels of one duration whose launches are not known, unless told otherwise."""
    defaults = {
        "mean_us": total / calls,
        "min_us": total / calls,
        "max_us": total / calls,
        "busy_ratio": None,
        "launched": 0,
        "launch_latency_us": None,
        "negative_latencies": 0,
        "shorter_than_launch": 0,
        "graph_calls": 0,
        "queue_depth": None,
    }
    return Kernel(name=name, calls=calls, total_us=total, **{**defaults, **figures})


def test_times_and_shares(tmp_path):
    trace = TraceBuilder().kernel(0, 300, name="b").kernel(400, 500, name="a").kernel(600, 601, name="a")
    trace.kernel(0, 299, name="c", device=1).kernel(0, 50, name="copy", cat="gpu_memcpy")
    assert list(kernels(trace.trace(tmp_path)).values()) == [
        kernel("b", 1, 0.3, busy_ratio=0.3),
        kernel("c", 1, 0.299, busy_ratio=0.299),
        kernel("a", 2, 0.101, mean_us=0.0505, min_us=0.001, max_us=0.1, busy_ratio=0.101),
    ]


def test_the_least_are_summed(tmp_path):
    trace = TraceBuilder()
    for number, duration in enumerate((30, 10, 20, 10)):
        trace.kernel(100 * number, 100 * number + duration, name=f"k{number}")
    rows = kernels(trace.trace(tmp_path), limit=1, busy_ns=0)
    assert list(rows.values()) == [
        kernel("k0", 1, 0.03),
        kernel(OTHERS, 3, 0.04, mean_us=0.04 / 3, min_us=0.01, max_us=0.02),
    ]
    assert OTHERS not in kernels(trace.trace(tmp_path), limit=4)


@pytest.mark.parametrize(
    ("start", "end", "latency", "negative", "shorter"),
    [
        (1000, 1500, 0.8, 0, 0),  # 800 ns after the call returned
        (200, 300, 0.0, 0, 0),  # at its end; as long as the call
        (150, 249, 0.0, 0, 1),  # while the call still runs: nothing is wrong
        (100, 900, 0.0, 0, 0),  # as it begins
        (99, 900, 0.0, 1, 0),  # before it begins: clocks disagree
    ],
)
def test_launch_latency(tmp_path, start, end, latency, negative, shorter):
    trace = TraceBuilder().launch(3, 100, 200).kernel(start, end, correlation=3, name="k").kernel(0, 1, name="other")
    row = kernels(trace.trace(tmp_path))["k"]
    assert (row.launched, row.launch_latency_us) == (1, latency)
    assert (row.negative_latencies, row.shorter_than_launch) == (negative, shorter)


def test_latency_is_the_mean_over_kernels_with_a_launch(tmp_path):
    trace = TraceBuilder().launch(1, 0, 10).launch(2, 100, 110, cat="cuda_driver")
    trace.kernel(20, 30, correlation=1).kernel(140, 150, correlation=2).kernel(500, 510, correlation=77)
    row = kernels(trace.trace(tmp_path))["gemm"]
    assert (row.calls, row.launched, row.launch_latency_us) == (3, 2, (10 + 30) / 2 / 1000)


def test_one_graph_launch_many_kernels(tmp_path):
    trace = TraceBuilder().range("cudaGraphLaunch", 0, 10, cat="cuda_runtime", correlation=5).launch(6, 20, 30)
    trace.kernel(100, 110, correlation=5).kernel(120, 130, correlation=5).kernel(140, 150, correlation=6)
    row = kernels(trace.trace(tmp_path))["gemm"]
    assert (row.calls, row.launched, row.graph_calls) == (3, 3, 2)


def test_queue_depth(tmp_path):
    """Three launched while the first runs: 0, then the first runs and none waits, then one waits, then two."""
    trace = TraceBuilder()
    for correlation, launch, start, end in ((1, 0, 10, 100), (2, 20, 100, 110), (3, 30, 110, 120), (4, 40, 120, 130)):
        trace.launch(correlation, launch, launch + 5).kernel(
            start, end, correlation=correlation, name=f"k{correlation}"
        )
    trace.launch(5, 50, 55).kernel(60, 65, correlation=5, name="k5", stream=8)  # another stream: nothing waits there
    rows = kernels(trace.trace(tmp_path))
    assert {name: row.queue_depth for name, row in rows.items()} == {"k1": 0, "k2": 0, "k3": 1, "k4": 2, "k5": 0}


def test_no_kernels(tmp_path):
    trace = TraceBuilder().op("a", 0, 10).trace(tmp_path)
    assert kernels(trace) == {}
    assert measure_copies(trace) == []


def test_copies_by_kind(tmp_path):
    trace = TraceBuilder()
    copies = (
        ("Memcpy HtoD (Pinned -> Device)", 1000, 50_000),
        ("Memcpy HtoD (Pinned -> Device)", 1000, 30_000),
        ("Memcpy HtoD (Pageable -> Device)", 4000, 8_000),
        ("Memcpy DtoH (Device -> Pinned)", 10, 1),
        ("Memcpy DtoD (Device -> Device)", 500, None),
        ("Memcpy DtoD (Device -> Device)", 250, 1_000),
        ("Memcpy HtoD (Host -> Device)", 100, None),  # AMD does not tell
        ("dma_request", 5, None),
    )
    for number, (name, duration, size) in enumerate(copies):
        args = {} if size is None else {"bytes": size}
        trace.kernel(10_000 * number, 10_000 * number + duration, name=name, cat="gpu_memcpy", **args)
    trace.kernel(200_000, 200_020, name="Memset (Device)", cat="gpu_memset", bytes=400)
    assert measure_copies(trace.trace(tmp_path)) == [
        Copy(kind="HtoD", memory="pageable", calls=1, total_us=4.0, bytes=8_000, gb_per_s=2.0),
        Copy(kind="HtoD", memory="pinned", calls=2, total_us=2.0, bytes=80_000, gb_per_s=40.0),
        Copy(kind="DtoD", memory=None, calls=2, total_us=0.75, bytes=1_000, gb_per_s=4.0),
        Copy(kind="HtoD", memory=None, calls=1, total_us=0.1, bytes=None, gb_per_s=None),
        Copy(kind="Memset", memory=None, calls=1, total_us=0.02, bytes=400, gb_per_s=20.0),
        Copy(kind="DtoH", memory="pinned", calls=1, total_us=0.01, bytes=1, gb_per_s=0.1),
        Copy(kind="dma_request", memory=None, calls=1, total_us=0.005, bytes=None, gb_per_s=None),
    ]
