"""Files decoded piece by piece hold what they hold as a whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lightning_perf.decode import pieces
from lightning_perf.decode.events import File, decode_file
from lightning_perf.decode.pieces import NotInPiecesError, decode_pieces
from lightning_perf.decode.reader import read_trace
from lightning_perf.errors import TraceError
from tests.traces import TraceBuilder, codes, rows, training, write

TRACES = Path(__file__).parents[2] / "../shared/traces"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of a few events, so that a small trace has many."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 700)
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 1000)


def as_torch_writes(trace: TraceBuilder) -> str:
    return trace.text()


def compact(trace: TraceBuilder) -> str:
    return json.dumps(json.loads(trace.text()), separators=(",", ":"))


def on_one_line(trace: TraceBuilder) -> str:
    return json.dumps(json.loads(trace.text()))


def indented(trace: TraceBuilder) -> str:
    return json.dumps(json.loads(trace.text()), indent=4)


def facts_last(trace: TraceBuilder) -> str:
    whole = json.loads(trace.text())
    events = whole.pop("traceEvents")
    return json.dumps({"traceEvents": events, **whole}, indent=2)


def with_facts_of_a_device() -> TraceBuilder:
    trace = training()
    trace.metadata = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100"}], "distributedInfo": {"rank": 3}}
    return trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("written", [as_torch_writes, compact, on_one_line, indented, facts_last])
def test_many_pieces_make_the_whole(tmp_path, written, name):
    text = written(with_facts_of_a_device())
    files = list(decode_pieces(str(write(tmp_path, text, name)), exact=False))
    assert len(files) > 3
    whole = decode_file(text.encode(), exact=False)
    assert isinstance(whole, File)
    assert [event for file in files for event in file.events or []] == whole.events
    assert [file.device_properties for file in files if file.device_properties] == [whole.device_properties]

    trace = read_trace(tmp_path / name)
    assert (trace.rank, [device.name for device in trace.devices]) == (3, ["NVIDIA A100"])
    assert codes(trace) == {}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_how_much_of_the_file_was_read(tmp_path, name):
    path = write(tmp_path, with_facts_of_a_device().text(), name)
    shares: list[float] = []
    for _ in decode_pieces(str(path), exact=False, progress=shares.append):
        pass
    assert shares == sorted(shares)
    assert len(shares) > 2
    assert shares[0] < 1 == shares[-1]


def test_members_of_a_gzip_file_follow_each_other(tmp_path):
    text = training().text().encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"".join(gzip.compress(text[at : at + 900]) for at in range(0, len(text), 900)))
    assert sum(len(file.events or []) for file in decode_pieces(str(path), exact=False)) == len(training().events)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[:-40], id="cut short"),
        pytest.param(lambda text: text.replace('"ph": "X"', '"ph": "X', 1), id="a quote is missing"),
        pytest.param(lambda text: "[" + text.split("[", 1)[1].rsplit("]", 1)[0] + "]", id="a bare list"),
        pytest.param(lambda text: text.replace("traceEvents", "events"), id="another key"),
        pytest.param(lambda text: text.encode("utf-16"), id="another encoding"),
        pytest.param(lambda text: text + "}", id="something after the end"),
    ],
)
def test_anything_else_is_read_as_a_whole(tmp_path, damage):
    path = write(tmp_path, damage(training().text()))
    with pytest.raises(NotInPiecesError):
        list(decode_pieces(str(path), exact=False))
    assert len(read_trace(path)) > 0


def test_a_packed_file_that_ends_early(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(training().text().encode())[:-20])
    with pytest.raises(NotInPiecesError):
        list(decode_pieces(str(path), exact=False))
    assert codes(read_trace(path))["truncated_gzip"] == 1


def test_objects_inside_arguments_are_not_cut(tmp_path):
    """What looks like the end of an event is in one: such a piece is no JSON, and the whole file is read."""
    trace = TraceBuilder()
    for number in range(20):
        trace.range(f"op{number}", 10 * number, 10 * number + 5, nested=[{"ph": "X"}, {"name": "x" * 700}])
    text = on_one_line(trace)
    path = write(tmp_path, text)
    with pytest.raises(NotInPiecesError):
        list(decode_pieces(str(path), exact=False))
    assert [name for name, *_ in rows(read_trace(path))] == [f"op{number}" for number in range(20)]


def test_no_end_of_an_event_far_and_wide(tmp_path):
    trace = TraceBuilder().range("x" * 20_000, 0, 10).range("short", 20, 30)
    path = write(tmp_path, trace.text())
    with pytest.raises(NotInPiecesError):
        list(decode_pieces(str(path), exact=False))
    assert len(read_trace(path)) == 2


def test_what_is_wrong_is_counted_once(tmp_path):
    """A file that turns out damaged at its end is read twice; what was noted the first time is forgotten."""
    trace = training().range("without", 5, 5)
    trace.events[-1]["dur"] = -5000
    trace.events.insert(0, trace.events.pop())
    path = write(tmp_path, trace.text()[:-30])
    assert codes(read_trace(path)).get("negative_duration") == 1


def test_no_thread_is_left_when_reading_stops(tmp_path):
    import threading

    files = decode_pieces(str(write(tmp_path, training().text())), exact=False)
    next(files)
    files.close()
    assert threading.active_count() == 1 or not [
        thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")
    ]


def test_a_missing_file(tmp_path):
    with pytest.raises(NotInPiecesError):
        list(decode_pieces(str(tmp_path / "none.json"), exact=False))
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.json")


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the folder of real traces beside the checkout")
@pytest.mark.parametrize("name", ["mi300_torch_compile", "mi250_toy_training", "no_gpu_events", "h100_bert_small"])
def test_real_traces(monkeypatch, name):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 70_000)
    path = TRACES / f"{name}.pt.trace.json.gz"
    files = list(decode_pieces(str(path), exact=False))
    assert len(files) > 4
    whole = decode_file(gzip.decompress(path.read_bytes()), exact=False)
    assert isinstance(whole, File)
    assert [event for file in files for event in file.events or []] == whole.events
