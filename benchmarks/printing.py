"""What the benchmarks share: Markdown tables, spreads, and what machine this is."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table, its columns padded; the first ones (``texts`` of them) are text, the others are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    rule = [":" + "-" * (width - 1) if at < texts else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    return "\n".join(_line(row, widths, texts) for row in [header, rule, *rows])


def _line(row: Sequence[str], widths: Sequence[int], texts: int) -> str:
    sized = zip(row, widths, strict=True)
    cells = [cell.ljust(width) if at < texts else cell.rjust(width) for at, (cell, width) in enumerate(sized)]
    return f"| {' | '.join(cells)} |"


def with_spread(values: Sequence[float], digits: int = 1, *, sign: bool = False) -> str:
    """Median and, in brackets, the quartiles."""
    plus = "+" if sign else ""
    if len(values) < 2:
        return f"{values[0]:{plus}.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:{plus}.{digits}f} [{low:{plus}.{digits}f}, {high:{plus}.{digits}f}]"


def machine(packages: Sequence[str]) -> str:
    """Processor, cores, and versions."""
    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in packages)]
    return f"{_processor()}, {os.cpu_count()} cores; {', '.join(versions)}"


def command(files: Sequence[Path] = ()) -> str:
    """The command that prints this, as typed from the repository's root; ``FILE...`` for what names files."""
    arguments = [argument for argument in sys.argv[1:] if Path(argument) not in files]
    # A path says more about the machine than about the benchmark.
    plain = [Path(argument).name if os.sep in argument else argument for argument in arguments]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *(["FILE..."] if files else []), *plain])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
