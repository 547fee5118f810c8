"""The command line, in processes of its own as users run it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lightning_perf import Comparison, cli
from lightning_perf.measure.analysis import read_analysis
from lightning_perf.report.comparison import _NAMES
from lightning_perf.report.tables import TABLES
from lightning_perf.runinfo import write_json
from tests.comparison.test_compare import noise
from tests.comparison.test_compare import run as run_of
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


def test_table(trace: Path) -> None:
    done = run("analyze", trace, "--table", "operators", "--top", 1)
    assert (done.returncode, done.stderr) == (0, "")
    title, _, header, _, row = done.stdout.splitlines()
    assert title == f"{trace} · operators by self_device"
    assert header.split("  ")[0] == "name"
    assert row.split() == ["aten::mm", "100.0", "2.000", "2.000", "1.000", "100.0", "498.000", "498.000", "1", "2"]


def test_one_table_of_each_trace(trace: Path) -> None:
    done = run("analyze", trace, trace, "--table", "kernels")
    assert done.stdout.count("· kernels by total") == 2
    done = run("analyze", trace, trace, "--table", "kernels", "--csv", "--sort", "name")
    assert [line.split(",")[:3] for line in done.stdout.splitlines()] == [
        ["trace", "name", "total_us"],
        [str(trace), "gemm", "498.0"],
        [str(trace), "gemm", "498.0"],
    ]


def test_table_with_one_bad_input(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("nothing")
    done = run("analyze", tmp_path / "bad.json", trace, "--table", "copies")
    assert done.returncode == cli.FAILED
    assert done.stdout == f"{trace} · copies\n  The trace has no copies.\n"
    assert len(done.stderr.splitlines()) == 1


def test_group_by_shape(tmp_path: Path) -> None:
    built = TraceBuilder()
    for start, shapes in ((0, [[2, 3]]), (10, [[4]]), (20, [[2, 3]])):
        built.range("aten::relu", start, start + 5, cat="cpu_op", **{"Input Dims": shapes})
    done = run("analyze", built.write(tmp_path), "--table", "operators", "--group-by-shape")
    assert [(line.split("  ")[:2], line.split()[-1]) for line in done.stdout.splitlines()[4:]] == [
        (["aten::relu", "[[2, 3]]"], "2"),
        (["aten::relu", "[[4]]"], "1"),
    ]


def stacked() -> TraceBuilder:
    built = TraceBuilder().range("net.py(7): forward", 0, 100, cat="python_function")
    for start, shapes in ((0, [[2, 3]]), (10, [[4]]), (200, [[2, 3]])):
        built.range("aten::relu", start, start + 5, cat="cpu_op", **{"Input Dims": shapes})
    return built


def test_group_by_call_site(tmp_path: Path) -> None:
    path = stacked().write(tmp_path)
    done = run("analyze", path, "--table", "operators", "--group-by-call-site")
    assert done.stderr == ""
    assert [(line.split("  ")[:2], line.split()[-1]) for line in done.stdout.splitlines()[4:]] == [
        (["aten::relu", "net.py(7): forward"], "2"),
        (["aten::relu", "-"], "1"),
    ]
    done = run("analyze", path, "--table", "operators", "--group-by-call-site", "--group-by-shape", "--csv")
    assert [line.split(",")[1:4] for line in done.stdout.replace('"[[2, 3]]"', "[[2;3]]").splitlines()] == [
        ["name", "shapes", "call_site"],
        ["aten::relu", "[[2;3]]", "net.py(7): forward"],
        ["aten::relu", "[[2;3]]", ""],
        ["aten::relu", "[[4]]", "net.py(7): forward"],
    ]


def test_group_by_call_site_without_stacks(trace: Path, tmp_path: Path) -> None:
    done = run("analyze", trace, stacked().write(tmp_path), "--table", "operators", "--group-by-call-site")
    assert done.returncode == 0
    assert done.stderr == f"lightning-perf: no Python stacks in {trace}; record with with_stack=True\n"
    assert done.stdout.startswith(run("analyze", trace, "--table", "operators").stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sort", "self"], "argument --sort: only with --table"),
        (["--csv"], "argument --csv: only with --table"),
        (["--group-by-shape"], "argument --group-by-shape: only with --table"),
        (["--table", "kernels", "--group-by-shape"], "argument --group-by-shape: only with --table operators"),
        (["--group-by-call-site"], "argument --group-by-call-site: only with --table"),
        (["--table", "modules", "--group-by-call-site"], "argument --group-by-call-site: only with --table operators"),
        (["--table", "kernels", "--json", "-"], "argument --table: not with --json"),
        (["--table", "kernels", "--sort", "nope"], "kernels have no column 'nope'; expected one of: name, total, busy"),
        (["--table", "kernels", "--top", "0"], "argument --top: '0'; expected a number of rows, at least 1"),
        (["--table", "kernels", "--top", "x"], "argument --top: 'x'; expected a number of rows, at least 1"),
        (["--table", "nonsense"], "argument --table: invalid choice: 'nonsense'"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    done = run("analyze", "nowhere.json", *arguments)
    assert done.returncode == cli.USAGE
    assert message in done.stderr
    assert "usage: lightning-perf analyze" in done.stderr


def test_the_tables_of_the_command_line_are_those_of_the_report() -> None:
    assert cli._TABLES == TABLES


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


def test_report_of_traces_lies_beside_them(trace: Path) -> None:
    for path, expected in (
        (trace.parent, trace.parent / "report.html"),
        (trace, trace.with_name("rank0.report.html")),
    ):
        done = run("report", path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == str(expected)
        assert expected.read_bytes().startswith(b"<!doctype html>")


def test_report_of_a_run_is_made_from_what_it_stored(recorded_run: Path, tmp_path: Path) -> None:
    stored = recorded_run / "version_0" / "perf" / "analysis.json"
    copied = tmp_path / "logs" / "perf" / "analysis.json"
    copied.parent.mkdir(parents=True)
    copied.write_bytes(stored.read_bytes())  # the traces are gone
    for path in (tmp_path / "logs", copied.parent, copied):
        done = run("report", path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == str(copied.with_name("report.html"))
    done = run("report", copied, "--output", tmp_path / "elsewhere.html")
    assert done.stdout.strip() == str(tmp_path / "elsewhere.html")


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_report_of_something_else_is_one_line(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    if content is not None:
        path.write_text(content)
    done = run("report", path)
    assert done.returncode == cli.FAILED
    assert done.stdout == ""
    assert done.stderr.startswith(f"lightning-perf: {path}: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def two_runs(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of a run and of one whose steps take a fifth longer."""
    for name, factor, seed in (("before", 1.0, 1), ("after", 1.2, 2)):
        write_json(tmp_path / name / "perf" / "analysis.json", run_of(10_000 * factor * noise(100, seed)))
    return tmp_path / "before", tmp_path / "after"


def test_report_of_nothing_writes_nothing(tmp_path: Path) -> None:
    done = run("report", tmp_path / "nowhere" / "x.json")
    assert done.returncode == cli.FAILED
    assert list(tmp_path.iterdir()) == []


def test_compare(two_runs: tuple[Path, Path]) -> None:
    done = run("compare", *two_runs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("before -> after · 97 steps and 97 steps\n\n  Slower: a typical step takes ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fail-on-regression", "5%"], 3),
        (["--fail-on-regression", "50%"], 0),
        (["--fail-on", "memory_peak_rss:10%"], 0),
        (["--fail-on", "samples_per_second:10%"], 3),
        (["--fail-on", "step_time:50%", "--fail-on", "step_time_p95:1%"], 3),
        (["--fail-on", "gpu_busy_ratio:10%"], 1),
        (["--fail-on", "nonsense:10%"], 2),
        (["--fail-on-regression", "five"], 2),
    ],
)
def test_exit_codes_of_the_installed_command(two_runs: tuple[Path, Path], arguments: list[str], code: int) -> None:
    command = [str(Path(sys.executable).with_name("lightning-perf")), "compare", *map(str, two_runs), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.count("\n") == 1
    if code == 3:
        assert "fails  " in done.stdout


def test_compare_writes_json_and_markdown(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = run("compare", *two_runs, "--json", tmp_path / "c.json", "--markdown", tmp_path / "c.md")
    assert done.returncode == 0
    assert "Slower" in done.stdout
    assert msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Comparison).step.verdict == "slower"
    assert (tmp_path / "c.md").read_text().startswith("### before → after\n\n**Slower")
    assert run("compare", *two_runs, "--json", "-").stdout.startswith("{")


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_compare_with_something_else_is_one_line(
    two_runs: tuple[Path, Path], content: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "analysis.json"
    if content is not None:
        path.write_text(content)
    done = run("compare", two_runs[0], path)
    assert done.returncode == cli.FAILED
    assert done.stderr.startswith(f"lightning-perf: {path}: ")
    assert done.stderr.count("\n") == 1


def test_the_command_lines_metrics_are_the_comparisons() -> None:
    assert set(cli._METRICS) == set(_NAMES)


def in_process(*arguments: object) -> int:
    return cli.main([str(one) for one in arguments])


FAULTS = {
    PermissionError(13, "Permission denied", "x.json"): "x.json: Permission denied; check that it can be read",
    OSError(5, "Input/output error"): "Input/output error; check that it can be read and written",
    MemoryError(): "not enough memory for this; analyse fewer or smaller traces",
    ZeroDivisionError(
        "division by zero"
    ): "failed with ZeroDivisionError (division by zero); this is a bug: run it again with --debug",
    AssertionError("two\nlines \x1b[31m"): r"failed with AssertionError (two\nlines \x1b[31m); this is a bug",
}


@pytest.mark.parametrize("command", [("analyze", "x"), ("compare", "x", "y"), ("report", "x")], ids=lambda one: one[0])
@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_any_fault_is_one_line(monkeypatch, capsys, command: tuple[str, ...], error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, f"{command[0]}_command", fail)
    assert in_process(*command) == cli.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lightning-perf: {FAULTS[error]}")
    for arguments in (("--debug", *command), (*command, "--debug")):
        with pytest.raises(type(error)):
            in_process(*arguments)


def test_ctrl_c_is_quiet(monkeypatch, capsys) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "analyze_command", interrupted)
    assert in_process("analyze", "x") == 130
    assert capsys.readouterr().err == ""


def test_debug_shows_the_traceback() -> None:
    plain, debug = run("analyze", "nowhere.json"), run("analyze", "nowhere.json", "--debug")
    assert plain.returncode == debug.returncode == cli.FAILED
    assert "Traceback" not in plain.stderr
    base = run("compare", "nowhere.json", "nowhere.json", "--debug")
    assert "Traceback" in base.stderr
    assert base.returncode == 1


@pytest.mark.parametrize("command", ["analyze", "compare", "report"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "dangling", "loop", "bomb", "nested"])
def test_no_path_gives_a_traceback(command: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt.trace.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("dangling", "loop", "device"):
        path.symlink_to({"dangling": tmp_path / "nowhere", "loop": path, "device": Path("/dev/zero")}[kind])
    else:
        path.write_bytes(gzip.compress(b" " * 2**27) if kind == "bomb" else b"[" * 100_000)
    done = run(command, path, *([path] if command == "compare" else []))
    assert done.returncode == cli.FAILED
    (line,) = done.stderr.splitlines()
    assert line.startswith("lightning-perf: ")
    assert str(path) in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full(trace: Path) -> None:
    command = f"{sys.executable} -m lightning_perf.cli analyze {trace} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == cli.FAILED
    (line,) = done.stderr.splitlines()
    assert line.startswith("lightning-perf: ")
    assert "No space left on device" in line


NASTY = "a\x1b[31m\x07\u202e\x9b2J\r<b>../../x"


def test_nothing_that_a_terminal_obeys_is_printed(tmp_path: Path) -> None:
    """Names in a trace and names of files can be anything: the console shows their control characters as text."""
    built = TraceBuilder().step(1, 0, 1_000_000).op(NASTY, 1_000, 2_000).launch(5, 1_100, 1_500)
    built.range("enumerate(DataLoader)#" + NASTY, 3_000, 4_000)
    built.kernel(2_000, 500_000, correlation=5, name=NASTY).step(2, 1_000_000, 2_000_000)
    built.metadata["deviceProperties"] = [{"id": 0, "name": NASTY}]
    path = built.write(tmp_path, "x\n\x1b[2J\x9b.json")
    tables = [["--table", name, *more] for name in ("operators", "kernels", "gaps") for more in ([], ["--csv"])]
    for arguments in (["--all-findings"], *tables):
        done = run("analyze", path, *arguments)
        assert done.returncode == 0, done.stderr
        assert not cli._CONTROLS.search(done.stdout + done.stderr)
    for arguments in (["analyze", path.with_name("no\nwhere\x1b[2J")], ["compare", path, tmp_path / "\x1b[2J"]):
        done = run(*arguments)
        (line,) = done.stderr.splitlines()
        assert "\\x1b[2J" in line


def test_a_terminal_without_unicode_and_a_name_that_is_not_utf8(trace: Path) -> None:
    path = os.fsencode(trace.parent) + b"/caf\xe9.json.gz"
    trace.rename(os.fsdecode(path))
    command = [sys.executable.encode(), b"-m", b"lightning_perf.cli", b"analyze", path]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"caf\\xe9.json.gz" in done.stdout


def test_a_process_that_fails_is_one_line(monkeypatch, capsys, trace: Path, tmp_path: Path) -> None:
    """Large traces are analysed in processes of their own, whose traceback is not for everybody."""
    failing = tmp_path / "python"
    failing.write_text(
        "#!/bin/sh\nprintf 'Traceback (most recent call last):\\n  File x\\nMemoryError: none\\n' >&2\nexit 1\n"
    )
    failing.chmod(0o755)
    monkeypatch.setattr("lightning_perf.pipeline.WORTH_A_PROCESS_BYTES", 1)
    monkeypatch.setattr("lightning_perf.pipeline.os.cpu_count", lambda: 2)
    monkeypatch.setattr(sys, "executable", str(failing))
    assert in_process("analyze", trace, trace) == cli.FAILED
    said = (
        f"lightning-perf: {trace}: the process that analysed it failed (MemoryError: none); try it alone with --debug\n"
    )
    assert capsys.readouterr().err == said * 2
