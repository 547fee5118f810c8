"""Which processes run, and waiting for what they do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc, to see processes")


def processes_with(argument: str, *, but: int = -1) -> list[int]:
    """Ids of the processes whose command line has an argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in entry.read_bytes().split(b"\0") and int(entry.parent.name) != but:
                found.append(int(entry.parent.name))
    return found


def wait_until(done: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
