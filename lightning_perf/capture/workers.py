"""Whether a loader's worker processes compute or wait, as the system counts their time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LOOK_EVERY = 16
"""Batches: a look costs some ten microseconds for each worker."""

FIRST_LOOK = 3
"""Batches of an epoch after which workers have done more than start."""


class WorkerTimes:
    """Processor time and age of workers, each as at the last look: they end before the run does."""

    def __init__(self) -> None:
        self._by_pid: dict[int, tuple[float, float]] = {}

    def look(self, iterators: Iterable[object]) -> None:
        """Read the times of the worker processes of some loaders' iterators."""
        for iterator in iterators:
            for worker in getattr(iterator, "_workers", []):
                times = processor_and_age_s(worker.pid)
                if times is not None:
                    self._by_pid[worker.pid] = times

    @property
    def cpu_ratio(self) -> float | None:
        """Share of their lives in which the workers computed; None if none was seen, or the system does not tell."""
        age_s = sum(age for _, age in self._by_pid.values())
        return min(1.0, sum(spent for spent, _ in self._by_pid.values()) / age_s) if age_s else None


def processor_and_age_s(pid: int) -> tuple[float, float] | None:
    """Processor time and age of a process, seconds; None where there is none, or no ``/proc`` (Linux has it)."""
    try:
        # The program's name stands in brackets and may hold anything, see proc_pid_stat(5).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        user, system, began = (int(fields[place]) / ticks_per_s for place in (11, 12, 19))
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return user + system, up_s - began
