"""What a page is made of: stored records, traces, both; all ranks; two runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.tab.jobs import Jobs
from tests.tab.server import TRACES, Server, record, write_trace
from tests.traces import write

Serve = Callable[..., Server]
ONE, TWO = "rank0.1.pt.trace.json.gz", "rank0.2.pt.trace.json.gz"


def no_analysis(*_: object, **__: object) -> Any:
    raise AssertionError("a trace was analysed")


@pytest.fixture
def stored_only(serve: Serve) -> Callable[[Path], Server]:
    """A server that must not analyse traces."""
    return lambda logdir: serve(logdir, jobs=Jobs(no_analysis))


def page(server: Server, window: str = "", run: str = "perf") -> dict[str, Any]:
    answer = server.settled("/page", run=run, window=window)
    assert answer["state"] == "ready", answer
    return answer["page"]


def test_a_stored_analysis_is_read(tmp_path: Path, stored_only: Callable[[Path], Server]) -> None:
    analysis = record(tmp_path / "perf", ONE, TWO)
    server = stored_only(tmp_path)
    assert [window["label"] for window in server.runs()["runs"][0]["windows"]] == [
        "rank 0 · steps 4-6",
        "rank 0 · steps 14-16",
    ]
    assert page(server, ONE)["place"] == 0
    assert page(server) == page(server, TWO)
    shown = page(server, TWO)
    assert (shown["place"], shown["traces"], shown["model"]) == (1, [ONE, TWO], "ResNet")
    assert shown["rules"] == [finding.rule for finding in analysis.findings]


def test_a_stored_analysis_without_its_traces(tmp_path: Path, stored_only: Callable[[Path], Server]) -> None:
    record(tmp_path / "perf", ONE, drawn=False)
    (tmp_path / "perf" / ONE).unlink()
    server = stored_only(tmp_path)
    server.runs()
    assert page(server)["traces"] == [ONE]
    assert server.get("/trace", run="perf", window=ONE).status_code == 404


def test_a_window_of_an_older_version_is_analysed_anew(serve: Serve, tmp_path: Path) -> None:
    """The rest of its record stays."""
    analysis = record(tmp_path / "perf", ONE, TWO, drawn=False)
    server = serve(tmp_path)
    server.runs()
    shown = page(server, ONE)
    assert server.states
    assert (shown["place"], shown["traces"], shown["model"]) == (0, [ONE, TWO], "ResNet")
    assert shown["rules"] == [finding.rule for finding in analysis.findings]


def test_a_window_of_an_older_version_whose_trace_is_broken_is_shown_as_stored(serve: Serve, tmp_path: Path) -> None:
    record(tmp_path / "perf", ONE, drawn=False)
    write(tmp_path / "perf", "", ONE)
    server = serve(tmp_path)
    server.runs()
    assert page(server)["traces"] == [ONE]


def test_a_trace_that_its_folder_s_record_does_not_name(serve: Serve, tmp_path: Path) -> None:
    record(tmp_path / "perf", ONE)
    write_trace(tmp_path / "perf", TWO)
    server = serve(tmp_path)
    server.runs()
    shown = page(server, TWO)
    assert (shown["traces"], shown["model"], shown["place"]) == ([TWO], None, 0)


def test_a_run_that_was_interrupted(serve: Serve, tmp_path: Path) -> None:
    """It has its facts and its loop, and the trace is analysed."""
    record(tmp_path / "perf", ONE, analyzed=False)
    server = serve(tmp_path)
    assert server.runs()["runs"][0]["recorded"]
    shown = page(server)
    assert (shown["traces"], shown["model"], shown["loop"]) == ([ONE], "ResNet", False)


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_run_without_a_trace(serve: Serve, tmp_path: Path, analyzed: bool) -> None:
    record(tmp_path / "perf", analyzed=analyzed)
    server = serve(tmp_path)
    assert server.runs()["runs"][0]["windows"] == []
    shown = page(server)
    assert (shown["traces"], shown["model"], shown["place"]) == ([], "ResNet", -1)


def test_an_earlier_run_in_the_same_folder_has_its_own_facts(serve: Serve, tmp_path: Path) -> None:
    record(tmp_path / "perf", ONE, created=1, analyzed=False, model="Earlier")
    record(tmp_path / "perf", TWO, created=2, model="Later")
    server = serve(tmp_path)
    server.runs()
    assert (page(server, ONE)["model"], page(server, ONE)["traces"]) == ("Earlier", [ONE])
    assert (page(server)["model"], page(server)["traces"]) == ("Later", [TWO])


@pytest.mark.parametrize(
    "content", ["", "{", '{"schema": 1}', "[]", '{"run": null, "loop": null, "windows": 3}', "[" * 100_000, "\x00\xff"]
)
def test_a_broken_analysis(serve: Serve, tmp_path: Path, content: str) -> None:
    """Says what is wrong, and the traces beside it can be looked at."""
    write_trace(tmp_path / "perf", ONE)
    (tmp_path / "perf/analysis.json").write_text(content, "latin-1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/analysis.json").write_text(content, "latin-1")
    server = serve(tmp_path)
    (other, run) = sorted(server.runs()["runs"], key=lambda run: run["id"])
    assert [window["id"] for window in run["windows"]] == ["analysis.json", ONE]
    assert page(server, ONE)["traces"] == page(server)["traces"] == [ONE]
    for name, window in ((run["id"], "analysis.json"), (other["id"], "")):
        failed = server.settled("/page", run=name, window=window)
        assert failed["state"] == "failed"
        assert str(tmp_path) in failed["message"]
        assert "\n" not in failed["message"]
    assert server.settled("/ranks", run="perf")["page"]["traces"] == [ONE]


def test_a_broken_trace_leaves_the_others_usable(serve: Serve, tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "run", "a.pt.trace.json.gz").read_bytes()
    (tmp_path / "run/b.pt.trace.json.gz").write_bytes(whole[:60])
    (tmp_path / "run/c.pt.trace.json").touch()
    server = serve(tmp_path)
    server.runs()
    for name in ("b.pt.trace.json.gz", "c.pt.trace.json"):
        failed = server.settled("/page", run="run", window=name)
        assert failed["state"] == "failed"
        assert name in failed["message"]
    assert page(server, "a.pt.trace.json.gz", run="run")["traces"] == ["a.pt.trace.json.gz"]


def test_a_file_that_changes_is_analysed_anew(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, "", "a.pt.trace.json")
    server = serve(tmp_path)
    server.runs()
    assert server.settled("/page", run=".")["state"] == "failed"
    write_trace(tmp_path, "a.pt.trace.json")
    assert server.settled("/page", run=".")["state"] == "ready"


def test_ranks(serve: Serve, tmp_path: Path) -> None:
    """All of the last recording, under the facts of the first."""
    other, third = "rank1.1.pt.trace.json.gz", "rank0.3.pt.trace.json.gz"
    record(tmp_path / "perf", ONE, model="Zero")
    record(tmp_path / "perf", other, rank=1, model="One")
    write_trace(tmp_path / "perf", third)
    server = serve(tmp_path)
    server.runs()
    answer = server.settled("/ranks", run="perf")
    assert answer["page"]["kind"] == "ranks"
    assert (answer["page"]["traces"], answer["page"]["model"]) == ([ONE, other], "Zero")


def test_ranks_of_traces_alone(serve: Serve, tmp_path: Path) -> None:
    names = [f"rank{rank}.1.pt.trace.json.gz" for rank in (0, 1, 2, 10)]
    for rank, name in enumerate(names):
        write_trace(tmp_path / "run", name, rank=rank)
    write(tmp_path / "run", "", "rank3.1.pt.trace.json")
    server = serve(tmp_path)
    server.runs()
    answer = server.settled("/ranks", run="run")
    assert answer["page"]["traces"] == names
    percents = [state["percent"] for state in server.states]
    assert percents == sorted(percents)
    assert server.states[0]["file"].endswith("(0 of 5 traces are done)")


def test_ranks_of_which_none_can_be_read(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, "", "a.pt.trace.json")
    server = serve(tmp_path)
    server.runs()
    assert server.settled("/ranks", run=".")["state"] == "failed"


def test_compare(serve: Serve, tmp_path: Path) -> None:
    record(tmp_path / "version_0/perf", ONE, TWO)
    write_trace(tmp_path / "traces", ONE)
    server = serve(tmp_path)
    server.runs()
    answer = server.settled("/compare", base="version_0/perf", candidate="traces")
    assert answer["page"]["traces"] == [TWO, ONE]
    answer = server.settled("/compare", base="version_0/perf", base_window=ONE, candidate="traces")
    assert answer["page"]["traces"] == [ONE, ONE]
    made = server.pages.made
    assert server.settled("/compare", base="version_0/perf", base_window=ONE, candidate="traces") == answer
    assert server.pages.made == made


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A log directory in fsspec's own memory, with copies going to an empty folder that must stay so."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    record(tmp_path / "run/perf", ONE, drawn=False)
    write_trace(tmp_path / "traces", TWO)
    (tmp_path / "traces/cut.pt.trace.json").write_text("{")
    for path in (tmp_path / "run", tmp_path / "traces"):
        system.put(str(path), f"/logs/{path.name}", recursive=True)
    yield "memory://logs"
    system.rm("/logs", recursive=True)
    assert list(copies.iterdir()) == []


def test_a_log_directory_elsewhere(serve: Serve, memory: str) -> None:
    server = serve(memory)
    assert server.names() == ["run", "traces"]
    assert (page(server, run="run/perf")["model"], page(server, TWO, run="traces")["traces"]) == ("ResNet", [TWO])
    failed = server.settled("/page", run="traces", window="cut.pt.trace.json")
    assert failed["message"].startswith("memory://logs/traces/cut.pt.trace.json: ")
    assert server.get("/trace", run="traces", window=TWO).data[:2] == b"\x1f\x8b"


def test_a_log_directory_that_tensorboard_cannot_read(serve: Serve) -> None:
    pytest.importorskip("fsspec")
    answer = serve("nonsense://bucket/logs").runs()
    assert answer["runs"] == []
    assert answer["problem"].startswith("nonsense://bucket/logs: TensorBoard cannot read this log directory (")


@pytest.mark.skipif(not TRACES.exists(), reason=f"{TRACES} is not there: real traces are not part of the project")
def test_real_traces(serve: Serve, tmp_path: Path) -> None:
    """Of several vendors, with and without devices and steps, with the pages of the report."""
    from lightning_perf.tab.service import ReportPages

    names = ("mi300_owlv2_dataloader", "ddp_rank0", "ddp_rank1", "mtia_inference", "a100_triton", "cpu_only_step")
    for name in names:
        (tmp_path / f"{name}.pt.trace.json.gz").symlink_to((TRACES / f"{name}.pt.trace.json.gz").resolve())
    server = serve(tmp_path, pages=ReportPages())
    (run,) = server.runs()["runs"]
    assert len(run["windows"]) == len(names)
    for window in run["windows"]:
        answer = server.settled("/page", run=run["id"], window=window["id"])
        assert answer["state"] == "ready", answer
        assert answer["page"]["views"]
    for answer in (
        server.settled("/ranks", run=run["id"]),
        server.settled("/compare", base=run["id"], candidate=run["id"], base_window="ddp_rank0.pt.trace.json.gz"),
    ):
        assert answer["state"] == "ready", answer
        assert answer["page"]["blocks"]
