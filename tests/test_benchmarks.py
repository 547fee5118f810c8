"""The benchmarks run and print their tables. What they measure is for people to read: no test asserts a time."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def tables(script: str, *arguments: str | Path) -> list[list[str]]:
    """First cell of every row below a header, one list for each table that a benchmark prints."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = []
    for before, line in pairwise(["", *done.stdout.splitlines()]):
        if line.startswith("|") and not before.startswith("|"):
            found.append([])
        elif line.startswith("|") and not line.startswith("| :"):
            found[-1].append(line.split("|")[1].strip())
    return found


def test_overhead_prints_its_tables() -> None:
    steps, switching, stalls = tables("overhead.py", "--quick")
    assert steps == [
        "nothing",
        "PerfCallback, outside its window",
        "a callback without a hook",
        "SimpleProfiler",
        "PyTorchProfiler, after its window",
        *(["DeviceStatsMonitor, every step"] if find_spec("psutil") else []),
        "PerfCallback, in its window",
        "PyTorchProfiler, in its window",
    ]
    assert switching == ["wall time", "CPU time"]
    assert stalls == [
        "torch.profiler, export_chrome_trace to .json",
        "torch.profiler, tensorboard_trace_handler(use_gzip=True)",
        "PerfCallback",
        "PyTorchProfiler",
    ]


def test_speed_prints_its_table() -> None:
    ((trace,),) = tables("speed.py", "--quick")
    assert trace.startswith("rank0.")
