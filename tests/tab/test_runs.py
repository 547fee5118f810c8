"""Which folders are runs, what they and their windows are called: tables."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lightning_perf.tab.files import Folder, StoredFile
from lightning_perf.tab.runs import WANTED, Named, RecordFacts, Run, label_of_file, named, natural, run_of

NS = "1712195495519689000"
OURS = f"rank0.{NS}.pt.trace.json.gz"


def stored(name: str) -> StoredFile:
    return StoredFile(f"/logs/{name}", 1, 1)


def folder(*names: str) -> Folder:
    return Folder(("a",), tuple(stored(name) for name in names))


def no_record(file: StoredFile) -> RecordFacts:
    raise AssertionError(file)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["version_0/perf"], ["version_0"]),
        (["version_0/perf/validate"], ["version_0/validate"]),
        (["version_0/perf/epochs"], ["version_0/perf/epochs"]),
        (["version_0/perf", "version_0"], ["version_0", "version_0/perf"]),
        (["perf"], ["logs"]),
        (["perf/test"], ["test"]),
        ([""], ["logs"]),
        (["version_10", "version_2", "version_1/perf"], ["version_1", "version_2", "version_10"]),
        (["b", "", "a"], ["a", "b", "logs"]),
    ],
)
def test_names(paths: list[str], names: list[str]) -> None:
    runs = [(Run(path, "", (), ()), tuple(filter(None, path.split("/")))) for path in paths]
    found = named(runs, "logs", None)
    assert [run.name for run in found] == names
    assert sorted(run.id for run in found) == sorted(path or "." for path in paths)
    grouped = [run.name for run in named(runs, "logs", "group")]
    assert sorted(grouped) == sorted("group" if name == "logs" else f"group/{name}" for name in names)


@pytest.fixture
def utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("host_4711.pt.trace.json", "host_4711"),
        ("rank3.pt.trace.json.gz", "rank 3"),
        (OURS, "rank 0 · 2024-04-04 01:51:35"),
        ("host_4711.1712195495519.pt.trace.json", "host_4711 · 2024-04-04 01:51:35"),
        ("host.1712195495.pt.trace.json", "host · 2024-04-04 01:51:35"),
        ("host.17121954.pt.trace.json", "host.17121954"),
        ("fit-" + "x" * 100 + "end.pt.trace.json", "fit-" + "x" * 16 + "…" + "x" * 17 + "end"),
    ],
)
@pytest.mark.usefixtures("utc")
def test_labels_of_files(name: str, label: str) -> None:
    assert label_of_file(name) == label


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a.pt.trace.json", True),
        ("a.pt.trace.json.gz", True),
        ("run.json", True),
        ("run.rank12.json", True),
        ("run.1712195495519689000.json", True),
        ("run.rank1.1712195495519689000.json", True),
        ("analysis.json", True),
        ("analysis.rank1.json", True),
        (".pt.trace.json", False),
        ("a.pt.trace.json.part", False),
        ("analysis_of_mine.json", False),
        ("my_run.json", False),
        ("a.json", False),
        ("report.html", False),
    ],
)
def test_files_of_runs(name: str, wanted: bool) -> None:
    assert (WANTED.fullmatch(name) is not None) == wanted


def test_numbers_in_names_count_by_their_value() -> None:
    assert sorted(["a10", "a9", "a", "10", "9", "a9b", "b"], key=natural) == ["9", "10", "a", "a9", "a9b", "a10", "b"]


def test_a_folder_of_traces_alone() -> None:
    run = run_of(folder("b.10.pt.trace.json", "b.9.pt.trace.json"), no_record)
    assert run is not None
    assert not run.recorded
    assert [window.id for window in run.windows] == ["b.9.pt.trace.json", "b.10.pt.trace.json"]
    assert run.default is run.windows[-1]
    assert all(window.current for window in run.windows)


@pytest.mark.parametrize("files", [(), ("run.json",)])
def test_a_folder_that_is_no_run(files: tuple[str, ...]) -> None:
    """Other programs have a run.json too."""
    assert run_of(folder(*files), lambda file: RecordFacts(file, is_analysis=False, problem="is none")) is None


def facts(name: str, *windows: Named, rank: int = 0, created: int = 1) -> RecordFacts:
    is_analysis = name.startswith("analysis")
    return RecordFacts(stored(name), is_analysis=is_analysis, rank=rank, created_unix_ns=created, windows=windows)


def run_with(names: list[str], *records: RecordFacts) -> Run:
    known = {record.file.name: record for record in records}
    run = run_of(folder(*names, *known), lambda file: known[file.name])
    assert run is not None
    return run


def test_windows_of_ranks() -> None:
    """Those of an analysis come with it, whether their trace is there or not; the first rank's last is the default."""
    run = run_with(
        ["one.pt.trace.json"],
        facts("analysis.rank1.json", Named("three.pt.trace.json", 1, (4, 9), 0), rank=1),
        facts("analysis.json", Named("one.pt.trace.json", 0, (4, 9), 0), Named("two.pt.trace.json", 0, (20, 20), 1)),
        facts("run.json", Named("one.pt.trace.json", 0, (4, 9))),
    )
    assert [window.label for window in run.windows] == ["rank 0 · steps 4-9", "rank 0 · step 20", "rank 1 · steps 4-9"]
    assert [window.trace is not None for window in run.windows] == [True, False, False]
    assert run.default is run.windows[1]
    assert [record.file.name for record in run.records] == ["analysis.json", "analysis.rank1.json"]
    assert run.recorded


def test_windows_of_earlier_recordings() -> None:
    """In the same folder, and the last one was interrupted: it has no analysis."""
    traces = [f"{name}.pt.trace.json" for name in ("earliest", "earlier", "last", "nobody's")]
    run = run_with(
        traces,
        facts("run.5.json", Named(traces[0], 0, (1, 2)), created=1),
        facts("analysis.json", Named(traces[1], 0, (1, 2), 0), created=2),
        facts("run.6.json", Named(traces[1], 0, (1, 2)), created=2),
        facts("run.json", Named(traces[2], 0, (1, 2)), Named("lost.pt.trace.json", 0, (3, 4)), created=3),
    )
    assert [window.id for window in run.windows] == [traces[3], traces[0], traces[1], traces[2]]
    assert [window.label for window in run.windows[1:]] == [
        "rank 0 · steps 1-2",
        "rank 0 · steps 1-2 (2)",
        "rank 0 · steps 1-2 (3)",
    ]
    assert [window.current for window in run.windows] == [False, False, False, True]
    names = [window.record and window.record.file.name for window in run.windows]
    assert names == [None, "run.5.json", "analysis.json", "run.json"]
    assert [record.file.name for record in run.records] == ["run.json"]


def test_a_broken_record_is_listed_beside_the_traces() -> None:
    broken = RecordFacts(stored("analysis.json"), is_analysis=True, problem="is cut short")
    run = run_with(["one.pt.trace.json"], broken)
    assert [window.label for window in run.windows] == ["analysis.json cannot be read", "one"]
    assert run.default is run.windows[1]
    alone = run_with([], broken)
    assert alone.default is alone.windows[0]
    assert alone.recorded


def test_names_that_are_no_text_can_be_sent() -> None:
    run = run_of(folder("\udcff.pt.trace.json"), no_record)
    assert run is not None
    assert run.windows[0].id.encode() == b"\\udcff.pt.trace.json"
