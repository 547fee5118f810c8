"""Sound traces of every generation and vendor. Times in nanoseconds."""

from __future__ import annotations

import json

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Category, DeviceProperties
from tests.traces import BASE_NS, BASE_US, EPOCH_US, TraceBuilder, codes, rows, training, write


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "rank9.1.pt.trace.json.gz", "odd name é"])
@pytest.mark.parametrize("generation", ["epoch_us", "epoch_ns", "base"])
def test_generations(tmp_path, generation, name):
    trace = training(generation).trace(tmp_path, name)

    zero = {"epoch_us": EPOCH_US * 1000, "epoch_ns": EPOCH_US * 1000, "base": BASE_NS + BASE_US * 1000}[generation]
    assert trace.start_unix_ns == zero
    assert (trace.path, trace.rank, trace.world_size, trace.quality) == (str(tmp_path / name), 3, 8, ())
    assert trace.devices == (DeviceProperties(0, "NVIDIA A100", 42505273344, (8, 0)),)
    assert rows(trace)[:5] == [
        ("ProfilerStep#4", "ANNOTATION", 0, 1_000_000),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "ANNOTATION", 10_000, 200_000),
        ("aten::mm", "CPU_OP", 300_000, 100_000),
        ("cudaLaunchKernel", "RUNTIME", 310_000, 10_000),
        ("gemm", "KERNEL", 330_000, 200_000),
    ]
    kernel = 4
    assert (trace.device[kernel], trace.stream[kernel], trace.correlation[kernel]) == (0, 7, 41)
    assert trace.device[:kernel].tolist() == [-1] * kernel
    assert len(set(trace.names)) == len(trace.names)


def test_a_packed_file_is_known_by_its_bytes(tmp_path):
    packed = training().write(tmp_path, "t.json.gz")
    (tmp_path / "plain.json").write_bytes(packed.read_bytes())
    (tmp_path / "plain.json.gz").write_text(training().text())
    assert rows(read_trace(tmp_path / "plain.json")) == rows(read_trace(tmp_path / "plain.json.gz"))


@pytest.mark.parametrize("generation", ["epoch_ns", "base"])
@pytest.mark.parametrize("salvaged", [False, True])
def test_every_digit_counts(tmp_path, generation, salvaged):
    trace = TraceBuilder(generation)
    spans = [(offset * 1_000_003 + offset, offset * 1_000_003 + 2 * offset + 1) for offset in range(1000)]
    for start, end in spans:
        trace.op("op", start, end)
    path = write(tmp_path, trace.text() + ("garbage" if salvaged else ""))
    assert rows(read_trace(path)) == [("op", "CPU_OP", start, end - start) for start, end in spans]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["1712195495519689.047", "1712195495519689"], [47, 0]),
        (["1712195495519689", "1712195495519689.001", "1712195495519690.5"], [0, 1, 1500]),
        (["1.712195495519689047e15", "1712195495519689.048"], [0, 1]),
        (["1712195495519689.0474", "1712195495519689.0476"], [0, 1]),
        (["8796093022207.999", "8796093022207.998", "8796093022207.5"], [499, 498, 0]),
        (["4503599627370.497", "4503599627370.496"], [1, 0]),
        (["-5.001", "10.25", "0.0"], [0, 15251, 5001]),
        (["17", "18"], [0, 1000]),
    ],
)
def test_times_as_numbers(tmp_path, times, expected):
    events = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "n{i}", "ts": {t}, "dur": 1}}' for i, t in enumerate(times)
    )
    trace = read_trace(write(tmp_path, f'{{"traceEvents": [{events}]}}'))
    start = {trace.names[name]: time for name, time in zip(trace.name_id, trace.start_ns.tolist(), strict=True)}
    assert [start[f"n{i}"] for i in range(len(times))] == expected
    assert "text_timestamps" not in codes(trace)


def test_digits_beyond_a_float_are_found_late_in_a_file(tmp_path):
    trace = TraceBuilder("epoch_us")
    for number in range(20_000):
        trace.op("op", number * 1000, number * 1000 + 1000)
    text = trace.text().replace(f'"ts": {EPOCH_US + 19_999}', f'"ts": {EPOCH_US + 19_999}.123')
    assert rows(read_trace(write(tmp_path, text)))[-1] == ("op", "CPU_OP", 19_999_123, 1000)


def test_order_is_by_start_then_longest_then_as_written(tmp_path):
    trace = TraceBuilder().op("c", 20, 30).op("inner", 10, 20).op("outer", 10, 40).op("twin", 10, 20).trace(tmp_path)
    assert [name for name, *_ in rows(trace)] == ["outer", "inner", "twin", "c"]


CATEGORIES = {
    Category.KERNEL: ["kernel", "Kernel", "KERNEL", "mtia_ccp_events", "hpu_op"],
    Category.MEMCPY: ["gpu_memcpy", "Memcpy"],
    Category.MEMSET: ["gpu_memset", "Memset"],
    Category.DEVICE_ANNOTATION: ["gpu_user_annotation"],
    Category.SYNC: ["cuda_sync", "xpu_sync", "mtia_sync"],
    Category.CPU_OP: ["cpu_op", "Operator"],
    Category.ANNOTATION: ["user_annotation"],
    Category.RUNTIME: ["cuda_runtime", "xpu_runtime", "mtia_runtime", "glow_runtime", "privateuse1_runtime", "Runtime"],
    Category.DRIVER: ["cuda_driver", "xpu_driver", "privateuse1_driver"],
    Category.PYTHON: ["python_function"],
    Category.OVERHEAD: ["overhead"],
    Category.OTHER: ["Trace", "mtia_insight", "", "cuda_event", "collective_comm"],
}


@pytest.mark.parametrize(
    ("category", "cat"), [(category, cat) for category, cats in CATEGORIES.items() for cat in cats]
)
def test_categories(tmp_path, category, cat):
    trace = TraceBuilder().complete("x", 0, 1, cat=cat, pid=3, tid=7).trace(tmp_path)
    assert trace.category.tolist() == [category]
    # Without an argument that names it, a device operation's process is its device.
    assert trace.device.tolist() == [3 if category <= Category.MEMSET else -1]


def test_only_complete_events_are_rows(tmp_path):
    trace = training()
    for phase in "BEisfMCnbetN":
        trace.events.append(
            {"ph": phase, "cat": "ac2g", "name": "ac2g", "ts": 5, "pid": 1, "tid": 1, "id": 4, "args": {}}
        )
    assert len(trace.trace(tmp_path)) == 15


def test_arguments_of_every_vendor(tmp_path):
    trace = (
        TraceBuilder()
        .complete(
            "legacy", 0, 1, cat="Memcpy", pid="0", tid="stream 7", **{"external id": 12, "device": 0, "bytes": 64}
        )
        .complete("amd", 1, 2, cat="cuda_runtime", pid=5, tid=6, stream="0x7f", correlation=9, bytes="4096")
        .complete("new", 2, 3, cat="cpu_op", pid=5, tid="6", **{"External id": 3, "stream": 4})
        .complete("odd", 3, 4, cat="kernel", pid=5, tid=6, device="1", stream=2.0, correlation=2**63, bytes=[1])
        .trace(tmp_path)
    )
    assert trace.device.tolist() == [0, -1, -1, 1]
    assert trace.stream.tolist() == [-1, -1, -1, 2]
    assert trace.correlation.tolist() == [-1, 9, -1, -1]
    assert trace.external_id.tolist() == [12, -1, 3, -1]
    assert trace.bytes.tolist() == [64, -1, -1, -1]
    assert trace.processes == ("0", "5")
    assert trace.threads == ("stream 7", "6")
    assert trace.thread.tolist() == [0, 1, 1, 1]


def test_memory_events(tmp_path):
    trace = TraceBuilder().op("a", 1000, 2000).memory(3000, -8, allocated=5).memory(2000, 16, device_type=0, device=-1)
    memory = trace.trace(tmp_path).memory
    assert memory.time_ns.tolist() == [1000, 2000]
    assert memory.device_type.tolist() == [0, 1]
    assert memory.device.tolist() == [-1, 0]
    assert memory.bytes.tolist() == [16, -8]
    assert memory.total_allocated_bytes.tolist() == [-1, 5]
    assert memory.total_reserved_bytes.tolist() == [-1, -1]


def test_the_thread_of_a_memory_event(tmp_path):
    """By the trace's own ids, whatever type they are of; -1 for a thread that nothing else names."""
    trace = (
        TraceBuilder().op("a", 0, 9, tid=6).op("b", 1, 2, tid=5).memory(3, 1, tid="5").memory(4, 1).memory(5, 1, tid=6)
    )
    trace = trace.trace(tmp_path)
    assert [trace.threads[thread] if thread >= 0 else None for thread in trace.memory.thread.tolist()] == [
        "5",
        None,
        "6",
    ]
    assert trace.memory.process.tolist() == [0, 0, 0]


def test_how_kernels_use_multiprocessors(tmp_path):
    """By row of the trace, whatever the order in the file; only kernels that tell."""
    blocks, occupancy = "blocks per SM", "est. achieved occupancy %"
    trace = TraceBuilder().kernel(500, 600, **{blocks: 2.5, occupancy: 31}).kernel(300, 400).op("a", 0, 9)
    use = trace.kernel(100, 200, **{blocks: 0.25}).trace(tmp_path).kernel_use
    assert use.rows.tolist() == [1, 3]
    assert use.blocks_per_sm.tolist() == [0.25, 2.5]
    assert use.occupancy_percent.tolist() == [-1, 31]


@pytest.mark.parametrize(
    ("name", "distributed", "expected"),
    [
        ("rank5.123.pt.trace.json", None, (5, None)),
        ("ddp_rank-12.json", None, (12, None)),
        ("rank5.json", {"rank": 2, "world_size": 4}, (2, 4)),
        ("rank5.json", {"rank": "2", "world_size": None}, (5, None)),
        ("rank5.json", "gloo", (5, None)),
        ("crank5.json", None, (None, None)),
        ("trace.json", None, (None, None)),
    ],
)
def test_rank(tmp_path, name, distributed, expected):
    trace = TraceBuilder().op("a", 0, 1)
    if distributed is not None:
        trace.metadata["distributedInfo"] = distributed
    result = trace.trace(tmp_path, name)
    assert (result.rank, result.world_size) == expected


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ([], ()),
        ("none", ()),
        ([{"name": "no id"}, 3, {"id": 1, "name": 7, "computeMajor": 9}], (DeviceProperties(1, None, None, None),)),
        ([{"id": 17, "name": "ARTEMIS", "runtimeMajorVersion": 1}], (DeviceProperties(17, "ARTEMIS", None, None),)),
    ],
)
def test_device_properties(tmp_path, properties, expected):
    trace = TraceBuilder().op("a", 0, 1)
    trace.metadata["deviceProperties"] = properties
    assert trace.trace(tmp_path).devices == expected


@pytest.mark.parametrize(
    ("metadata", "ts", "expected"),
    [
        ({"baseTimeNanoseconds": 10**18}, "5.001", 10**18 + 5001),
        ({}, "5.001", 0),
        ({"baseTimeNanoseconds": 0}, "5.001", 0),
        ({"baseTimeNanoseconds": "soon"}, "5.001", 0),
        ({"baseTimeNanoseconds": 10**18}, "1712195495519689.047", 1712195495519689047),
    ],
)
def test_wall_clock(tmp_path, metadata, ts, expected):
    event = f'{{"ph": "X", "cat": "cpu_op", "name": "a", "ts": {ts}, "dur": 1}}'
    text = f'{json.dumps(metadata)[:-1]}{"," if metadata else ""} "traceEvents": [{event}]}}'
    assert read_trace(write(tmp_path, text)).start_unix_ns == expected


def test_a_device_operation_without_a_device_is_noted(tmp_path):
    trace = TraceBuilder().complete("k", 0, 1, cat="kernel", pid="Spans", tid=1).trace(tmp_path)
    assert trace.device.tolist() == [-1]
    assert codes(trace) == {"unknown_device": 1}
