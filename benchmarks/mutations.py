"""Small traces, and ways to damage them: what ``benchmarks/fuzz.py`` reads. The same number makes the same input."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.traces import TraceBuilder, training

Tree = Any
"""JSON as Python has it, with anything in any place."""

EXTREMES = [
    *(
        b"NaN -Infinity Infinity nan 1e400 -1e400 1e-400 -1 0 -0 0.0 1.5 2147483648 4294967296 9007199254740993 "
        b"8796093022207 8796093022208 3999999999999999 -3999999999999999 9223372036854775807 9223372036854775808 "
        b'-9223372036854775808 18446744073709551616 1e18 1e15 1712195495519689.123 null true "" "12" "x" [] {} [1] '
        b'{"a":1} 0x1f 1. .5 +1 01'
    ).split(),
    *(b"9" * 400, b"9" * 5000, b"0." + b"1" * 400, b"1e999999999", b'"sNaN"', b'" 3 "'),
]
TOKENS = (
    b'{ } [ ] , : " \\ \\" "}, { ]} }, null true {}, [], {"ph":"X"}, {"ph":"X","ts":1,"dur":2}, "traceEvents":['
    b' "args":{ \\u0000 \\ud800 \\x'
).split()
CONTROLS = [bytes([code]) for code in (0, 1, 8, 9, 10, 13, 27, 127)] + [
    *(b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x80", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"\x1b[31m", b"\xe2\x80\xae", b"\xc2\x9b"),
]
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e300, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40, "", "x", "12", "NaN", "-7.5"),
    *([], {}, [1], [[1, 2], "x", None], {"name": "x", "ph": "X"}, [[2**40, 2**40]], "ProfilerStep#1", "X", "\x1b[2J"),
    *("[[2, 3]]", "\ud83d", "a\nb", "<script>alert(1)</script>", "../../etc/passwd", "aten::mm", "kernel", "nccl:x"),
)
NUMBER = re.compile(rb"(?<=[:\[, ])-?\d+(?:\.\d+)?(?=[,\]}\s])")


# ------------------------------------------------------------------------------------------------ sound traces


def seeds(files: Sequence[Path]) -> list[bytes]:
    """Texts of small sound traces."""
    built = [training("epoch_us"), training("epoch_ns"), training("base"), amd(), with_memory(), with_modules()]
    texts = [trace.text() for trace in built]
    for text in (texts[2], texts[5]):
        whole = json.loads(text)
        events = whole.pop("traceEvents")
        texts += [
            json.dumps({**whole, "traceEvents": events}, separators=(",", ":")),
            json.dumps({"traceEvents": events, **whole}, indent=2),
            json.dumps(events),
        ]
    texts += [part for file in files for part in parts_of(file)]
    return [text.encode() for text in texts]


def amd() -> TraceBuilder:
    """A trace of a device that reports graph launches, copies, waits and ``hip`` calls."""
    trace = TraceBuilder("base").step(1, 0, 2_000_000).step(2, 2_000_000, 4_000_000)
    for number in range(8):
        zero = number * 500_000
        trace.launch(number + 1, zero + 1_000, zero + 9_000)
        trace.kernel(
            zero + 20_000, zero + 300_000, correlation=number + 1, name=f"Cijk_{number % 3}", stream=number % 2
        )
        trace.kernel(zero + 310_000, zero + 350_000, cat="gpu_memcpy", name="Memcpy HtoD (Pageable)", bytes=1 << 20)
        trace.range("hipDeviceSynchronize", zero + 10_000, zero + 320_000, cat="cuda_runtime")
    return trace


def with_memory() -> TraceBuilder:
    """A trace of allocations, copies and collectives on two devices."""
    trace = TraceBuilder("epoch_ns").step(7, 0, 900_000).step(8, 900_000, 1_800_000)
    for number in range(12):
        size = (-1) ** number * 4096 * (number + 1)
        trace.memory(number * 140_000, size, device_type=number % 2, allocated=8192 + number, reserved=1 << 20)
        trace.launch(number + 1, number * 140_000, number * 140_000 + 5_000)
        arguments = {"Collective name": "allreduce", "In msg nelems": 4096, "dtype": "BFloat16", "Group size": 8}
        trace.kernel(
            *(number * 140_000 + 6_000, number * 140_000 + 90_000),
            name="ncclDevKernel_AllReduce_Sum_bf16",
            device=number % 2,
            correlation=number + 1,
            **(arguments if number % 3 == 0 else {"blocks per SM": 3.5, "est. achieved occupancy %": 40}),
        )
        trace.range("nccl:all_reduce", number * 140_000, number * 140_000 + 4_000, **{"Process Group Name": "0"})
    return trace


def with_modules() -> TraceBuilder:
    """A trace of operators with inputs, forward and backward, modules and Python stacks."""
    trace = TraceBuilder("base").step(1, 0, 3_000_000).step(2, 3_000_000, 6_000_000)
    for number in range(6):
        zero = number * 900_000
        trace.range("[pl][module]torch.nn.modules.linear.Linear: net.0", zero + 5_000, zero + 300_000)
        trace.range("nn.Module: Linear_0", zero + 6_000, zero + 290_000, cat="python_function")
        trace.range("train.py(7): training_step", zero + 5_000, zero + 280_000, cat="python_function")
        shapes = {"Input Dims": [[64, 128], [128, 32]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
        trace.range(*("aten::mm", zero + 10_000, zero + 200_000), cat="cpu_op", **shapes, **{"Sequence number": number})
        trace.launch(number + 1, zero + 20_000, zero + 30_000)
        trace.kernel(zero + 40_000, zero + 260_000, correlation=number + 1, name="ampere_fp16_s16816gemm_fp16_64x64")
        backward = {"Sequence number": number, "Fwd thread id": 1}
        trace.range(
            *("autograd::engine::evaluate_function: MmBackward0", zero + 400_000, zero + 600_000),
            **(backward | {"cat": "cpu_op", "tid": 4712}),
        )
    return trace


def parts_of(file: Path, parts: int = 3, events: int = 60) -> Iterator[str]:
    """Small traces that hold some of a file's events, with its metadata."""
    content = file.read_bytes()
    whole = json.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    every = whole.pop("traceEvents")
    for part in range(parts):
        first = max(len(every) - events, 0) * part // max(parts - 1, 1)
        yield json.dumps({**whole, "traceEvents": every[first : first + events]}, indent=1)


# --------------------------------------------------------------------------------------------------- mutations


def flip_bytes(text: bytes, chance: random.Random) -> bytes:
    """Some bytes become others."""
    changed = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
    return bytes(changed)


def cut_short(text: bytes, chance: random.Random) -> bytes:
    """The end, or the beginning, is missing."""
    at = chance.randrange(len(text))
    return text[:at] if chance.random() < 0.7 else text[at:]


def move_spans(text: bytes, chance: random.Random) -> bytes:
    """A span is left out, doubled, or put elsewhere."""
    start = chance.randrange(len(text))
    span = text[start : start + chance.choice((1, 4, 30, 300))]
    rest = text[:start] + text[start + len(span) :]
    at = chance.randrange(len(rest) + 1)
    doing = chance.randrange(3)
    if doing == 0:
        return rest
    source = rest if doing == 1 else text
    return source[:at] + span * chance.choice((1, 1, 1, 50)) + source[at:]


def insert_tokens(text: bytes, chance: random.Random) -> bytes:
    """Syntax where none belongs."""
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(TOKENS) * chance.choice((1, 1, 1, 20)) + text[at:]
    return text


def insert_controls(text: bytes, chance: random.Random) -> bytes:
    """Control characters, escape sequences, bytes that are no UTF-8."""
    for _ in range(chance.choice((1, 1, 5))):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(CONTROLS) + text[at:]
    return text


def replace_numbers(text: bytes, chance: random.Random) -> bytes:
    """Extreme numbers, what is none, texts, lists."""
    found = list(NUMBER.finditer(text))
    for match in sorted(chance.sample(found, min(len(found), chance.choice((1, 1, 3, 30)))), key=lambda m: -m.start()):
        text = text[: match.start()] + chance.choice(EXTREMES) + text[match.end() :]
    return text


def nest(text: bytes, chance: random.Random) -> bytes:
    """Brackets in brackets."""
    at = chance.choice([match.start() for match in NUMBER.finditer(text)] or [0])
    depth = chance.choice((3, 3, 3, 100, 100, 100, 2000, 2000, 20_000))
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"ph":', b"}"), (b'[{"ts":', b"}]")))
    return text[:at] + opening * depth + b"1" + (closing * depth if chance.random() < 0.5 else b"") + text[at:]


def two_files(text: bytes, chance: random.Random) -> bytes:
    """One file after, or inside, another."""
    other = chance.choice(_seeds())
    at = chance.choice((len(text), chance.randrange(len(text))))
    return text[:at] + other + (text[at:] if chance.random() < 0.3 else b"")


def _change_json(
    text: bytes, chance: random.Random, change: Callable[[Tree, list[Tree], random.Random], Tree]
) -> bytes:
    """Change a sound trace as a tree; other text stays as it is."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return text
    events = whole.get("traceEvents") if isinstance(whole, dict) else whole
    if not isinstance(events, list) or not events:
        return text
    whole = change(whole, events, chance) or whole
    return json.dumps(whole, indent=chance.choice((None, 1)), ensure_ascii=chance.random() < 0.5).encode(
        errors="surrogatepass"
    )


def _places(value: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Every container and key of a tree."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def change_types(text: bytes, chance: random.Random) -> bytes:
    """Values of other types, and other values of the same type."""

    def change(whole: Tree, _events: list[Tree], chance: random.Random) -> None:
        places = list(_places(whole))
        for container, key in chance.sample(places, min(len(places), chance.choice((1, 2, 10, 40)))):
            container[key] = chance.choice(VALUES)

    return _change_json(text, chance, change)


def same_everywhere(text: bytes, chance: random.Random) -> bytes:
    """One key has the same extreme value in all events."""

    def change(_whole: Tree, events: list[Tree], chance: random.Random) -> None:
        known = [event for event in events if isinstance(event, dict)]
        keys = [("", key) for event in known for key in event]
        keys += [("args", key) for event in known if isinstance(event.get("args"), dict) for key in event["args"]]
        if not keys:
            return
        inside, key = chance.choice(sorted(set(keys)))
        numbers = [int(one) for one in EXTREMES if one.lstrip(b"-").isdigit() and len(one) < 30]
        value: Any = chance.choice((*VALUES, *numbers, *numbers))
        for event in known:
            holder = event.get("args") if inside else event
            if isinstance(holder, dict):
                holder[key] = value

    return _change_json(text, chance, change)


def drop_keys(text: bytes, chance: random.Random) -> bytes:
    """Keys are missing, or have other names."""

    def change(whole: Tree, _events: list[Tree], chance: random.Random) -> None:
        places = [(container, key) for container, key in _places(whole) if isinstance(container, dict)]
        for container, key in chance.sample(places, min(len(places), chance.choice((1, 3, 20)))):
            value = container.pop(key, None)
            if chance.random() < 0.3:
                container[chance.choice(("ph", "ts", "dur", "name", "args", "", key.upper(), key + "\x00"))] = value

    return _change_json(text, chance, change)


def move_events(text: bytes, chance: random.Random) -> bytes:
    """Whole events are missing, doubled (also thousands of times), or in another order."""

    def change(_whole: Tree, events: list[Tree], chance: random.Random) -> None:
        for _ in range(chance.choice((1, 3, 10))):
            at, other = chance.randrange(len(events)), chance.randrange(len(events))
            doing = chance.randrange(5)
            if doing == 0 and len(events) > 1:
                del events[at]
            elif doing == 1:
                events.insert(at, events[other])
            elif doing == 2:
                events[at], events[other] = events[other], events[at]
            elif doing == 3:
                chance.shuffle(events)
            elif len(events) < 500:
                events[at:at] = [events[other]] * chance.choice((5, 60, 400))

    return _change_json(text, chance, change)


def damage_gzip(text: bytes, chance: random.Random) -> bytes:
    """A packed file is cut, or some of its bytes are others."""
    packed = gzip.compress(text, mtime=0)
    return (cut_short if chance.random() < 0.4 else flip_bytes)(packed, chance)


def gzip_members(text: bytes, chance: random.Random) -> bytes:
    """A packed file of several members, some of them damaged, empty or no gzip."""
    cuts = sorted(chance.randrange(len(text)) for _ in range(chance.choice((0, 1, 3))))
    members = [gzip.compress(text[a:b], mtime=0) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for _ in range(chance.randrange(3)):
        odd = chance.choice((b"", b"\0" * 100, gzip.compress(b""), b"garbage", members[0][:20], zlib.compress(text)))
        members.insert(chance.randrange(len(members) + 1), odd)
    return b"".join(members)


KINDS: dict[str, Sequence[Callable[[bytes, random.Random], bytes]]] = {
    "bytes are others": (flip_bytes,),
    "cut short": (cut_short,),
    "spans missing, doubled, moved": (move_spans,),
    "stray syntax": (insert_tokens,),
    "control characters, no UTF-8": (insert_controls,),
    "extreme numbers": (replace_numbers,),
    "values of other types": (change_types,),
    "one value in all events": (same_everywhere,),
    "extremes, events by the hundred": (same_everywhere, same_everywhere, move_events),
    "keys missing": (drop_keys,),
    "events missing, doubled, moved": (move_events,),
    "nested deeply": (nest,),
    "two files": (two_files,),
    "gzip damaged": (damage_gzip,),
    "gzip of several members": (gzip_members,),
    "several of these": (),
}


def made(number: int, seed: int) -> tuple[str, bytes]:
    """An input: the kind of its mutation, and its bytes."""
    chance = random.Random(f"{seed} {number}")
    kind = list(KINDS)[number % len(KINDS)]
    changes = KINDS[kind] or [chance.choice(chance.choice(list(KINDS.values())) or [flip_bytes]) for _ in range(4)]
    content = chance.choice(_seeds())
    for change in changes:
        content = change(content, chance) if content else content
    packed = content.startswith(b"\x1f\x8b") or chance.random() < 0.7
    return kind, content if packed else gzip.compress(content, mtime=0)


_FILES: list[Path] = []


def use(files: Sequence[Path]) -> None:
    """Make inputs from pieces of these files as well."""
    if list(files) != _FILES:
        _FILES[:] = files
        _seeds.cache_clear()


@cache
def _seeds() -> list[bytes]:
    return seeds(_FILES)
