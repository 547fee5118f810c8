"""Damaged traces: what is kept, what is said, and that nothing but a Trace or a TraceError ever comes out."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Trace
from lightning_perf.errors import TraceError
from tests.traces import TraceBuilder, codes, rows, training, write

SOUND = training().text()


def events(*lines: str) -> str:
    return '{"schemaVersion": 1, "traceEvents": [\n' + ",\n".join(lines) + "\n]}"


def event(name: str, ts: str = "1.000", dur: str = "2.000", more: str = "") -> str:
    return f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}{more}}}'


GOOD = event("good", "0.5")

CASES = {
    # what the file holds, the names that are kept, the notes
    "cut after an event": (events(GOOD, event("b"))[:-2].rstrip("\n"), ["good", "b"], {"truncated_json": 1}),
    "cut inside an event": (events(GOOD, event("b"))[:-40], ["good"], {"truncated_json": 1}),
    "cut inside the metadata after the events": (
        events(GOOD)[:-1] + ', "traceName": "tra',
        ["good"],
        {"truncated_json": 1},
    ),
    "bytes after the end": (events(GOOD) + "\0\0garbage", ["good"], {"stray_bytes": 7}),
    "bytes before the beginning": ("log line\n" + events(GOOD), ["good"], {"stray_bytes": 8}),
    "bytes between events": (events(GOOD, "@@@" + event("b")), ["good", "b"], {"stray_bytes": 3}),
    "a missing comma": (events(GOOD + event("b")), ["good", "b"], {}),
    "a comma too many": (events(GOOD, event("b"), ""), ["good", "b"], {}),
    "a byte order mark": ("\ufeff" + events(GOOD), ["good"], {}),
    "UTF-16": (b"\xff\xfe" + events(GOOD).encode("utf-16-le"), ["good"], {}),
    "a bare list": (f"[{GOOD}, {event('b')}]", ["good", "b"], {"bare_list": 1}),
    "a bare list that is cut": (f"[{GOOD}, {event('b')}", ["good", "b"], {"bare_list": 1, "truncated_json": 1}),
    "no list of that name": (
        events(GOOD).replace("traceEvents", "events"),
        ["good"],
        {"no_event_list": 1},
    ),
    "only the middle of a file": (
        f"{GOOD},\n{event('b')},\n",
        ["good", "b"],
        {"no_event_list": 1, "truncated_json": 1},
    ),
    "not an event": (events(GOOD, "17", "null", '"text"', "[1]"), ["good"], {"stray_bytes": 21}),
    "a quote in a name": (events(GOOD, event('<string "x">: f')), ["good", '<string "x">: f'], {"repaired_text": 1}),
    "a quote and a comma in a name": (
        events(GOOD, event('f("a", "b")')),
        ["good", 'f("a", "b")'],
        {"repaired_text": 1},
    ),
    "a quote in a list of texts": (
        events(GOOD, event("b", more=', "args": {"Input type": ["a "quoted" b", "float"], "External id": 4}')),
        ["good", "b"],
        {"repaired_text": 1},
    ),
    "a Windows path": (
        events(GOOD, event(r"C:\Users\me\x.py(3): f")),
        ["good", r"C:\Users\me\x.py(3): f"],
        {"repaired_text": 1},
    ),
    "a path that ends with a backslash": (
        events(GOOD, event("C:\\dir\\")),
        ["good", "C:\\dir\\"],
        {"repaired_text": 1},
    ),
    "control characters": (events(GOOD, event("a\tb\nc\x01")), ["good", "a\tb\nc\x01"], {"repaired_text": 1}),
    "bytes that are not UTF-8": (
        events(GOOD, event("caf@")).encode().replace(b"@", b"\xe9"),
        ["good", "caf\ufffd"],
        {"invalid_utf8": 1},
    ),
    "text that is UTF-8 in a file to be salvaged": (
        events(GOOD, event("größe→")) + "x",
        ["good", "größe→"],
        {"stray_bytes": 1},
    ),
    "NaN": (
        events(GOOD, event("b", more=', "args": {"rate": NaN, "x": -Infinity}')),
        ["good", "b"],
        {"not_a_number": 2},
    ),
    "nan as C writes it": (
        events(GOOD, event("b", more=', "args": {"rate": -nan, "x": inf, "y": N/A}')),
        ["good", "b"],
        {"not_a_number": 3},
    ),
    "NaN as a duration": (events(GOOD, event("b", dur="NaN")), ["good"], {"not_a_number": 1, "missing_duration": 1}),
    "a number of many digits": (events(GOOD, event("b", more=f', "x": {"9" * 5000}')), ["good", "b"], {}),
    "an integer over 64 bits as an argument": (
        events(GOOD, event("b", more=f', "args": {{"correlation": {2**64}}}')),
        ["good", "b"],
        {},
    ),
    "times over 64 bits": (
        events(
            GOOD,
            event("b", ts=str(10**30)),
            event("c", dur="1e300"),
            event("d", ts="9" * 5000),
            event("e", ts="1e999999999"),
        ),
        ["good"],
        {"out_of_range": 4, "unexpected_types": 1},
    ),
    "times of hundreds of digits": (
        events(GOOD, event("b", ts="9" * 400), event("c", dur="9" * 400), event("d", dur="1e15")),
        ["good"],
        {"out_of_range": 3},
    ),
    "a negative duration": (events(GOOD, event("b", dur="-1")), ["good"], {"negative_duration": 1}),
    "no duration": (events(GOOD, event("b").replace(', "dur": 2.000', "")), ["good"], {"missing_duration": 1}),
    "no start": (events(GOOD, event("b", ts="null")), ["good"], {"missing_timestamp": 1}),
    "times as text": (
        events(event("good", '"0.500"'), event("b", '"1.001"', '" 2 "')),
        ["good", "b"],
        {"text_timestamps": 3},
    ),
    "a start at zero among times since 1970": (
        events(event("good", "1712195495519689"), event("b", "0"), event("c", "1712195495519690")),
        ["good", "c"],
        {"zero_timestamps": 1},
    ),
    "a start at zero where it is a time": (events(event("good", "0"), event("b", "1")), ["good", "b"], {}),
    "wrong types": (
        events(GOOD, event("b", more=', "args": [1, 2]'), event("c").replace('"tid": 1', '"tid": [1]')),
        ["good", "b", "c"],
        {"unexpected_types": 1},
    ),
    "a name that is a number": (events(GOOD, event("b").replace('"b"', "12")), ["good", "12"], {"unexpected_types": 1}),
    "an unknown phase": (events(GOOD, event("b").replace('"X"', '"Y"')), ["good"], {"unreadable_events": 1}),
    "a phase that is a list": (events(GOOD, event("b").replace('"X"', "[1]")), ["good"], {"unreadable_events": 1}),
    "a broken number": (events(GOOD, event("b", ts="1.2.3"), event("c")), ["good", "c"], {"unreadable_events": 1}),
    "a missing brace": (
        events(GOOD, event("b", more=', "args": {"a": 1'), event("c")),
        ["good", "c"],
        {"unreadable_events": 1},
    ),
    "an event whose first key is not known": (
        events(GOOD, '{"id": 7, ' + event("b")[1:]) + "x",
        ["good", "b"],
        {"stray_bytes": 1},
    ),
    "objects like events inside an event": (
        events(GOOD, event("b", more=', "args": {"list": [{"name": "x"}, {"ts": 3}]}'), event("c")) + "x",
        ["good", "b", "c"],
        {"stray_bytes": 1},
    ),
    "nested too deeply": (
        events(GOOD, event("b", more=', "args": ' + "[" * 100_000 + "]" * 100_000), event("c")),
        ["good", "c"],
        {"unreadable_events": 1},
    ),
    "damaged metadata": (
        '{"schemaVersion": @, "distributedInfo": {"rank": 4}, ' + events(GOOD)[1:],
        ["good"],
        {"unreadable_metadata": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_damage(tmp_path, case):
    content, kept, notes = CASES[case]
    trace = read_trace(write(tmp_path, content))
    assert [name for name, *_ in rows(trace)] == kept
    assert codes(trace) == notes | {"no_device_operations": 1}
    assert all(note.message and "{" not in note.message for note in trace.quality)
    if "damaged metadata" in case:
        assert trace.rank == 4


def test_metadata_survives_damage_to_events(tmp_path):
    expected = read_trace(write(tmp_path, SOUND))
    trace = read_trace(write(tmp_path, SOUND.replace('"aten::mm"', '"aten::"mm"', 1)))
    assert codes(trace) == {"repaired_text": 1}
    assert (trace.rank, trace.world_size, trace.devices) == (3, 8, expected.devices)
    assert trace.start_unix_ns == expected.start_unix_ns


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_gzip_file_that_is_cut(tmp_path, share):
    trace = TraceBuilder()
    for number in range(3000):
        trace.op(f"op{number * 7919 % 3000}", number * 1000, number * 1000 + 500)
    packed = gzip.compress(trace.text().encode())
    (tmp_path / "t.json.gz").write_bytes(packed[: int(len(packed) * share)])
    cut = read_trace(tmp_path / "t.json.gz")
    assert codes(cut) == {"truncated_gzip": 1, "truncated_json": 1, "no_device_operations": 1}
    assert len(cut) > 0.8 * share * 3000
    assert rows(cut) == rows(trace.trace(tmp_path))[: len(cut)]


def test_a_gzip_file_without_its_checksum(tmp_path):
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(SOUND.encode())[:-8])
    trace = read_trace(tmp_path / "t.json.gz")
    assert codes(trace) == {"truncated_gzip": 1}
    assert len(trace) == 15


def test_a_gzip_file_of_several_members(tmp_path):
    half = len(SOUND) // 2
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(SOUND[:half].encode()) + gzip.compress(SOUND[half:].encode()))
    assert rows(read_trace(tmp_path / "t.json.gz")) == rows(read_trace(write(tmp_path, SOUND)))


NOT_TRACES = {
    "empty": b"",
    "blank": b" \n\0\0",
    "packed nothing": gzip.compress(b""),
    "a gzip header": gzip.compress(b"x")[:10],
    "text": b"hello world\n",
    "HTML": b"<!DOCTYPE html><html></html>",
    "a pickle": pickle.dumps({"traceEvents": []}),
    "a zip archive": b"PK\x03\x04rest",
    "a number": b"17",
    "a list of numbers": b"[1, 2, 3]",
    "an object without events": b'{"name": "x", "steps": [1]}',
    "no events": b'{"traceEvents": []}',
    "null events": b'{"traceEvents": null}',
    "events that are an object": b'{"traceEvents": {"ph": "M"}}',
    "no complete events": b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
    "only events without a start": b'{"traceEvents": [{"ph": "X", "name": "a", "dur": 3}]}',
    "a bare list of nothing": b"[]",
    "brackets": b"[" * 200_000,
    "braces": b'{"a":' * 200_000,
}


@pytest.mark.parametrize("case", NOT_TRACES)
def test_what_is_not_a_trace(tmp_path, case):
    path = tmp_path / "t.json"
    path.write_bytes(NOT_TRACES[case])
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "expected a torch.profiler trace" in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 300


@pytest.mark.parametrize("name", ["missing.json", ".", "nul\0byte"])
def test_what_is_not_a_file(tmp_path, name):
    with pytest.raises(TraceError, match=r"expected a torch\.profiler trace"):
        read_trace(tmp_path / name)


SMALL = training().text().encode()
INTACT = re.compile(r'\{"ph": "X".*?\n  \}', re.DOTALL)

mutations = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.floats(0, 1), st.integers(1, 400)),
        st.tuples(st.just("end"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
        st.tuples(
            st.just("insert"),
            st.floats(0, 1),
            st.one_of(
                st.binary(min_size=1, max_size=8), st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"NaN"])
            ),
        ),
    ),
    min_size=1,
    max_size=3,
)


def mutated(content: bytes, changes) -> bytes:
    for kind, place, what in changes:
        at = int(place * len(content))
        if kind == "cut":
            content = content[:at] + content[at + what :]
        elif kind == "end":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + what + content[at:]
        elif at < len(content):
            content = content[:at] + bytes([content[at] ^ what]) + content[at + 1 :]
    return content


def absolute(trace: Trace) -> list[tuple]:
    first = trace.start_ns + trace.start_unix_ns
    columns = (first, trace.duration_ns, trace.category, trace.correlation, trace.device, trace.stream)
    return [
        (trace.names[name], *values)
        for name, *values in zip(trace.name_id.tolist(), *(column.tolist() for column in columns), strict=True)
    ]


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations)
def test_mutated_traces_lose_only_what_was_hit(tmp_path, changes):
    damaged = mutated(SMALL, changes)
    path = write(tmp_path, damaged)
    try:
        trace = read_trace(path)
    except TraceError:
        trace = None
    # Events whose text is untouched, as (name, duration, correlation, ...); their start needs a zero that may be lost.
    sound = SMALL.decode()
    text = damaged.decode("latin-1")
    intact = [match for match in INTACT.findall(sound) if match in text]
    if not intact:
        return
    assert trace is not None
    kept = [values[:1] + values[2:] for values in absolute(trace)]
    for one in intact:
        raw = json.loads(one)
        args = raw["args"]
        wanted = (raw["name"], round(raw["dur"] * 1000), args.get("correlation", -1))
        assert any((values[0], values[1], values[3]) == wanted for values in kept), (wanted, codes(trace))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations)
def test_mutated_packed_traces(tmp_path, changes):
    path = tmp_path / "t.json.gz"
    path.write_bytes(mutated(gzip.compress(SMALL, mtime=0), changes))
    with suppress(TraceError):
        assert len(read_trace(path)) > 0


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text('{}[]":,\\ "phXtsdur0159.eE-n', max_size=200).map(str.encode)))
def test_any_bytes(tmp_path, content):
    for text in (content, b'{"traceEvents": [' + content, b'[{"ph": "X", "ts": 1, "dur": 1}, {"ph":' + content):
        with suppress(TraceError):
            assert len(read_trace(write(tmp_path, text))) > 0
