"""Tables as people see them, and as programs read them."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest

from lightning_perf.measure.analysis import Copy, Device, DeviceWindow, Efficiency, Gap, Kernel, Operator, Window
from lightning_perf.report.tables import (
    TABLES,
    WIDEST_TEXT,
    scale_of,
    shortened,
    sort_names,
    table_of,
    table_text,
    tables_csv,
)

LONG = "void at::native::(anonymous namespace)::" + "x" * 200 + "::elementwise_kernel<4>"


def operator(name, calls, self_us, total_us, device_us=None, launches=None, *, device=None, flops=None) -> Operator:
    return Operator(
        name=name,
        calls=calls,
        self_us=self_us,
        total_us=total_us,
        launches=launches,
        self_device_us=device_us,
        device_us=device_us if device is None else device,
        flops=flops,
    )


def kernel(name, total_us, calls=1) -> Kernel:
    return Kernel(
        name=name,
        calls=calls,
        total_us=total_us,
        mean_us=total_us / calls,
        min_us=1.0,
        max_us=total_us,
        busy_ratio=0.25,
        launched=0,
        launch_latency_us=None,
        negative_latencies=0,
        shorter_than_launch=0,
        graph_calls=0,
        queue_depth=None,
    )


def window(**parts) -> Window:
    return Window(
        **{
            "rank": 0,
            "trace": "a.json",
            "events": 1,
            "duration_us": 1.0,
            "steps": [],
            "devices": [],
            "memory": None,
            "quality": [],
            **parts,
        }
    )


OPERATORS = window(
    operators=[
        operator("aten::mm", 3, 30_000.0, 60_000.5, 12.5, 3),
        operator("aten::add", 1200, 10_000.0, 10_000.0, 0.0, 0),
        operator("(no operator)", 0, 0.0, 0.0, 37.5, None),
    ]
)


def test_text():
    measured = window(
        kernels=[kernel("gemm", 60_000.25, calls=3), kernel("add", 10_000.0, calls=1200), kernel("relu", 1.0)]
    )
    assert table_text(table_of(measured, "kernels", sort="calls", top=2)).splitlines() == [
        "a.json · kernels by calls",
        "",
        "name  total ms  busy %  calls  mean ms  min µs  max ms",
        "------------------------------------------------------",
        "add     10.000    25.0  1,200    0.008   1.000  10.000",
        "gemm    60.000    25.0      3   20.000   1.000  60.000",
        "1 more of 3 rows; --top 3 shows all",
    ]


def test_columns_without_a_value_are_not_shown_and_none_is_a_dash():
    cpu = window(operators=[operator("a", 1, 1.0, 1.0), operator("b", 0, 0.0, 0.0)])
    header, _, _, last = table_text(table_of(cpu, "operators")).splitlines()[2:]
    assert header.split() == ["name", "self_share", "%", "self", "µs", "total", "µs", "mean", "µs", "calls"]
    assert last.split() == ["b", "0.0", "0.000", "0.000", "-", "0"]


def test_csv_has_everything():
    tables = [table_of(OPERATORS, "operators", top=None), table_of(window(trace="b,json"), "operators")]
    rows = list(csv.DictReader(io.StringIO(tables_csv(tables))))
    assert [row["name"] for row in rows] == ["aten::mm", "aten::add", "(no operator)"]
    assert rows[0] == {
        "trace": "a.json",
        "name": "aten::mm",
        "shapes": "",
        "call_site": "",
        "self_share_ratio": "0.75",
        "self_us": "30000.0",
        "total_us": "60000.5",
        "mean_us": str(60000.5 / 3),
        "self_device_share_ratio": "0.25",
        "self_device_us": "12.5",
        "device_us": "12.5",
        "launches": "3",
        "calls": "3",
        "backward_us": "",
        "backward_device_us": "",
        "flops": "",
        "flops_per_s": "",
    }
    assert tables_csv([]) == ""


def test_sorted_by_the_most_expensive_column_unless_told():
    assert table_of(OPERATORS, "operators").sort == "self"
    device = window(operators=[operator("a", 1, 1.0, 1.0, 5.0), operator("b", 1, 2.0, 2.0, 3.0)])
    assert table_of(device, "operators").sort == "self_device"
    assert [row["name"] for row in table_of(device, "operators").rows] == ["a", "b"]
    assert [row["name"] for row in table_of(device, "operators", sort="self").rows] == ["b", "a"]
    # Rows without a value come last, names in their order.
    assert [row["name"] for row in table_of(OPERATORS, "operators", sort="launches").rows][-1] == "(no operator)"
    assert next(row["name"] for row in table_of(OPERATORS, "operators", sort="name").rows) == "(no operator)"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_sorts_by_every_column_and_may_be_empty(name):
    for column in sort_names(name):
        assert table_of(window(), name, sort=column).rows == []
    with pytest.raises(ValueError, match=f"{name} have no column 'nope'; expected one of: .*{sort_names(name)[-1]}"):
        table_of(window(), name, sort="nope")
    assert table_text(table_of(window(), name)) == f"a.json · {name}\n  The trace has no {name}."


@pytest.mark.parametrize("name", [name for name in TABLES if name != "gaps"])
def test_columns_are_the_fields_of_the_record(name):
    (record,) = (
        msgspec.inspect.type_info(
            list[next(field.type for field in msgspec.structs.fields(Window) if field.name == name).__args__[0]]
        ).item_type.cls,
    )
    fields = {field.name for field in msgspec.structs.fields(record)}
    shown = {column.key for column in table_of(window(), name).columns if column.of is None}
    assert shown <= fields
    assert fields - shown <= {"launched"}


def test_names_are_cut_in_the_middle_in_text_only():
    table = table_of(window(kernels=[kernel(LONG, 2.0), kernel("a\nb\x1b[31m", 1.0)]), "kernels")
    lines = table_text(table).splitlines()
    assert LONG not in lines[4]
    assert lines[4].startswith("void at::native::(anonymous n…")
    assert "elementwise_kernel<4>" in lines[4]
    assert lines[5].startswith("a b [31m ")
    assert len({len(line) for line in lines[2:6]}) == 1
    assert LONG in tables_csv([table])
    assert len(shortened(LONG)) == WIDEST_TEXT
    assert shortened("x" * WIDEST_TEXT) == "x" * WIDEST_TEXT


@pytest.mark.parametrize(
    ("total", "header", "text"),
    [
        (9_999.9994, "total µs", "9,999.999"),
        (10_000.0, "total ms", "10.000"),
        (99_999_999.0, "total ms", "99,999.999"),
        (100_000_000.0, "total s", "100.000"),
    ],
)
def test_one_unit_for_a_column(total, header, text):
    header_line, _, first, second = table_text(
        table_of(window(kernels=[kernel("a", total), kernel("b", 1.0)]), "kernels")
    ).splitlines()[2:]
    assert header_line.split("  ")[1].strip() == header or header in header_line
    assert text in first
    assert len(first) == len(second)


def test_copies():
    copies = [
        Copy(kind="HtoD", memory="pinned", calls=2, total_us=5.0, bytes=3 << 20, gb_per_s=25.125),
        Copy(kind="Memset", memory=None, calls=1, total_us=1.0, bytes=None, gb_per_s=None),
    ]
    assert table_text(table_of(window(copies=copies), "copies")).splitlines()[2:] == [
        "kind    memory  calls  total µs  mean µs  bytes MiB  gb_per_s",
        "-------------------------------------------------------------",
        "HtoD    pinned      2     5.000    2.500      3.000     25.12",
        "Memset  -           1     1.000    1.000          -         -",
    ]


COMPUTING = [
    operator("aten::mm", 2, 100.0, 400.0, 200.0, 2, flops=3_000_000_000),
    operator("aten::convolution", 1, 10.0, 50.0, 0.0, 0, device=10.0, flops=1_500_000),
    operator("aten::add", 1, 1.0, 1.0, 1.0, 1),
]


def test_flops_are_shown_where_they_are_known():
    table = table_of(window(operators=COMPUTING), "operators", sort="flops_per_s")
    assert [row["flops_per_s"] for row in table.rows] == [pytest.approx(15e12), pytest.approx(0.15e12), None]
    header, _, *lines = table_text(table).splitlines()[2:]
    assert header.endswith("flops GFLOP  flops_per_s TFLOP/s")
    assert [line.split()[-2:] for line in lines] == [["3.000", "15.000"], ["0.002", "0.150"], ["-", "-"]]
    assert "flops" not in table_text(table_of(OPERATORS, "operators"))


def test_flops_of_the_host_are_over_its_time():
    """What a host launched without a record of the device has no known rate."""
    host = [Efficiency(device="cpu", sm_efficiency=None, occupancy=None, tensor_core_ratio=None)]
    alone = [operator("aten::mm", 2, 100.0, 400.0, flops=3_000_000_000)]
    (row,) = table_of(window(operators=alone, efficiency=host), "operators").rows
    assert row["flops_per_s"] == pytest.approx(7.5e12)
    (row,) = table_of(window(operators=alone), "operators").rows
    assert row["flops_per_s"] is None


def test_gaps_of_all_devices():
    def gap(start, duration, cause):
        return Gap(
            start_us=start,
            duration_us=duration,
            step=1004,
            cause=cause,
            activity="forward",
            host=None,
            ended_by="gemm",
            shares=[],
        )

    def device(index, gaps):
        measured = DeviceWindow(
            steps=1, duration_us=9.0, busy_us=1.0, idle_us=8.0, gaps=1, largest_gap_us=1.0, largest_gaps=gaps
        )
        figures = dict.fromkeys(
            ("span_us", "busy_us", "idle_us", "compute_us", "communication_us", "exposed_communication_us", "copy_us"),
            0.0,
        )
        return Device(index=index, name=None, operations=1, gaps=1, window=measured, **figures)

    devices = [device("0", [gap(5.0, 2.0, "launch")]), device("1", [gap(1.0, 3.0, "sync")])]
    table = table_of(window(devices=devices), "gaps")
    assert [(row["device"], row["cause"]) for row in table.rows] == [("1", "sync"), ("0", "launch")]
    assert table_text(table).splitlines()[2:] == [
        "device  step  start µs  duration µs  cause   activity  ended_by",
        "---------------------------------------------------------------",
        "1       1004     1.000        3.000  sync    forward   gemm",
        "0       1004     5.000        2.000  launch  forward   gemm",
    ]
    assert [row["device"] for row in table_of(window(devices=devices), "gaps", sort="start").rows] == ["1", "0"]


@pytest.mark.parametrize("kind", ["time", "bytes", "flops", "number", "count"])
def test_losses_choose_the_unit_by_their_size(kind: str) -> None:
    assert scale_of(kind, [-5e9, None]) == scale_of(kind, [5e9])
