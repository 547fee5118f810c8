"""The command line: ``lightning-perf analyze``. Imports neither torch nor lightning, and numpy only to analyse."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.errors import PerfError

OK, FAILED, USAGE = 0, 1, 2
"""Exit codes: fine; some input could not be read; the command line was wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        return analyze_command(options.paths, options.json)
    except PerfError as error:
        _complain(error)
        return FAILED
    except BrokenPipeError:
        # The reader went away, for example `| head`. Nothing more can be written, and nothing is wrong.
        sys.stderr.close()
        return OK


def analyze_command(paths: Sequence[str], json_target: str | None) -> int:
    """Analyse traces; print a summary of each, or write one Analysis as JSON to a file or (``-``) to stdout."""
    from lightning_perf.pipeline import analyze
    from lightning_perf.report.console import summarize_run, summarize_trace

    failures: list[PerfError] = []

    def fail(error: PerfError) -> None:
        failures.append(error)
        _complain(error)

    analysis = analyze(paths, on_error=fail)
    if json_target is not None:
        import msgspec

        from lightning_perf.runinfo import write_bytes

        content = msgspec.json.format(msgspec.json.encode(analysis), indent=1) + b"\n"
        if json_target == "-":
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        else:
            try:
                write_bytes(Path(json_target), content)
            except OSError as error:
                raise PerfError(f"{json_target}: cannot be written ({error.strerror}); name another file") from error
    else:
        parts = [summarize_run(analysis, None)] if analysis.run is not None else []
        parts += [summarize_trace(window) for window in analysis.windows]
        print("\n\n".join(parts))
    return FAILED if failures else OK


def _complain(error: PerfError) -> None:
    print(f"lightning-perf: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-perf", description="Find out why PyTorch training is slow, from traces of torch.profiler."
    )
    parser.add_argument("--version", action="version", version=f"lightning-perf {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    analyze = commands.add_parser(
        "analyze",
        help="say what traces hold: steps, device busy and idle, communication, copies, memory",
        description="Analyse traces of torch.profiler (.json or .json.gz), of any torch version and vendor.",
    )
    analyze.add_argument(
        "paths", nargs="+", metavar="PATH", help="trace file, or folder to search for *.pt.trace.json(.gz)"
    )
    analyze.add_argument("--json", metavar="FILE", help="write the whole analysis as JSON to FILE, or to stdout if -")
    return parser


if __name__ == "__main__":
    sys.exit(main())
