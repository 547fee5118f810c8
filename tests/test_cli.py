"""The command line, in processes of its own as users run it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf import cli
from lightning_perf.measure.analysis import read_analysis
from tests.traces import TraceBuilder

ROOT = Path(__file__).parents[1]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightning_perf.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    built = TraceBuilder().step(1, 0, 1_000_000).op("aten::mm", 1_000, 2_000).launch(5, 1_100, 1_500)
    built.kernel(2_000, 500_000, correlation=5).step(2, 1_000_000, 2_000_000).op("aten::mm", 1_001_000, 1_002_000)
    path = tmp_path / "run" / "rank0.1.pt.trace.json.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(built.text().encode()))
    return path


def test_summary(trace: Path) -> None:
    done = run("analyze", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{trace} · 6 events · rank 0 · 2 complete steps" in done.stdout
    assert "device 0" in done.stdout


@pytest.mark.parametrize("target", ["-", "file"])
def test_json(target: str, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run("analyze", trace.parent, "--json", "-" if target == "-" else out)
    assert done.returncode == 0, done.stderr
    if target == "-":
        out.write_text(done.stdout)
    else:
        assert done.stdout == ""
    (window,) = read_analysis(out).windows
    assert Path(window.trace) == trace
    assert [step.duration_us for step in window.steps] == [1000.0, 1000.0]
    assert window.devices[0].busy_us == 498.0
    assert json.loads(out.read_text())["run"] is None


def test_one_bad_input_of_two(trace: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("<html>not a trace</html>")
    done = run("analyze", bad, trace, "--json", "-")
    assert done.returncode == cli.FAILED
    assert len(json.loads(done.stdout)["windows"]) == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"lightning-perf: {bad}")


@pytest.mark.parametrize("name", ["nowhere.json", "empty"])
def test_nothing_to_read_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("analyze", tmp_path / name)
    assert done.returncode == cli.FAILED
    (line,) = done.stderr.splitlines()
    assert name in line
    assert done.stdout.strip() == ""


def test_a_target_that_cannot_be_written(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("analyze", trace, "--json", tmp_path / "file" / "out.json")
    assert done.returncode == cli.FAILED
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["analyze"], ["nonsense"], ["analyze", "--nonsense", "x"]])
def test_wrong_usage(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == cli.USAGE
    assert "usage: lightning-perf" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_version() -> None:
    assert run("--help").returncode == 0
    assert run("--version").stdout.startswith("lightning-perf 0.")


def test_a_reader_that_goes_away(trace: Path) -> None:
    command = f"{sys.executable} -m lightning_perf.cli analyze {trace} --json - | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    assert len(done.stdout) == 10


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("truncated.json.gz", gzip.compress(b'{"traceEvents": [' + b" " * 5000)[:40]),
        ("empty.json", b""),
        ("zeros.json", b"\0" * 100),
        ("number.json", b"42"),
        ("text.json.gz", b"\x1f\x8b garbage"),
        ("no_events.json", b'{"traceEvents": []}'),
    ],
)
def test_no_input_gives_a_traceback(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = run("analyze", path)
    assert "Traceback" not in done.stderr
    assert done.returncode in (cli.OK, cli.FAILED)
    if done.returncode == cli.FAILED:
        (line,) = done.stderr.splitlines()
        assert name in line


REAL = ROOT / "../shared/traces"


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real traces are not here: {REAL}")
def test_all_real_traces_in_one_call() -> None:
    done = run("analyze", "../shared/traces", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    expected = json.loads((REAL / "expected.json").read_text())
    windows = {Path(window["trace"]).name: window for window in json.loads(done.stdout)["windows"]}
    assert windows.keys() == expected.keys()
    assert len(windows) == 19
    for name, truth in expected.items():
        found = {device["index"]: device for device in windows[name]["devices"]}
        assert found.keys() == truth["devices"].keys()
        for index, device in truth["devices"].items():
            assert {key: found[index][key] for key in device} == pytest.approx(device, abs=0.002)
        steps = {str(step["number"]): step for step in windows[name]["steps"]}
        assert steps.keys() == truth["steps"].keys()
        for number, step in truth["steps"].items():
            busy = step.pop("device_busy_us")
            assert steps[number]["device_busy_us"] == pytest.approx(busy, abs=0.002)
            assert {key: steps[number][key] for key in step} == pytest.approx(step, abs=0.002)
