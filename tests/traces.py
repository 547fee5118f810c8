"""Small traces as torch.profiler writes them: every generation of times, several vendors."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Trace

Generation = Literal["epoch_us", "epoch_ns", "base"]

EPOCH_US = 1_712_195_495_519_689
BASE_NS = 1_711_964_646_000_000_000
BASE_US = 4_458_676_459_854  # above 2**42, where scaling a float64 rounds twice
HOST, MAIN, BACKWARD, DEVICE = 4711, 4711, 4712, 0


@dataclass
class TraceBuilder:
    """Collects events; all times are given in nanoseconds from a zero that ``generation`` decides."""

    generation: Generation = "base"
    events: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def range(self, name: str, start: int, end: int, *, cat: str = "user_annotation", tid: int = MAIN, **args: Any):
        """A range of the host."""
        return self.complete(name, start, end, cat=cat, pid=HOST, tid=tid, **args)

    def op(self, name: str, start: int, end: int, *, tid: int = MAIN):
        return self.range(name, start, end, cat="cpu_op", tid=tid)

    def step(self, number: int, start: int, end: int):
        return self.range(f"ProfilerStep#{number}", start, end)

    def launch(self, correlation: int, start: int, end: int, *, cat: str = "cuda_runtime", tid: int = MAIN):
        return self.range("cudaLaunchKernel", start, end, cat=cat, tid=tid, correlation=correlation)

    def kernel(
        self,
        start: int,
        end: int,
        *,
        name: str = "gemm",
        cat: str = "kernel",
        device: int = DEVICE,
        stream: int = 7,
        correlation: int = 0,
        **args: Any,
    ):
        args = {"device": device, "stream": stream, "correlation": correlation, **args}
        return self.complete(name, start, end, cat=cat, pid=device, tid=stream, **args)

    def memory(self, time: int, size: int, *, device_type: int = 1, device: int = 0, tid: int = MAIN, **totals: int):
        named = {"allocated": "Total Allocated", "reserved": "Total Reserved"}
        args = {"Bytes": size, "Device Type": device_type, "Device Id": device}
        args |= {named[key]: value for key, value in totals.items()}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": time, "pid": HOST, "tid": tid}
        self.events.append({**event, "args": args})
        return self

    def complete(self, name: str, start: int, end: int, *, cat: str, pid: Any, tid: Any, **args: Any):
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start}
        self.events.append({**event, "args": args})
        return self

    def text(self) -> str:
        """The file, written as kineto does: times as decimal text, one event after the other."""
        metadata = {"schemaVersion": 1, **self.metadata}
        if self.generation == "base":
            metadata["baseTimeNanoseconds"] = BASE_NS
        head = json.dumps(metadata)[:-1]
        return f'{head},\n  "traceEvents": [\n  ' + ",\n  ".join(map(self._event, self.events)) + "\n  ]\n}\n"

    def _event(self, event: dict[str, Any]) -> str:
        event = dict(event)
        times = "".join(f'"{key}": {self._time(key, event.pop(key))}, ' for key in ("ts", "dur") if key in event)
        args = event.pop("args")
        return f'{json.dumps(event)[:-1]},\n    {times}"args": {json.dumps(args)}\n  }}'

    def _time(self, key: str, nanoseconds: int) -> str:
        zero_us = 0 if key == "dur" else BASE_US if self.generation == "base" else EPOCH_US
        total = zero_us * 1000 + nanoseconds
        if self.generation == "epoch_us":
            assert total % 1000 == 0, "this generation has whole microseconds only"
            return str(total // 1000)
        sign = "-" if total < 0 else ""
        return f"{sign}{abs(total) // 1000}.{abs(total) % 1000:03d}"

    def write(self, folder: Path, name: str = "trace.pt.trace.json") -> Path:
        """Write the file, packed if its name ends with ``.gz``."""
        return write(folder, self.text(), name)

    def trace(self, folder: Path, name: str = "trace.pt.trace.json") -> Trace:
        return read_trace(self.write(folder, name))


def write(folder: Path, content: str | bytes, name: str = "trace.pt.trace.json") -> Path:
    """Any content as a file, packed if its name ends with ``.gz``."""
    content = content.encode() if isinstance(content, str) else content
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def rows(trace: Trace) -> list[tuple[str, str, int, int]]:
    """Name, category, start and duration of every event."""
    from lightning_perf.decode.trace import Category

    return [
        (trace.names[name], Category(category).name, start, duration)
        for name, category, start, duration in zip(
            trace.name_id.tolist(),
            trace.category.tolist(),
            trace.start_ns.tolist(),
            trace.duration_ns.tolist(),
            strict=True,
        )
    ]


def codes(trace: Trace) -> dict[str, int]:
    """Count of every quality note."""
    return {note.code: note.count for note in trace.quality}


def training(generation: Generation = "base") -> TraceBuilder:
    """Two steps with a batch and one without, launches on two threads, two devices' worth of streams."""
    trace = TraceBuilder(generation)
    trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": 3, "world_size": 8}
    trace.metadata["deviceProperties"] = [
        {"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 42505273344, "computeMajor": 8, "computeMinor": 0}
    ]
    for number, zero in ((4, 0), (5, 1_000_000)):
        trace.step(number, zero, zero + 1_000_000)
        trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", zero + 10_000, zero + 210_000)
        trace.op("aten::mm", zero + 300_000, zero + 400_000)
        trace.launch(number * 10 + 1, zero + 310_000, zero + 320_000)
        trace.launch(number * 10 + 2, zero + 500_000, zero + 510_000, cat="cuda_driver", tid=BACKWARD)
        trace.kernel(zero + 330_000, zero + 530_000, correlation=number * 10 + 1)
        trace.kernel(zero + 900_000, zero + 1_100_000, correlation=number * 10 + 2, name="ncclKernel", stream=9)
    trace.step(6, 2_000_000, 2_010_000)
    return trace
