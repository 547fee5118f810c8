"""A span of the loop: writes down when it begins and when it ends, and holds the time that was found to be its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType

from lightning_perf.capture.kinds import SpanKind
from lightning_perf.names import PHASES, Phase

Write = Callable[[tuple[object, ...]], None]
"""Takes a span and a time, or several such pairs, in one call, so that an interrupt cannot tear a pair."""


class Span(ContextDecorator):
    """One named span in one context, and its own re-entrant context manager. ``ns`` is its time in this step."""

    __slots__ = (
        "action",
        "calls",
        "column",
        "kind",
        "label",
        "now",
        "ns",
        "phase",
        "plain_ns",
        "traced_ns",
        "write",
    )

    def __init__(self, write: Write, now: Callable[[], int], action: str, kind: SpanKind, phase: Phase) -> None:
        self.action = action
        self.kind = kind
        self.phase = phase
        self.column = PHASES.index(phase)
        self.label = kind.label if kind.marked else ""
        self.now = now
        self.write = write
        self.ns = 0
        self.plain_ns = 0
        self.traced_ns = 0
        self.calls = 0

    def __enter__(self) -> str:
        self.write((self, self.now()))
        return self.action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.write((self, ~self.now()))  # negative: an end
