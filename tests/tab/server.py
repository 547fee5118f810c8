"""The plugin inside TensorBoard's own WSGI application, without a server, and runs for it to find."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from tensorboard.backend.application import TensorBoardWSGI
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client, TestResponse

from lightning_perf.measure.analysis import Analysis
from lightning_perf.pipeline import advised, analyze_trace
from lightning_perf.runinfo import ANALYSIS_FILE, RUN_FILE, MemoryPeaks, Record, WindowRecord, rank_file, write_json
from lightning_perf.tab.jobs import Jobs
from lightning_perf.tab.plugin import PerfPlugin
from tests.records import run_info
from tests.traces import TraceBuilder, training

TRACES = Path(__file__).parents[2] / "../shared/traces"
BASE = "/data/plugin/lightning_perf"


class Echo(Record, frozen=True, kw_only=True):
    """A page that tells what it was made of."""

    kind: str
    traces: list[str]
    place: int = -1
    drawn: bool = False
    model: str | None = None
    loop: bool = False
    rules: list[str] = []


@dataclass
class EchoPages:
    """Pages that are made at once, and counted."""

    made: int = 0

    def page(self, analysis: Analysis, window: int) -> Echo:
        self.made += 1
        return _echo("page", analysis, window)

    def ranks(self, analysis: Analysis) -> Echo:
        self.made += 1
        return _echo("ranks", analysis, -1)

    def compare(self, base: Analysis, candidate: Analysis) -> Echo:
        self.made += 1
        echo = _echo("compare", base, -1)
        return msgspec.structs.replace(
            echo, traces=[window.trace for side in (base, candidate) for window in side.windows]
        )


def _echo(kind: str, analysis: Analysis, place: int) -> Echo:
    windows = analysis.windows
    return Echo(
        kind=kind,
        traces=[window.trace for window in windows],
        place=place,
        drawn=bool(windows) and windows[place].timeline is not None,
        model=analysis.run.model if analysis.run is not None else None,
        loop=analysis.loop is not None,
        rules=[finding.rule for finding in analysis.findings],
    )


class NoData:
    """A data provider without event files."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: []


@dataclass
class Server:
    """A client of the application."""

    plugin: PerfPlugin
    pages: EchoPages = field(default_factory=EchoPages)
    states: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = Client(TensorBoardWSGI([self.plugin], data_provider=NoData()))

    def get(self, route: str, headers: dict[str, str] | None = None, **parameters: str) -> TestResponse:
        return self.client.get(BASE + route, query_string=parameters, headers=headers)

    def settled(self, route: str, seconds: float = 60, **parameters: str) -> dict[str, Any]:
        """The answer when nothing is being worked on any more; the states before it are kept."""
        until = time.monotonic() + seconds
        while True:
            response = self.get(route, **parameters)
            assert response.status_code == 200, response.text
            answer = response.json
            if answer["state"] != "working":
                return answer
            self.states.append(answer)
            assert time.monotonic() < until, answer
            time.sleep(0.01)

    def runs(self) -> dict[str, Any]:
        """The list, once everything was seen."""
        until = time.monotonic() + 30
        while (answer := self.get("/runs").json)["scanning"]:
            assert time.monotonic() < until
        return answer

    def names(self) -> list[str]:
        return [run["name"] for run in self.runs()["runs"]]


def serve(logdir: Path | str, *, spec: str = "", jobs: Jobs | None = None, pages: object = None) -> Server:
    given = SimpleNamespace(logdir="" if spec else str(logdir), logdir_spec=spec)
    echo = EchoPages()
    context = TBContext(logdir=given.logdir, flags=given)
    return Server(PerfPlugin(context, pages=pages or echo, jobs=jobs), echo)


def write_trace(folder: Path, name: str = "rank0.1712195495519689000.pt.trace.json.gz", *, rank: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return small(rank).write(folder, name)


def small(rank: int = 0) -> TraceBuilder:
    trace = training()
    trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return trace


def record(
    folder: Path,
    *traces: str,
    rank: int = 0,
    created: int = 1,
    analyzed: bool = True,
    drawn: bool = True,
    model: str = "ResNet",
) -> Analysis:
    """A run as ``PerfCallback`` leaves it in its folder, with its traces.

    ``analyzed`` is whether it came to its ``analysis.json``; ``drawn`` whether that holds timelines, as of now.
    """
    paths = [write_trace(folder, name, rank=rank) for name in traces]
    records = [
        WindowRecord(trace=name, first_step=10 * at + 4, last_step=10 * at + 6, rank=rank, global_step=0)
        for at, name in enumerate(traces)
    ]
    info = run_info(devices=[], memory=MemoryPeaks())
    info = msgspec.structs.replace(info, rank=rank, created_unix_ns=created, windows=records, model=model)
    write_json(folder / rank_file(RUN_FILE, rank), info, keep_older=True)
    windows = [msgspec.structs.replace(analyze_trace(path), trace=path.name) for path in paths]
    if not drawn:
        windows = [msgspec.structs.replace(window, timeline=None) for window in windows]
    analysis = advised(Analysis(run=info, loop=None, windows=windows))
    if analyzed:
        write_json(folder / rank_file(ANALYSIS_FILE, rank), analysis)
    return analysis
