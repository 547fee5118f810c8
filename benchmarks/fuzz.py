"""Whatever a trace file holds, reading it gives a window that adds up, or one ``TraceError``.

``python benchmarks/fuzz.py [FILE...]`` changes small traces (built here: every generation of times, several vendors and
layouts, packed or not; pieces of FILEs as well) in every way below, reads and measures each, and prints how many were
read as if sound, read with a note of what is wrong, or refused. A failure is any other outcome: another exception, a
warning, a message of several lines, a sum that is not that of its parts, a window that is no JSON, more than
``--seconds`` of time or 256 MiB of memory for one input. ``--keep FOLDER`` writes the inputs that fail.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from mutations import KINDS, made, use
from printing import command, machine, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lightning_perf.decode import pieces
from lightning_perf.decode.reader import read_trace
from lightning_perf.errors import TraceError
from lightning_perf.measure.analysis import Window
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved

Outcome = Literal["read", "salvaged", "refused", "failed"]
LARGEST_GROWTH_KIB = 256 * 1024
SOUND_NOTES = {"no_device_operations"}


@dataclass
class Limits:
    """What one input may cost."""

    seconds: float = 5.0


@contextmanager
def small_pieces(*, wanted: bool) -> Iterator[None]:
    """Let pieces of a file be so small that a small trace has several."""
    before = pieces.PIECE_BYTES, pieces.BLOCK_BYTES
    if wanted:
        pieces.PIECE_BYTES, pieces.BLOCK_BYTES = 700, 1000
    try:
        yield
    finally:
        pieces.PIECE_BYTES, pieces.BLOCK_BYTES = before


def outcome(path: Path, number: int, limits: Limits) -> tuple[Outcome, str]:
    """Read and measure a file: what came of it, and what is wrong with that."""
    peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with warnings.catch_warnings(), small_pieces(wanted=number % 2 == 1):
        warnings.simplefilter("error")
        try:
            found, problem = _read(path, number)
        except Exception as error:  # noqa: BLE001 - any other than TraceError is what is looked for
            found, problem = "failed", "".join(traceback.format_exception(error)[-6:])
    spent = time.process_time() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    if not problem and spent > limits.seconds:
        return "failed", f"took {spent:.1f} s"
    if not problem and grown > LARGEST_GROWTH_KIB:
        return "failed", f"memory grew by {grown // 1024} MiB"
    return found, problem


def _read(path: Path, number: int) -> tuple[Outcome, str]:
    shaped = number % 3 == 1
    try:
        trace = read_trace(path, inputs=shaped)
    except TraceError as error:
        message = str(error).removeprefix(str(path))
        return ("refused", "") if message.isprintable() else ("failed", f"message {message!r}")
    window = measure_trace(trace, by_shape=shaped, by_call_site=shaped, what_if=number % 4 == 3)
    assert_conserved(window)
    if msgspec.json.decode(msgspec.json.encode(window), type=Window) != window:
        return "failed", "the window is not the same after JSON"
    return ("salvaged" if {note.code for note in trace.quality} - SOUND_NOTES else "read"), ""


def batch(arguments: tuple[range, int, float, Sequence[Path]]) -> list[tuple[int, str, Outcome, str]]:
    """Number, kind, outcome and problem of some inputs."""
    numbers, seed, seconds, files = arguments
    use(files)
    rows: list[tuple[int, str, Outcome, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for number in numbers:
            kind, content = made(number, seed)
            path.write_bytes(content)
            rows.append((number, kind, *outcome(path, number, Limits(seconds))))
    return rows


def run(
    inputs: int, seed: int, seconds: float, files: Sequence[Path], processes: int
) -> list[tuple[int, str, Outcome, str]]:
    """All inputs, on several processes; in order."""
    batches = [(range(at, min(at + 100, inputs)), seed, seconds, files) for at in range(0, inputs, 100)]
    if processes == 1:
        return [row for one in batches for row in batch(one)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return [row for rows in pool.imap(batch, batches) for row in rows]


def main() -> None:
    """Print the table; exit code 1 if an input failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="traces whose pieces are mutated as well")
    parser.add_argument("--inputs", type=int, default=20_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time that one input may take (%(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="to run on (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the inputs that fail there")
    options = parser.parse_args()
    results = run(options.inputs, options.seed, options.seconds, options.files, options.processes)
    counts = Counter((kind, found) for _, kind, found, _ in results)
    failures = [result for result in results if result[2] == "failed"]
    columns: tuple[Outcome, ...] = ("read", "salvaged", "refused", "failed")
    rows = [[kind, *(counts[kind, found] for found in columns)] for kind in KINDS]
    rows.append(["all", *(sum(row[at] for row in rows) for at in range(1, 5))])
    cells = [[row[0], *(f"{number:,}" for number in (sum(row[1:]), *row[1:]))] for row in rows]
    print(f"`{command(options.files)}`\n\n{machine(['numpy', 'msgspec'])}\n")
    print(table(["mutation", "inputs", "read", "read, with a note", "refused", "failures"], cells))
    use(options.files)
    for number, kind, _, problem in failures:
        print(f"\ninput {number} ({kind}): {problem}", file=sys.stderr)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{number}.json").write_bytes(made(number, options.seed)[1])
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
