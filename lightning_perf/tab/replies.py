"""What the tab's server answers, as JSON. Times are seconds, percent is 0 to 100."""

from __future__ import annotations

from typing import Literal

import msgspec  # noqa: TC002 - it reads annotations at run time

from lightning_perf.runinfo import Record

JobStage = Literal["waiting", "copying", "reading", "measuring"]


class WindowItem(Record, frozen=True, kw_only=True):
    """A trace window of a run. ``id`` is what other requests name it by, ``label`` is for people.

    ``trace`` is whether its trace file is there.
    """

    id: str
    label: str
    trace: bool


class RunItem(Record, frozen=True, kw_only=True):
    """A run: a folder with traces or records. ``recorded`` are those of ``PerfCallback``."""

    id: str
    name: str
    recorded: bool
    windows: list[WindowItem]


class Runs(Record, frozen=True, kw_only=True):
    """All runs found so far, sorted by name. ``problem`` says why there may be others that are not."""

    logdir: str
    scanning: bool
    problem: str | None
    runs: list[RunItem]


class Ready(Record, frozen=True, kw_only=True):
    """A page, encoded already. ``window`` is the one that is shown, if one is."""

    state: Literal["ready"] = "ready"
    window: str | None = None
    page: msgspec.Raw


class Working(Record, frozen=True, kw_only=True):
    """A trace is being analysed: ask again. ``percent`` is of the present stage, None where that is not known."""

    state: Literal["working"] = "working"
    file: str
    stage: JobStage
    percent: int | None
    elapsed_s: float


class Failed(Record, frozen=True, kw_only=True):
    """There will be no page, and why: one line that says what is wrong and what to do."""

    state: Literal["failed"] = "failed"
    message: str


def readable(text: str) -> str:
    """A text that can be sent: names of files may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
