"""Files made to do harm, and paths that are no files: refused or read, with bounded memory, in time, in one line."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from lightning_perf.decode import pieces, reader, salvage, source
from lightning_perf.decode.reader import read_trace
from lightning_perf.errors import TraceError
from lightning_perf.measure.window import measure_trace
from lightning_perf.pipeline import find_traces
from tests.decode.test_damage import GOOD, event, events
from tests.measure.laws import assert_conserved
from tests.traces import TraceBuilder, codes, rows, training, write

MIB = 2**20


def packed(folder: Path, before: bytes, filler: bytes, after: bytes) -> Path:
    """A gzip file whose text has 4 GiB of filler."""
    member = gzip.compress(filler * (64 * MIB // len(filler)), mtime=0)
    path = folder / "bomb.json.gz"
    with path.open("wb") as file:
        file.write(gzip.compress(before))
        for _ in range(64):
            file.write(member)
        file.write(gzip.compress(after))
    return path


READ = """
import resource, sys, time
from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.window import measure_trace
from lightning_perf.errors import TraceError
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    trace = read_trace(sys.argv[1])
    said = f"{len(trace)} events"
    if "measure" in sys.argv:
        measure_trace(trace)
except TraceError as error:
    said = str(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, time.process_time() - start, said)
"""


def cost(path: Path, *more: str) -> tuple[int, float, str]:
    """MiB and seconds of CPU to read a file in a process of its own, and what came of it."""
    done = subprocess.run([sys.executable, "-c", READ, str(path), *more], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    memory, seconds, said = done.stdout.rstrip("\n").split(" ", 2)
    return int(memory), float(seconds), said


@pytest.mark.parametrize(
    ("before", "filler", "after"),
    [
        pytest.param(b"", b" ", b"", id="blanks"),
        pytest.param(b"", b"\0", b"", id="zeros"),
        pytest.param(b'{"traceEvents": [', b" ", b"]}", id="blanks where events should be"),
        pytest.param(b'{"traceEvents": [{"ph": "X", "name": "', b"x", b'"}]}', id="one giant text"),
        pytest.param(b'{"traceEvents": [{"ph": "X", "args": {"device": [', b"[],", b"0]}}]}", id="one giant list"),
        pytest.param(b"", b"[", b"", id="brackets"),
        pytest.param(
            b'{"traceEvents": [\n', b'{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1},\n', b"{}]}", id="one event"
        ),
    ],
)
def test_a_small_file_that_unpacks_to_gigabytes(tmp_path: Path, before: bytes, filler: bytes, after: bytes) -> None:
    path = packed(tmp_path, before, filler, after)
    assert path.stat().st_size < 20 * MIB
    memory, seconds, said = cost(path)
    assert said == (
        f"{path}: unpacks to more than 200 times its size, as no trace does; expected a torch.profiler trace "
        "(.json or .json.gz); if it is one, unpack it and read the .json"
    )
    assert memory < 1200
    assert seconds < 60


def test_sound_traces_are_far_from_the_limit(tmp_path: Path) -> None:
    """Of real traces, the one that packs best is 40 times smaller than its text."""
    trace = TraceBuilder()
    for number in range(20_000):
        trace.op("aten::add_", number * 1000, number * 1000 + 500)
    text = trace.text().encode()
    assert len(text) / len(zlib.compress(text, 9)) < source.LARGEST_RATIO / 2


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_more_text_than_is_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(source, "LARGEST_BYTES", 2500)
    monkeypatch.setattr(source, "_PIECE_BYTES", 100)
    sound = rows(training().trace(tmp_path))
    assert rows(training().trace(tmp_path, name)) == sound  # in pieces: of any size
    trace = read_trace(write(tmp_path, training().text() + "x", name))
    assert codes(trace)["too_large"] == 1
    assert rows(trace) == sound[: len(trace)]
    assert 3 < len(trace) < len(sound)


def test_a_large_file_that_is_not_in_pieces_is_read_event_by_event(tmp_path: Path, monkeypatch) -> None:
    expected = rows(training().trace(tmp_path))
    monkeypatch.setattr(reader, "_AT_ONCE_BYTES", 1000)
    monkeypatch.setattr(salvage, "_EVENTS_AT_ONCE", 4)
    text = training().text()
    for layout in (text + " x", text.replace("traceEvents", "events"), "[" + text.split("[", 2)[2].rsplit("]", 1)[0]):
        assert rows(read_trace(write(tmp_path, layout))) == expected
    with pytest.raises(TraceError, match="holds no trace events that can be read; expected"):
        read_trace(write(tmp_path, "[" + "1," * 1000))


def test_a_gzip_file_of_many_tiny_members(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"", mtime=0) * 200_000)
    start = time.process_time()
    with pytest.raises(TraceError, match=r"is empty|no trace events"):
        read_trace(path)
    assert time.process_time() - start < 10
    text = training().text().encode()
    path.write_bytes(b"".join(gzip.compress(text[at : at + 40]) for at in range(0, len(text), 40)))
    assert rows(read_trace(path)) == rows(training().trace(tmp_path))


SLOW = {
    "quotes in a text": events(GOOD, event('"' * 500_000), GOOD),
    "backslashes and quotes": events(GOOD, event('\\\\"' * 200_000), GOOD),
    "backslashes": events(GOOD, event("\\" * 900_001), GOOD),
    "starts of events": events(GOOD, '{"ph":' * 300_000, GOOD),
    "starts of events with a phase": events(GOOD, '{"ph":"X",' * 300_000, GOOD),
    "events whose first key is not known": events(
        GOOD, ",".join('{"id": 1, "ph": "X", "name": "b", "ts": 1, "dur": 1}' for _ in range(50_000)), "@"
    ),
    "keys of metadata": '{"schemaVersion": @, ' + '"distributedInfo": "' * 200_000 + events(GOOD)[1:],
    "a header of brackets": "[" * 3_000_000 + events(GOOD),
    "lists of events that begin": '{"traceEvents": [ ' * 200_000 + events(GOOD),
    "blanks after a list that begins": '{"traceEvents": [' + " " * 10_000_000 + GOOD,
    "brackets after the last event": events(GOOD) + "] " * 3_000_000,
    "one long number": events(GOOD, event("b", ts="9" * 5_000_000)),
    "one long fraction": events(GOOD, event("b", ts="0." + "1" * 3_000_000)),
}


@pytest.mark.parametrize("case", SLOW)
def test_nothing_takes_long(tmp_path: Path, case: str) -> None:
    start = time.process_time()
    trace = read_trace(write(tmp_path, SLOW[case]))
    assert time.process_time() - start < 15
    assert "good" in trace.names


@pytest.mark.parametrize("text", ["[" * 100_000, '{"traceEvents": ' * 100_000, '[{"ph": ' * 100_000])
def test_deep_nesting(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="holds no trace events that can be read"):
        read_trace(write(tmp_path, text))


def large(folder: Path, count: int) -> Path:
    """A trace of many events, as compact as they can be."""
    path = folder / f"{count}.pt.trace.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [\n')
        for first in range(0, count, 10_000):
            lines = (
                f'{{"ph": "X", "cat": "cpu_op", "name": "op{at % 97}", "pid": 1, "tid": 1, "ts": {at * 3}.5, "dur": 2}}'
                for at in range(first, first + 10_000)
            )
            file.write((",\n" if first else "").encode() + ",\n".join(lines).encode())
        file.write(b"\n]}\n")
    return path


@pytest.mark.slow
def test_a_million_events(tmp_path: Path) -> None:
    """Time and memory grow with the number of events, and no faster."""
    memory, seconds, said = cost(large(tmp_path, 1_000_000))
    _, fewer_seconds, _ = cost(large(tmp_path, 200_000))
    assert said == "1000000 events"
    assert memory < 600
    assert seconds < 12 * fewer_seconds + 1


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 1000)
    path = training().write(tmp_path)
    expected, appended = rows(read_trace(path)), []

    def grow(_share: float) -> None:
        with path.open("ab") as file:
            file.write(b" " * 2000 + b"more")
        appended.append(1)

    assert rows(read_trace(path, progress=grow)) == expected
    assert len(appended) < 20  # what was appended was not read, else there was always more


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 1000)
    built = TraceBuilder()
    for number in range(1000):
        built.op("aten::mm", number * 1000, number * 1000 + 500)
    path = built.write(tmp_path)
    expected = rows(read_trace(path))
    trace = read_trace(path, progress=lambda _: os.truncate(path, 50_000))
    assert rows(trace) == expected[: len(trace)]
    assert 0 < len(trace) < len(expected)
    assert codes(trace)["truncated_json"] == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt.trace.json")
    for path in (tmp_path / "pipe.pt.trace.json", "/dev/zero", "/dev/null"):
        with pytest.raises(TraceError, match="is a pipe or a device, not a file; expected"):
            read_trace(path)
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)


def test_links(tmp_path: Path) -> None:
    """To a file: that file. To nothing, to itself: refused. To a folder: not searched, so that no search is endless."""
    real = training().write(tmp_path, "real.json")
    (tmp_path / "logs").mkdir()
    names = {"good": real, "dangling": tmp_path / "nowhere", "itself": tmp_path / "logs" / "itself.pt.trace.json"}
    for name, target in names.items():
        (tmp_path / "logs" / f"{name}.pt.trace.json").symlink_to(target)
    (tmp_path / "logs" / "loop").symlink_to(tmp_path / "logs")
    found = find_traces(tmp_path / "logs")
    assert [path.name.split(".")[0] for path in found] == ["dangling", "good", "itself"]
    assert len(read_trace(found[1])) == 15
    for path, reason in ((found[0], "No such file or directory"), (found[2], "Too many levels of symbolic links")):
        with pytest.raises(TraceError, match=reason):
            read_trace(path)


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/rank3.caf\xe9\n\x1b[31m.json"
    training().write(tmp_path).rename(os.fsdecode(path))
    trace = read_trace(os.fsdecode(path))
    assert (trace.path, trace.rank) == (f"{tmp_path}/rank3.caf\\xe9\n\x1b[31m.json", 3)


# ------------------------------------------------------------------------------- what benchmarks/fuzz.py has found


@pytest.mark.parametrize("layout", [events, lambda *lines: events(*lines) + "x"])
def test_times_far_from_all_others_are_left_out(tmp_path: Path, layout) -> None:
    """As float microseconds they would be inexact, and with them every sum."""
    far = [event("far", ts="3999999999999999"), event("far", ts="-1e15"), event("long", dur="8796093022207")]
    trace = read_trace(write(tmp_path, layout(GOOD, event("b"), event("c", "7", "8"), *far)))
    assert [name for name, *_ in rows(trace)] == ["good", "b", "c"]
    assert codes(trace)["out_of_range"] == 3


def test_long_durations_cannot_overflow_their_sum(tmp_path: Path) -> None:
    lines = [event(f"op{number % 3}", str(number), "500000000000") for number in range(6000)]
    trace = read_trace(write(tmp_path, events(GOOD, *lines)))
    assert trace.duration_ns.sum(dtype=np.float64) <= 2**53
    assert codes(trace)["out_of_range"] == 6000
    assert_conserved(measure_trace(trace))


def test_sizes_that_no_memory_has(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100_000).step(2, 100_000, 200_000)
    for number in range(4):
        trace.kernel(number * 10_000, number * 10_000 + 5000, cat="gpu_memcpy", name="Memcpy HtoD", bytes=2**63 - 1)
        trace.memory(number * 10_000, 2**63 - 1, allocated=2**63 - 1, reserved=-(2**63))
    read = trace.trace(tmp_path)
    assert set(read.bytes.tolist()) == {-1}
    assert set(read.memory.total_allocated_bytes.tolist()) == {-1}
    assert_conserved(measure_trace(read))


def test_half_a_surrogate_pair_is_no_character(tmp_path: Path) -> None:
    text = training().text().replace('"gemm"', '"\\ud83d gemm"').replace("NVIDIA A100", "\\udfff")
    trace = read_trace(write(tmp_path, text.replace('"cat": "kernel"', '"cat": "kernel", "tid": "\\ud83d"')))
    assert "\ufffd gemm" in trace.names
    assert all(name.isprintable() for name in (*trace.names, *trace.threads))


def test_a_rank_that_is_no_rank(tmp_path: Path) -> None:
    trace = training()
    trace.metadata["distributedInfo"] = {"rank": 10**40, "world_size": 2**64}
    read = read_trace(write(tmp_path, trace.text() + "x"))
    assert (read.rank, read.world_size) == (None, None)


def test_operations_that_take_no_time(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100_000).step(2, 100_000, 200_000)
    for number in range(1, 5):
        trace.launch(number, number * 20_000, number * 20_000 + 1000).kernel(*[number * 20_000 + 2000] * 2)
        trace.range("cudaDeviceSynchronize", number * 20_000 + 3000, number * 20_000 + 9000, cat="cuda_runtime")
    assert_conserved(measure_trace(trace.trace(tmp_path)))


def test_a_stream_that_some_operations_do_not_name(tmp_path: Path) -> None:
    """Their thread has its number: it is one lane, not two of one name."""
    trace = TraceBuilder().step(1, 0, 100_000).kernel(0, 10_000).kernel(20_000, 30_000)
    del trace.events[-1]["args"]["stream"]
    window = measure_trace(trace.trace(tmp_path))
    assert window.timeline is not None
    assert [lane.stream for lane in window.timeline.lanes] == ["7"]
    assert_conserved(window)


def test_what_lies_before_a_damage_of_a_small_gzip_file(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(training().text().encode()))
    content[-6] ^= 255  # the checksum
    (tmp_path / "t.json.gz").write_bytes(content)
    trace = read_trace(tmp_path / "t.json.gz")
    assert (len(trace), codes(trace)) == (15, {"corrupt_gzip": 1})


def test_a_text_that_begins_as_a_gzip_file_does(tmp_path: Path) -> None:
    assert len(read_trace(write(tmp_path, b"\x1f\x8b" + training().text().encode()))) == 15
