"""The command line: ``lightning-perf COMMAND``. Imports neither torch nor lightning, and numpy only to analyse."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_perf import __version__
from lightning_perf.errors import ConfigError, PerfError

if TYPE_CHECKING:
    from lightning_perf.report.tables import TableName
    from lightning_perf.runinfo import Record

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

OK, FAILED, USAGE, REGRESSED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: fine; something failed; the command line was wrong; a limit was not kept; Ctrl+C was pressed."""

_CONTROLS: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal would obey, or that change the order of others, or that are none. Not the line's end."""

STEP_TIME: Final = "step_time"
_METRICS: Final = (
    STEP_TIME,
    "step_time_p95",
    "samples_per_second",
    "data_loading_ratio",
    "gpu_busy_ratio",
    "epoch_start",
    "memory_peak_allocated",
    "memory_peak_reserved",
    "memory_peak_rss",
)
_DEBUG: Final = "show the traceback of what goes wrong"
_TABLES: Final = ("operators", "kernels", "modules", "collectives", "copies", "gaps")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Whatever goes wrong is one line on stderr; ``--debug`` adds the traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows its number
            stream.reconfigure(errors="backslashreplace")
    options = (parser := _parser()).parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        code = run(options)
        _flush()
    except BrokenPipeError:
        # The reader went away, for example `| head`. Nothing more can be written, and nothing is wrong.
        sys.stderr.close()
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # of any kind: a sentence says more to who runs a command than a traceback
        if options.debug:
            raise
        _complain(_sentence(error))
        return FAILED
    return code


def _flush() -> None:
    """Write what is still to be written, so that a full disk is an error of ours and not of the interpreter's end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise PerfError(f"the output cannot be written ({error.strerror}); send it elsewhere") from error


def _sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, PerfError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory for this; analyse fewer or smaller traces, or use a larger machine"
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: " if error.filename is not None else ""
        return f"{what}{error.strerror}; check that it can be read and written, and that the disk is not full"
    said = f" ({error})" if str(error) else ""
    return f"failed with {type(error).__name__}{said}; this is a bug: run it again with --debug and report what it says"


def _analyze(options: argparse.Namespace) -> int:
    _check(options)
    if options.table is None:
        return analyze_command(options.paths, options.json, all_findings=options.all_findings)
    return table_command(
        options.paths,
        options.table,
        options.sort,
        options.top,
        csv=options.csv,
        by_shape=options.group_by_shape,
        by_call_site=options.group_by_call_site,
    )


def _report(options: argparse.Namespace) -> int:
    return report_command(Path(options.path), options.output, options.baseline)


def _compare(options: argparse.Namespace) -> int:
    limits: dict[str, float] = dict(options.fail_on)
    if options.fail_on_regression is not None:
        limits[STEP_TIME] = options.fail_on_regression
    return compare_command(options.base, options.candidate, limits, json=options.json, markdown=options.markdown)


def analyze_command(paths: Sequence[str], json_target: str | None, *, all_findings: bool) -> int:
    """Analyse traces; print a summary of each, or write one Analysis as JSON to a file or (``-``) to stdout."""
    from lightning_perf.pipeline import analyze
    from lightning_perf.report.console import summarize_run, summarize_trace

    failures: list[PerfError] = []
    analysis = analyze(paths, on_error=_collect(failures))
    if json_target is not None:
        _write_json(analysis, json_target)
    else:
        parts = [summarize_run(analysis, None, all_findings=all_findings)] if analysis.run is not None else []
        own = [] if analysis.run is not None else analysis.findings  # a run's are in its summary
        parts += [
            summarize_trace(window, [one for one in own if one.trace == window.trace], all_findings=all_findings)
            for window in analysis.windows
        ]
        _print("\n\n".join(parts))
    return FAILED if failures else OK


def table_command(
    paths: Sequence[str],
    name: TableName,
    sort: str | None,
    top: int | None,
    *,
    csv: bool,
    by_shape: bool,
    by_call_site: bool,
) -> int:
    """Analyse traces; print one table of each, or one CSV file of all."""
    from lightning_perf.measure.call_sites import NO_STACKS
    from lightning_perf.pipeline import analyze
    from lightning_perf.report.tables import TOP, table_of, table_text, tables_csv

    failures: list[PerfError] = []
    analysis = analyze(paths, on_error=_collect(failures), by_shape=by_shape, by_call_site=by_call_site, all_rows=True)
    for note in (note for window in analysis.windows for note in window.quality if note.code == NO_STACKS):
        _complain(note.message)
    top = top if top is not None or csv else TOP
    tables = [table_of(window, name, sort=sort, top=top) for window in analysis.windows]
    if csv:
        sys.stdout.write(_printable(tables_csv(tables)))
    else:
        _print("\n\n".join(map(table_text, tables)))
    return FAILED if failures else OK


def report_command(path: Path, output: str | None, baseline: str | None) -> int:
    """Write the report of a run or of traces as one HTML file, and say where it is."""
    from lightning_perf.pipeline import load
    from lightning_perf.report.html import Report

    failures: list[PerfError] = []
    base = load(Path(baseline)) if baseline is not None else None
    analysis = load(path, on_error=_collect(failures))
    if failures and not analysis.windows and analysis.run is None:
        return FAILED  # there is nothing to write about
    report = Report(analysis, base)
    _print(str(report.save(_report_of(path) if output is None else output)))
    return FAILED if failures else OK


def compare_command(
    base: str, candidate: str, limits: dict[str, float], *, json: str | None, markdown: str | None
) -> int:
    """Compare two runs or traces, say what changed, and hold the candidate against limits."""
    from lightning_perf.comparison.guard import breaches
    from lightning_perf.pipeline import compare
    from lightning_perf.report.comparison import comparison_markdown, comparison_text

    comparison = compare(base, candidate)
    failed = breaches(comparison, limits)
    if json is not None:
        _write_json(comparison, json)
    if markdown is not None:
        _write(comparison_markdown(comparison, failed).encode(), markdown)
    if "-" not in (json, markdown):
        _print(comparison_text(comparison, failed))
    return REGRESSED if failed else OK


def _write_json(record: Record, target: str) -> None:
    import msgspec

    _write(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n", target)


def _write(content: bytes, target: str) -> None:
    """Write to a file, or (``-``) to stdout."""
    from lightning_perf.runinfo import write_bytes

    if target == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        write_bytes(Path(target), content)
    except OSError as error:
        raise PerfError(f"{target}: cannot be written ({error.strerror}); name another file") from error


def _report_of(path: Path) -> Path:
    """Where the report of a path goes: beside what it is made of."""
    from lightning_perf.pipeline import stored_analysis
    from lightning_perf.runinfo import REPORT_FILE

    stored = stored_analysis(path)
    if stored is not None:
        return stored.with_name(REPORT_FILE)
    return path / REPORT_FILE if path.is_dir() else path.with_name(f"{path.name.split('.')[0]}.{REPORT_FILE}")


def _collect(failures: list[PerfError]) -> Callable[[PerfError], None]:
    """Show each error as it happens, and keep it."""

    def fail(error: PerfError) -> None:
        failures.append(error)
        _complain(error)

    return fail


def _complain(error: PerfError | str) -> None:
    print(_printable(f"lightning-perf: {error}").replace("\n", "\\n"), file=sys.stderr)


def _print(text: str) -> None:
    print(_printable(text))


def _printable(text: str) -> str:
    """The same text without what a terminal would obey: names in a trace, and of files, can be anything."""
    return _CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-perf", description="Find out why PyTorch training is slow, from traces of torch.profiler."
    )
    parser.add_argument("--version", action="version", version=f"lightning-perf {__version__}")
    parser.add_argument("--debug", action="store_true", help=_DEBUG)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_analyze(commands)
    _add_compare(commands)
    _add_report(commands)
    for command in commands.choices.values():
        # The default would undo a --debug before the command.
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=_DEBUG)
    return parser


def _add_analyze(commands: Commands) -> None:
    analyze = commands.add_parser(
        "analyze",
        help="say what traces hold: steps, device busy and idle, communication, copies, memory",
        description="Analyse traces of torch.profiler (.json or .json.gz), of any torch version and vendor.",
    )
    analyze.add_argument(
        "paths", nargs="+", metavar="PATH", help="trace file, or folder to search for *.pt.trace.json(.gz)"
    )
    analyze.add_argument("--json", metavar="FILE", help="write the whole analysis as JSON to FILE, or to stdout if -")
    analyze.add_argument(
        "--all-findings", action="store_true", help="all findings in full: evidence, assumptions, risks"
    )
    tables = analyze.add_argument_group("tables", "instead of the summary, one table of each trace")
    tables.add_argument("--table", choices=_TABLES, help="what the table lists")
    tables.add_argument("--sort", metavar="COLUMN", help="column to sort by (default: the most expensive one)")
    tables.add_argument("--top", metavar="N", type=_rows, help="rows to show (default: 20, with --csv all)")
    tables.add_argument("--group-by-shape", action="store_true", help="list operators by name and input shapes")
    tables.add_argument(
        "--group-by-call-site",
        action="store_true",
        help="list operators by name and the function of your code that called them (traces with Python stacks)",
    )
    tables.add_argument("--csv", action="store_true", help="print raw values with full names")
    analyze.set_defaults(run=_analyze, complain=analyze.error)


def _add_compare(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="say whether a run is faster than another, by how much, and why",
        description="Compare two runs or traces: is the second one faster, by how much, and where it comes from.",
        epilog="Exit codes: 0 fine, 1 something cannot be read or compared, 2 wrong usage, 3 a limit was not kept.",
    )
    what = "folder of a run, analysis.json, trace, or folder of repeated runs"
    compare.add_argument("base", metavar="BASE", help=f"what is compared with: {what}")
    compare.add_argument("candidate", metavar="CANDIDATE", help="what is judged: the same")
    compare.add_argument("--json", metavar="FILE", help="write the comparison as JSON to FILE, or to stdout if -")
    compare.add_argument("--markdown", metavar="FILE", help="write it for a pull request to FILE, or to stdout if -")
    guard = compare.add_argument_group("limits", "end with exit code 3 where the candidate is worse by more")
    guard.add_argument(
        "--fail-on-regression", metavar="PERCENT", type=_limit, help="limit of the typical step's time, such as 5%%"
    )
    guard.add_argument(
        "--fail-on",
        metavar="METRIC:PERCENT",
        type=_metric_limit,
        action="append",
        default=[],
        help=f"limit of another figure, such as memory_peak_allocated:10%%; one of {', '.join(_METRICS)}",
    )
    compare.set_defaults(run=_compare)


def _limit(text: str) -> float:
    from lightning_perf.comparison.guard import limit_of

    try:
        return limit_of(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _metric_limit(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in _METRICS:
        raise argparse.ArgumentTypeError(
            f"no metric {name!r}; expected METRIC:PERCENT with one of {', '.join(_METRICS)}"
        )
    return name, _limit(limit)


def _add_report(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="write what a run or its traces show as one HTML file",
        description="Write verdict, findings, figures and tables as one HTML file, which opens without a network.",
    )
    report.add_argument(
        "path", metavar="PATH", help="folder of a run, analysis.json, trace file, or folder to search for traces"
    )
    report.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it (default: report.html in the folder, or beside the file)",
    )
    report.add_argument("--baseline", metavar="PATH", help="an earlier run, or a trace, to compare with")
    report.set_defaults(run=_report)


def _rows(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number of rows, at least 1")
    return number


def _check(options: argparse.Namespace) -> None:
    """End with a usage error where options do not go together."""
    if options.table is None:
        given = {"--sort": options.sort, "--top": options.top, "--csv": options.csv}
        given |= {"--group-by-shape": options.group_by_shape, "--group-by-call-site": options.group_by_call_site}
        for option, value in given.items():
            if value:
                options.complain(f"argument {option}: only with --table; add --table {'|'.join(_TABLES)}")
        return
    if options.json is not None:
        options.complain("argument --table: not with --json, which holds all tables; leave one of them out")
    for option in ("group_by_shape", "group_by_call_site"):
        if getattr(options, option) and options.table != "operators":
            options.complain(f"argument --{option.replace('_', '-')}: only with --table operators")
    if options.sort is not None:
        from lightning_perf.report.tables import sort_names

        names = sort_names(options.table)
        if options.sort not in names:
            options.complain(
                f"argument --sort: {options.table} have no column {options.sort!r}; expected one of: {', '.join(names)}"
            )


if __name__ == "__main__":
    sys.exit(main())
