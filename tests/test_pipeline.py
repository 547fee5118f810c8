"""analyze(): files, folders and runs from anywhere."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from lightning_perf import PerfCallback, TraceError, analyze
from lightning_perf.measure.analysis import read_analysis
from lightning_perf.pipeline import advised, analyze_elsewhere, analyze_trace, find_traces, load
from lightning_perf.runinfo import write_json
from tests.processes import needs_proc, processes_with, wait_until
from tests.recommend.test_history import analysis as analysis_of
from tests.traces import TraceBuilder
from tests.training import Net, Plant, loader, quiet


def write_trace(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TraceBuilder().step(1, 0, 1_000).op("aten::mm", 0, 10).text())
    return path


def test_a_folder_is_searched_with_its_subfolders(tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / name) for name in ("a.pt.trace.json", "b/rank1.7.pt.trace.json")]
    write_trace(tmp_path / ".rank0.9.pt.trace.json.part")
    write_trace(tmp_path / ".hidden" / "c.pt.trace.json")
    write_trace(tmp_path / "expected.json")
    assert find_traces(tmp_path) == traces
    assert [window.rank for window in analyze(tmp_path).windows] == [None, 1]


def test_several_paths(tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / name) for name in ("b.json", "a.json")]
    assert [window.trace for window in analyze(traces).windows] == [str(trace) for trace in traces]


def test_a_bad_trace_raises_or_is_reported(tmp_path: Path) -> None:
    good = write_trace(tmp_path / "good.json")
    errors: list[TraceError] = []
    analysis = analyze([tmp_path / "missing.json", good], on_error=errors.append)
    assert len(analysis.windows) == len(errors) == 1
    with pytest.raises(TraceError, match=r"missing\.json"):
        analyze([tmp_path / "missing.json", good])


def test_the_folder_of_a_run_brings_its_facts(tmp_path: Path) -> None:
    callback = PerfCallback(dirpath=str(tmp_path / "perf"), summary=False)
    quiet(tmp_path, callbacks=[callback], logger=False).fit(Net(Plant()), loader(Plant(), 8))
    for path in (tmp_path, tmp_path / "perf"):
        analysis = analyze(path)
        assert analysis.run == callback.analysis.run
        assert analysis.loop == callback.analysis.loop
        assert [window.steps for window in analysis.windows] == [window.steps for window in callback.analysis.windows]


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "a.json")
    assert analyze_elsewhere(trace) == analyze_trace(trace)
    everything = {"by_shape": True, "by_call_site": True, "all_rows": True}
    assert analyze_elsewhere(trace, **everything) == analyze_trace(trace, **everything) != analyze_trace(trace)
    with pytest.raises(TraceError, match=r"missing\.json: "):
        analyze_elsewhere(tmp_path / "missing.json")


def test_another_process_tells_how_far_it_is(tmp_path: Path) -> None:
    trace = long_trace(tmp_path / "a.pt.trace.json.gz")
    told: list[tuple[str, int | None]] = []
    window = analyze_elsewhere(trace, on_progress=lambda stage, percent: told.append((stage, percent)))
    assert window == analyze_trace(trace)
    *reading, last = told
    assert last == ("measuring", None)
    assert {stage for stage, _ in reading} == {"reading"}
    percents = [percent for _, percent in reading]
    assert percents == sorted(set(percents))
    assert len(percents) > 2
    assert percents[-1] == 100


@needs_proc
def test_another_process_can_be_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")  # nobody ever writes to it
    started = time.monotonic()
    with pytest.raises(TraceError, match="ended with -9"):
        analyze_elsewhere(tmp_path / "a.json", on_start=lambda kill: kill())
    assert time.monotonic() - started < 20


@needs_proc
def test_another_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Also where that one is killed and can do nothing about it."""
    trace = tmp_path / "a.json"
    os.mkfifo(trace)
    code = (
        f"from pathlib import Path; from lightning_perf.pipeline import analyze_elsewhere as a; a(Path({str(trace)!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: processes_with(str(trace), but=parent.pid))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not processes_with(str(trace), but=parent.pid))


def long_trace(path: Path) -> Path:
    """Of several blocks of text."""
    trace = TraceBuilder().step(1, 0, 1_000_000_000)
    for number in range(60_000):
        trace.op(f"aten::{hashlib.sha256(str(number).encode()).hexdigest()}", number * 1_000, number * 1_000 + 500)
    return trace.write(path.parent, path.name)


def test_large_traces_are_analyzed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [write_trace(tmp_path / f"{number}.json") for number in range(3)]
    alone = analyze(traces)
    monkeypatch.setattr("lightning_perf.pipeline.WORTH_A_PROCESS_BYTES", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    errors: list[TraceError] = []
    together = analyze([*traces, tmp_path / "missing.json"], on_error=errors.append)
    assert together == alone
    assert len(errors) == 1


@pytest.mark.parametrize(("earlier", "now"), [("version_3/perf", "version_4/perf"), ("perf", "perf"), ("mine", "mine")])
def test_the_run_before_is_found(tmp_path: Path, earlier: str, now: str) -> None:
    """In the folder that is about to be written, or the latest of those beside it."""
    before = analysis_of(1_000, ["data.sync_loader"])
    if earlier.startswith("version_"):
        write_json(tmp_path / "version_1/perf/analysis.json", analysis_of(5_000, ["host.gc"]))
        os.utime(tmp_path / "version_1/perf/analysis.json", (1, 1))
    write_json(tmp_path / earlier / "analysis.json", before)
    found = advised(analysis_of(700, []), tmp_path / now).achieved
    assert found is not None
    assert (found.rule, found.achieved_us) == ("data.sync_loader", 300)
    assert found.analysis == str(tmp_path / earlier / "analysis.json")


def test_a_damaged_record_of_the_run_before_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "analysis.json").write_text("{")
    assert advised(analysis_of(700, []), tmp_path).achieved is None
    assert advised(analysis_of(700, []), tmp_path / "nothing").achieved is None


def test_load_measures_again_what_an_older_version_stored(recorded_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "perf"
    shutil.copytree(recorded_run / "version_0" / "perf", folder)
    stored = read_analysis(folder / "analysis.json")
    old = [msgspec.structs.replace(window, timeline=None) for window in stored.windows]
    write_json(folder / "analysis.json", msgspec.structs.replace(stored, windows=old))
    next(folder.glob(old[0].trace)).unlink()
    first, second = load(tmp_path).windows
    assert first == old[0]
    assert second == stored.windows[1]


def test_load_joins_the_ranks(recorded_run: Path, tmp_path: Path) -> None:
    stored = read_analysis(recorded_run / "version_0" / "perf" / "analysis.json")
    write_json(tmp_path / "analysis.json", stored)
    write_json(tmp_path / "analysis.rank1.json", stored)
    assert len(load(tmp_path).windows) == 4
    assert len(load(tmp_path / "analysis.rank1.json").windows) == 2
