"""Collectives of small traces, tables written out beside them. Times in nanoseconds."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

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


def shapes(*dims, types):
    return {"Input Dims": list(dims), "Input type": types}


@pytest.mark.parametrize(
    ("name", "cat", "inputs", "expected", "size"),
    [
        # As in the traces of 2022: a range of the user's kind, the input tensor as its only input.
        ("nccl:all_reduce", "user_annotation", shapes([45, 10], types=["float"]), ("all_reduce", "Float", 450), 1800),
        ("nccl:all_reduce", "cpu_op", shapes([7], types=["c10::Half"]), ("all_reduce", "Half", 7), 14),
        ("nccl:broadcast", "user_annotation", shapes([20], types=["long int"]), ("broadcast", "Long", 20), 160),
        ("nccl:broadcast", "user_annotation", shapes([], types=["unsigned char"]), ("broadcast", "Byte", 1), 1),
        ("nccl:_reduce_scatter_base", "user_annotation", shapes([64], types=["c10::BFloat16"]),
         ("_reduce_scatter_base", "BFloat16", 64), 128),
        ("nccl:send 0->1", "user_annotation", shapes([5], types=["double"]), ("send", "Double", 5), 40),
        # More may come out than goes in, and how much is not told.
        ("nccl:all_to_all", "user_annotation", shapes([8, 2], types=["int"]), ("all_to_all", "Int", 16), None),
        ("nccl:_all_gather_base", "user_annotation", shapes([8], types=["signedchar"]),
         ("_all_gather_base", "Char", 8), None),
        # Several tensors at once, and inputs that are none.
        ("nccl:all_reduce", "user_annotation", shapes([3], [2, 2], types=["float", "float"]),
         ("all_reduce", "Float", 7), 28),
        ("nccl:all_reduce", "user_annotation", shapes([3], [], [], types=["float", "Scalar", ""]),
         ("all_reduce", "Float", 3), 12),
        ("nccl:all_reduce", "user_annotation", shapes([3], [3], types=["float", "int"]), None, None),
        ("nccl:all_reduce", "user_annotation", shapes([[3]], types=["TensorList"]), None, None),
        # Whatever a file holds there.
        ("nccl:all_reduce", "user_annotation", shapes([[3]], types=["float"]), None, None),
        ("nccl:all_reduce", "user_annotation", shapes(["x", -1], [2], types=["float", "float"]), None, None),
        ("nccl:all_reduce", "user_annotation", shapes([2**40, 2**40], types=["float"]), None, None),
        ("nccl:all_reduce", "user_annotation", shapes([3], types=["float", "float"]), None, None),
        ("nccl:all_reduce", "user_annotation", {"Input Dims": [[3]]}, None, None),
        ("nccl:all_reduce", "user_annotation", {}, None, None),
        ("record_param_comms", "cpu_op", shapes([3], types=["float"]), None, None),
    ],
)  # fmt: skip
def test_the_shapes_of_the_range_around_the_launch(tmp_path, name, cat, inputs, expected, size):
    trace = TraceBuilder().range(name, 20, 80, cat=cat, **inputs).launch(1, 30, 40).launch(2, 90, 95)
    trace.kernel(1000, 2000, name="ncclX", correlation=1)
    trace.kernel(3000, 3100, name="ncclX", correlation=2)  # launched after the range
    trace.kernel(4000, 4010, name="ncclX", correlation=3)  # its launch is not in the trace
    first, *others = collectives(trace.trace(tmp_path))
    if expected is None:
        assert (arguments(first), first.calls, others) == (UNKNOWN, 3, [])
        return
    call, dtype, elements = expected
    assert arguments(first) == (call, dtype, elements, None, None, None)
    assert (first.calls, first.bytes, first.gb_per_s) == (1, size, None if size is None else size / 1000)
    assert [(arguments(row), row.calls) for row in others] == [(UNKNOWN, 2)]


@pytest.mark.parametrize(
    ("operator", "dims", "out", "size"),
    [
        ("c10d::_allgather_base_", ([64], [8]), 64, 64 * 4),
        ("c10d::alltoall_base_", ([6], [8]), 6, 8 * 4),
        ("c10d::alltoall_base_", ([6], [7]), None, None),  # of another tensor
        ("c10d::other_", ([64], [8]), None, None),
    ],
)
def test_what_comes_out_is_told_by_the_operator_on_flat_tensors(tmp_path, operator, dims, out, size):
    types = ["float", "float", "", "Scalar"]
    trace = TraceBuilder().range(operator, 0, 100, cat="cpu_op", **shapes(*dims, [], [], types=types))
    name = "nccl:all_to_all" if "alltoall" in operator else "nccl:_all_gather_base"
    trace.range(name, 20, 80, **shapes([8], types=["float"])).launch(1, 30, 40)
    (row,) = collectives(trace.kernel(1000, 2000, name="ncclX", correlation=1).trace(tmp_path))
    assert (row.in_elements, row.out_elements, row.bytes) == (8, out, size)


def test_a_range_with_several_launches_does_not_tell_how_much_each_sends(tmp_path):
    trace = TraceBuilder().range("nccl:all_reduce", 20, 80, **shapes([8], types=["float"])).launch(1, 30, 40)
    trace.launch(2, 50, 60).kernel(1000, 2000, name="ncclX", correlation=1)
    trace.kernel(3000, 4000, name="ncclX", correlation=2)
    assert [(arguments(row), row.calls) for row in collectives(trace.trace(tmp_path))] == [(UNKNOWN, 2)]


def test_arguments_are_preferred_to_shapes(tmp_path):
    trace = TraceBuilder().range("record_param_comms", 10, 90, cat="cpu_op", **ALL_REDUCE)
    trace.range("nccl:all_reduce", 20, 80, **shapes([8], types=["int"])).launch(1, 30, 40)
    (row,) = collectives(trace.kernel(1000, 2000, name="ncclX", correlation=1).trace(tmp_path))
    assert arguments(row) == KNOWN


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


TRACES = Path(__file__).parents[2] / "../shared/traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
@pytest.mark.parametrize(
    ("name", "launched", "unknown"),
    [("a100_ddp_dataloader", 60, 0), ("v100_ddp_dataloader", 60, 4), ("ddp_rank0", 10, 0), ("ddp_rank1", 10, 0)],
)
def test_sizes_of_2022(name, launched, unknown):
    """Counted from the file's JSON: each range ``nccl:...`` launched one kernel, those of the others began earlier."""
    path = TRACES / f"{name}.pt.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    expected: Counter[tuple[str, str, int]] = Counter()
    for event in events:
        if event.get("name", "").startswith("nccl:") and event["ph"] == "X":
            elements = 1
            for size in event["args"]["Input Dims"][0]:
                elements *= size
            expected[event["name"].removeprefix("nccl:"), event["args"]["Input type"][0], elements] += 1
    assert expected.total() == launched
    trace = read_trace(path)
    rows = collectives(trace)
    assert sum(row.calls for row in rows if row.collective is None) == unknown
    types = {"Float": "float", "Int": "int", "Long": "long", "Byte": "unsigned char", "Char": "signed char"}
    found: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        if row.collective is not None:
            found[row.collective, types[row.dtype], row.in_elements] += row.calls
    assert found == expected
    assert sum(row.calls for row in rows) == launched + unknown
    for row in rows:
        if row.collective == "all_reduce":
            assert row.bytes == row.calls * row.in_elements * 4
        elif row.collective == "all_to_all" and row.out_elements is None:
            assert row.bytes is None
