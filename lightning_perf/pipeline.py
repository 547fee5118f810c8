"""The one place where stages are chained: trace files -> decode -> measure -> Analysis."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from lightning_perf.errors import TraceError
from lightning_perf.runinfo import ANALYSIS_FILE, RUN_FILE, read_run

if TYPE_CHECKING:
    from lightning_perf.comparison.records import Comparison
    from lightning_perf.measure.analysis import Analysis, Window
    from lightning_perf.runinfo import RunInfo

TRACE_PATTERNS = ("*.pt.trace.json", "*.pt.trace.json.gz")
"""Names of traces inside a folder: what torch's and our handlers write, and what torch-tb-profiler reads."""

RANK_FILES = "run.rank*.json"
RANK_ANALYSES = "analysis.rank*.json"

AnalysisStage = Literal["reading", "measuring"]
Progress = Callable[[AnalysisStage, "int | None"], None]
"""Told what is done with a trace, and how much of that, percent. None where that is not known."""

_WITH_PARENT = "with_parent"

WORTH_A_PROCESS_BYTES = 1 << 18
"""A packed trace of this size takes longer to analyse than a process takes to start (some 0.15 s)."""


def analyze(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    on_error: Callable[[TraceError], None] | None = None,
    by_shape: bool = False,
    by_call_site: bool = False,
    all_rows: bool = False,
) -> Analysis:
    """Analyse a trace file, a folder of traces (searched with its subfolders), or several of them.

    Where a single folder holds the ``run.json`` of a run, its facts and loop table are part of the result.

    Args:
        path: file or folder, or several.
        on_error: called for each trace that cannot be read, which is then left out. Without it the first
            such trace raises.
        by_shape: one row of the operators for each combination of input shapes that the trace recorded.
        by_call_site: one row of the operators for each function of the user's code that called them, by the Python
            stacks that the trace recorded (``with_stack``). A window without has the note ``no_python_stacks``.
        all_rows: keep all operators, kernels and modules; else the cheapest are summed in one row of each.

    Returns:
        One Analysis with one window per trace, in the order of the paths and of names within a folder.

    Raises:
        TraceError: a trace cannot be read (without ``on_error``), a path does not exist, or a folder holds none.
        RecordError: the folder's ``run.json`` is damaged.
    """
    from lightning_perf.measure.analysis import Analysis
    from lightning_perf.measure.loop import measure_loop

    paths = [Path(path)] if isinstance(path, (str, os.PathLike)) else [Path(item) for item in path]
    run = _run_of(paths[0]) if len(paths) == 1 else None
    traces: list[Path] = []
    for item in paths:
        try:
            traces += find_traces(item)
        except TraceError as error:
            _report(error, on_error)
    windows: list[Window] = []
    for result in _analyze_all(traces, by_shape=by_shape, by_call_site=by_call_site, all_rows=all_rows):
        if isinstance(result, TraceError):
            _report(result, on_error)
        else:
            windows.append(result)
    loop = measure_loop(run.loop) if run is not None and run.loop is not None else None
    return advised(Analysis(run=run, loop=loop, windows=windows))


def load(path: Path, *, on_error: Callable[[TraceError], None] | None = None) -> Analysis:
    """The analysis of a run as it is stored, with those of its other ranks; of traces without one as :func:`analyze`.

    Windows that an older version stored, without what figures draw, are measured again if their trace is there.

    Args:
        path: folder of a run or the log folder around it, ``analysis.json``, a trace, or a folder of traces.
        on_error: as for :func:`analyze`.

    Raises:
        TraceError: as for :func:`analyze`.
        RecordError: the stored analysis is damaged or of another version.
    """
    from lightning_perf.measure.analysis import read_analysis

    stored = stored_analysis(path)
    if stored is None:
        return analyze(path, on_error=on_error)
    analysis = read_analysis(stored)
    others = (
        [read_analysis(other) for other in sorted(stored.parent.glob(RANK_ANALYSES))]
        if stored.name == ANALYSIS_FILE
        else []
    )
    windows = [window for one in (analysis, *others) for window in one.windows]
    return msgspec.structs.replace(analysis, windows=[_drawable(window, stored.parent) for window in windows])


def compare(base: str | os.PathLike[str], candidate: str | os.PathLike[str]) -> Comparison:
    """What changed from one run to another, and whether it is more than noise.

    Args:
        base: folder of a run, ``analysis.json``, a trace, or a folder whose subfolders are repeats of one run.
        candidate: the same of the other side.

    Returns:
        The comparison: the typical step with an interval, figures of both sides, where the difference comes from.

    Raises:
        CompareError: they cannot be compared.
        TraceError: as for :func:`analyze`.
        RecordError: a stored analysis is damaged.
    """
    from lightning_perf.comparison.compare import compare as compare_analyses
    from lightning_perf.comparison.compare import label_of

    paths = Path(base), Path(candidate)
    before, after = ([load(one) for one in repeats(path)] for path in paths)
    return compare_analyses(before, after, (label_of(paths[0]), label_of(paths[1])))


def repeats(path: Path) -> list[Path]:
    """The runs in the subfolders of a folder that holds none itself; else the path alone."""
    if not path.is_dir() or stored_analysis(path) is not None or _run_of(path) is not None:
        return [path]
    found = [inside for inside in sorted(path.iterdir()) if inside.is_dir() and stored_analysis(inside) is not None]
    return found or [path]


def stored_analysis(path: Path) -> Path | None:
    """The ``analysis.json`` that a path names, or that lies in the folder or log folder that it names."""
    if path.suffix == ".json" and path.name.startswith(Path(ANALYSIS_FILE).stem):
        return path
    found = (folder / ANALYSIS_FILE for folder in (path, path / "perf"))
    return next((file for file in found if file.is_file()), None)


def _drawable(window: Window, folder: Path) -> Window:
    trace = folder / window.trace
    if window.timeline is not None or not trace.is_file():
        return window
    try:
        return msgspec.structs.replace(analyze_trace(trace), trace=window.trace)
    except TraceError:  # damaged since: what was measured then is still there
        return window


def advised(analysis: Analysis, folder: Path | None = None) -> Analysis:
    """The analysis with its findings, and with what the advice of an earlier run has brought.

    Args:
        analysis: of a run or of traces.
        folder: where a run's files are about to be written. The earlier run is the one whose ``analysis.json`` still
            lies there, or else the latest one beside it, in ``<log root>/version_*``.
    """
    from lightning_perf.errors import RecordError
    from lightning_perf.measure.analysis import read_analysis
    from lightning_perf.recommend.findings import recommend
    from lightning_perf.recommend.history import achieved
    from lightning_perf.recommend.rules import RULES

    analysis = msgspec.structs.replace(analysis, findings=recommend(analysis, RULES))
    earlier = _earlier(folder) if folder is not None else None
    if earlier is None:
        return analysis
    try:
        before = read_analysis(earlier)
    except RecordError:  # of another version, or cut short: no reason to fail a run
        return analysis
    return msgspec.structs.replace(analysis, achieved=achieved(before, analysis, str(earlier)))


def _earlier(folder: Path) -> Path | None:
    """The record of the run before the one that writes to a folder."""
    own = folder / ANALYSIS_FILE
    if own.is_file():
        return own
    version = next((parent for parent in folder.parents if parent.name.startswith("version_")), None)
    if version is None:
        return None
    inside = folder.relative_to(version) / ANALYSIS_FILE
    beside = [path for path in version.parent.glob(f"version_*/{inside}") if version not in path.parents]
    return max(beside, key=lambda path: path.stat().st_mtime_ns, default=None)


def _analyze_all(
    traces: list[Path], *, by_shape: bool, by_call_site: bool, all_rows: bool
) -> Iterator[Window | TraceError]:
    """A window or an error for each trace, in order; large ones side by side in processes of their own."""
    one = functools.partial(analyze_trace, by_shape=by_shape, by_call_site=by_call_site, all_rows=all_rows)
    elsewhere = functools.partial(analyze_elsewhere, by_shape=by_shape, by_call_site=by_call_site, all_rows=all_rows)
    sizes = [trace.stat().st_size if trace.is_file() else 0 for trace in traces]
    large = [trace for trace, size in zip(traces, sizes, strict=True) if size >= WORTH_A_PROCESS_BYTES]
    if len(large) < 2 or (os.cpu_count() or 1) < 2:
        yield from (_or_error(one, trace) for trace in traces)
        return
    with ThreadPoolExecutor(min(len(large), os.cpu_count() or 1)) as pool:
        begun = {trace: pool.submit(_or_error, elsewhere, trace) for trace in large}
        yield from (begun[trace].result() if trace in begun else _or_error(one, trace) for trace in traces)


def _or_error(analyze_one: Callable[[Path], Window], trace: Path) -> Window | TraceError:
    try:
        return analyze_one(trace)
    except TraceError as error:
        return error


def analyze_trace(
    path: Path,
    *,
    by_shape: bool = False,
    by_call_site: bool = False,
    all_rows: bool = False,
    what_if: bool = True,
    on_progress: Progress | None = None,
) -> Window:
    """Decode and measure one trace file, as :func:`analyze` does, and replay it with what could be changed.

    ``on_progress`` may be called in another thread.

    Raises:
        TraceError: the trace cannot be read.
    """
    from lightning_perf.decode.reader import read_trace
    from lightning_perf.measure.tally import ROWS
    from lightning_perf.measure.window import measure_trace

    def reading(share: float) -> None:
        if on_progress is not None:
            on_progress("reading", int(share * 100))

    trace = read_trace(path, inputs=by_shape, progress=None if on_progress is None else reading)
    if on_progress is not None:
        on_progress("measuring", None)
    limit = None if all_rows else ROWS
    return measure_trace(trace, by_shape=by_shape, by_call_site=by_call_site, limit=limit, what_if=what_if)


def analyze_elsewhere(
    path: Path,
    *,
    by_shape: bool = False,
    by_call_site: bool = False,
    all_rows: bool = False,
    on_progress: Progress | None = None,
    on_start: Callable[[Callable[[], None]], None] | None = None,
) -> Window:
    """The same as :func:`analyze_trace` in another process, so that this one's interpreter stays free.

    That process ends with this one, however this one ends.

    Args:
        path: the trace file.
        by_shape: as for :func:`analyze`.
        by_call_site: as for :func:`analyze`.
        all_rows: as for :func:`analyze`.
        on_progress: told what the other process does.
        on_start: called once with a function that kills the other process.

    Raises:
        TraceError: the trace cannot be read, or the process failed or was killed.
    """
    from lightning_perf.measure.analysis import Window

    given = {"by_shape": by_shape, "by_call_site": by_call_site, "all_rows": all_rows, _WITH_PARENT: True}
    flags = [name for name, wanted in given.items() if wanted]
    command = [sys.executable, "-m", "lightning_perf.pipeline", str(path), *flags]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as complaints,  # a pipe would stop the process once it is full
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=complaints) as process,  # noqa: S603 - our own
    ):
        try:
            if on_start is not None:
                on_start(process.kill)
            window = _follow(process.stdout or (), on_progress)
            process.wait()
        except BaseException:
            process.kill()
            raise
        complaints.seek(0)
        said = complaints.read().decode(errors="replace").strip()
    if process.returncode:
        if said.startswith("Traceback"):
            said = f"{path}: the process that analysed it failed ({said.splitlines()[-1]}); try it alone with --debug"
        raise TraceError(said or f"{path}: the process that analysed it ended with {process.returncode}; try it alone")
    return msgspec.json.decode(window, type=Window)


def analyze_aside(path: Path, *, on_start: Callable[[Callable[[], None]], None] | None = None) -> Window:
    """The same as :func:`analyze_trace`, in another process if the trace is large enough for that.

    Args:
        path: the trace file.
        on_start: called with a function that kills the other process, if there is one.

    Raises:
        TraceError: the trace cannot be read, or the process failed or was killed.
    """
    if not path.is_file() or path.stat().st_size < WORTH_A_PROCESS_BYTES:
        return analyze_trace(path)
    return analyze_elsewhere(path, on_start=on_start)


def _follow(lines: Iterable[bytes], on_progress: Progress | None) -> bytes:
    """What the other process writes: progress, which is passed on, and at last the window."""
    last = b""
    for last in lines:
        words = last.decode(errors="replace").split() if not last.startswith(b"{") else []
        for stage in get_args(AnalysisStage):
            if on_progress is not None and words[:1] == [stage]:
                on_progress(stage, int(words[1]) if len(words) > 1 else None)
    return last


def _child(path: str, *flags: str) -> int:
    """What the other process does: lines of progress and the window as JSON on stdout, or the error on stderr."""
    if _WITH_PARENT in flags:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    out = sys.stdout.buffer
    told = [""]

    def tell(stage: AnalysisStage, percent: int | None) -> None:
        line = stage if percent is None else f"{stage} {percent}"
        if line != told[0]:
            told[0] = line
            out.write(f"{line}\n".encode())
            out.flush()

    try:
        window = analyze_trace(
            Path(path),
            by_shape="by_shape" in flags,
            by_call_site="by_call_site" in flags,
            all_rows="all_rows" in flags,
            on_progress=tell,
        )
    except TraceError as error:
        sys.stderr.write(str(error))
        return 1
    out.write(msgspec.json.encode(window))
    return 0


def _end_with_parent() -> None:
    """End this process when the other end of its stdin is gone: the one that started it ended, or was killed."""
    while os.read(0, 1):
        pass
    os._exit(1)


def find_traces(path: Path) -> list[Path]:
    """The traces at a path: the file itself, or those in a folder and its subfolders, sorted by name.

    Raises:
        TraceError: there is nothing at the path, or no trace in the folder.
    """
    if not path.is_dir():
        return [path]
    found = sorted(trace for pattern in TRACE_PATTERNS for trace in path.rglob(pattern) if not _hidden(trace, path))
    if not found and _run_of(path) is None:
        raise TraceError(
            f"{path}: no trace in this folder; expected files named {' or '.join(TRACE_PATTERNS)}. "
            "Name a trace file, or a folder that PerfCallback or torch.profiler wrote."
        )
    return found


def _hidden(trace: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in trace.relative_to(folder).parts)


def _run_of(path: Path) -> RunInfo | None:
    """Facts of the run whose folder, or log folder, a path names; of its lowest rank if several wrote theirs."""
    for folder in (path, path / "perf"):
        records = [folder / RUN_FILE, *sorted(folder.glob(RANK_FILES))]
        found = next((record for record in records if record.is_file()), None)
        if found is not None:
            return read_run(found)
    return None


def _report(error: TraceError, on_error: Callable[[TraceError], None] | None) -> None:
    if on_error is None:
        raise error
    on_error(error)


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
