"""The benchmarks run and print their tables. What they measure is for people to read: no test asserts a time."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from tests.traces import TraceBuilder

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def tables(script: str, *arguments: str | Path) -> list[list[str]]:
    """First cell of every row below a header, one list for each table that a benchmark prints."""
    return [[row[0] for row in rows] for rows in cells(script, *arguments)]


def cells(script: str, *arguments: str | Path) -> list[list[list[str]]]:
    """Every row below a header, one list of rows for each table that a benchmark prints."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[list[str]]] = []
    for before, line in pairwise(["", *done.stdout.splitlines()]):
        if line.startswith("|") and not before.startswith("|"):
            found.append([])
        elif line.startswith("|") and not line.startswith("| :"):
            found[-1].append([cell.strip() for cell in line.split("|")[1:-1]])
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


def test_coverage_says_what_each_tool_finds(tmp_path: Path) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    trace = TraceBuilder().step(0, 0, 10_000_000).step(1, 10_000_000, 20_000_000)
    trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_000_000, 3_000_000)
    for correlation, (start, end) in enumerate([(4, 6), (5, 8), (11, 15)], start=1):
        trace.launch(correlation, start * 1_000_000 - 500_000, start * 1_000_000 - 400_000)
        trace.kernel(start * 1_000_000, end * 1_000_000, stream=correlation, correlation=correlation)
    (tmp_path / "own.pt.trace.json").write_text(trace.text())
    (tmp_path / "none.pt.trace.json").write_text("no trace")

    ((none, own),) = cells("coverage.py", tmp_path)

    found = "2 steps, 3 operations, idle 3.0 ms, loading 2.0 ms"
    name, file, ours, hta, tab = own
    assert (name, file, ours) == ("own", found, f"read: {found}")
    assert tab == "read: 2 steps, 3 operations, **loading 0.0 ms**"
    assert none[0] == "none"
    assert all(cell.startswith("fails: ") for cell in [*none[1:3], none[4]])
    assert none[2].startswith("fails: TraceError: none.pt.trace.json: ")  # its name, not where it lies
    if not find_spec("hta"):
        assert (hta, none[3]) == ("-", "-")


def test_compare_prints_its_table() -> None:
    (rows,) = cells("compare.py", "--pairs", "10", "--steps", "100")
    assert [row[0] for row in rows][:3] == ["recorded: mlp", "recorded: conv", "recorded: workers"]
    assert all(0 <= float(cell) <= 100 for row in rows for cell in row[2:])


def test_compare_records_runs(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import compare; from pathlib import Path; "
        "compare.STEPS = dict.fromkeys(compare.STEPS, 30); compare.record(Path(sys.argv[2]), 1); "
        "print({kind: len(pairs) for kind, pairs in compare.recorded(5, Path(sys.argv[2])).items()})"
    )
    command = [sys.executable, "-c", script, str(BENCHMARKS), str(tmp_path / "times.json.gz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "{'mlp': 1, 'conv': 1, 'workers': 1}", done.stderr


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_soak_compares_the_first_and_the_last_third() -> None:
    over_time, thirds = tables("soak.py", "--minutes", "0.08", "--every", "10", "--samples", "3")
    assert len(over_time) == 3
    assert thirds == ["resident mib", "threads", "open files", "children", "steps per second"]


def test_fuzz_prints_its_table(tmp_path: Path) -> None:
    path = TraceBuilder().step(0, 0, 1_000_000).op("aten::mm", 1_000, 2_000).write(tmp_path)
    (rows,) = cells("fuzz.py", path, "--inputs", "64", "--processes", "1", "--keep", tmp_path / "failing")
    assert len(rows) == 17
    assert rows[-1][:2] == ["all", "64"]
    assert all(int(row[1]) == sum(map(int, row[2:])) for row in rows)
    assert {row[-1] for row in rows} == {"0"}
    assert not (tmp_path / "failing").exists()
