"""Collectives of small traces, tables written out beside them. Times in nanoseconds."""

from __future__ import annotations

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.collectives import measure_collectives
from lightning_perf.measure.launches import launch_rows
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import ns
from tests.traces import TraceBuilder

ALL_REDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "Float",
    "Group size": 8,
    "Process Group Name": "0",
}
KNOWN = ("allreduce", "Float", 1000, 1000, "0", 8)
UNKNOWN = (None,) * 6


def collectives(trace):
    return measure_collectives(trace, launch_rows(trace))


def arguments(row):
    return (row.collective, row.dtype, row.in_elements, row.out_elements, row.group, row.group_size)


def times(row):
    return (row.calls, ns(row.total_us), ns(row.exposed_us), ns(row.overlapped_us))


@pytest.mark.parametrize(
    ("others", "overlapped"),
    [
        ([], 0),
        ([(0, 50), (350, 400)], 0),
        ([(100, 300)], 200),
        ([(0, 1000)], 200),
        ([(90, 110), (150, 160), (155, 170), (290, 350)], 10 + 20 + 10),
        ([(0, 100), (300, 400)], 0),  # they touch
    ],
)
def test_exposed_and_overlapped(tmp_path, others, overlapped):
    trace = TraceBuilder().kernel(100, 300, name="ncclKernel_AllReduce", stream=9)
    for start, end in others:
        trace.kernel(start, end, name="gemm")
    trace.kernel(0, 1000, name="gemm", device=1)  # another device hides nothing
    decoded = trace.trace(tmp_path)
    (row,) = collectives(decoded)
    assert arguments(row) == UNKNOWN
    assert times(row) == (1, 200, 200 - overlapped, overlapped)
    assert ns(measure_trace(decoded).devices[0].exposed_communication_us) == 200 - overlapped


def test_two_at_once_are_each_counted_whole(tmp_path):
    """Both are exposed for all their time; together that is more than the time in which any ran."""
    trace = TraceBuilder().kernel(0, 100, name="ncclA", stream=1).kernel(50, 200, name="rcclB", stream=2)
    decoded = trace.trace(tmp_path)
    assert [(row.name, *times(row)) for row in collectives(decoded)] == [
        ("rcclB", 1, 150, 150, 0),
        ("ncclA", 1, 100, 100, 0),
    ]
    assert ns(measure_trace(decoded).devices[0].exposed_communication_us) == 200


def test_arguments_of_the_kernel(tmp_path):
    trace = TraceBuilder()
    trace.kernel(0, 1000, name="ncclX", **ALL_REDUCE).kernel(2000, 3000, name="ncclX", **ALL_REDUCE)
    trace.kernel(4000, 4500, name="ncclX", **{**ALL_REDUCE, "dtype": "Int7"})
    trace.kernel(5000, 5100, name="ncclX", **{**ALL_REDUCE, "Out msg nelems": 8000, "dtype": "BFloat16"})
    rows = collectives(trace.trace(tmp_path))
    assert [(row.dtype, row.out_elements, row.calls, row.bytes, row.gb_per_s) for row in rows] == [
        ("Float", 1000, 2, 8_000, 4.0),
        ("Int7", 1000, 1, None, None),  # a type whose size is not known
        ("BFloat16", 8000, 1, 16_000, 160.0),
    ]
    assert arguments(rows[0]) == KNOWN


def test_arguments_of_the_call_around_the_launch(tmp_path):
    trace = TraceBuilder().op("c10d::allreduce_", 0, 100)
    trace.range("record_param_comms", 10, 90, cat="cpu_op", **ALL_REDUCE).range("nccl:all_reduce", 20, 80)
    trace.launch(1, 30, 40).launch(2, 95, 98)
    trace.kernel(1000, 2000, name="ncclX", correlation=1).kernel(3000, 3500, name="ncclX", correlation=2)
    trace.kernel(4000, 4100, name="ncclX", correlation=3)  # its launch is not in the trace
    assert [(arguments(row), times(row)) for row in collectives(trace.trace(tmp_path))] == [
        (KNOWN, (1, 1000, 1000, 0)),
        (UNKNOWN, (2, 600, 600, 0)),
    ]


def test_odd_arguments(tmp_path):
    """Whatever a file holds there: what is no number is unknown."""
    odd = {"In msg nelems": "12", "Out msg nelems": [1], "dtype": None, "Group size": -3, "Process Group Name": 7}
    trace = TraceBuilder().kernel(0, 10, name="ncclX", **{"Collective name": "x", **odd})
    assert [arguments(row) for row in collectives(trace.trace(tmp_path))] == [("x", None, 12, None, "7", None)]


def test_arguments_in_a_damaged_file(tmp_path):
    text = TraceBuilder().kernel(0, 10, name="ncclX", **ALL_REDUCE).kernel(20, 30, name="gemm").text()
    (tmp_path / "cut.json").write_text(text[:-60])
    trace = read_trace(tmp_path / "cut.json")
    assert trace.quality
    assert [arguments(row) for row in collectives(trace)] == [KNOWN]


def test_none(tmp_path):
    trace = TraceBuilder().range("record_param_comms", 0, 10, cat="cpu_op", **ALL_REDUCE).kernel(0, 10)
    assert collectives(trace.trace(tmp_path)) == []
