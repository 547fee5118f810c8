"""Spans of the loop: each writes down when it begins and when it ends, and holds the time that was found to be its own.

Kinds of spans differ in what else they tell the clock: the less a span does, the less each step costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Final

from lightning_perf.capture.kinds import Role, SpanKind
from lightning_perf.names import PHASES, Phase

if TYPE_CHECKING:
    from lightning_perf.capture.clock import LoopClock

Write = Callable[[tuple[object, ...]], None]
"""Takes a span and a time, or several such pairs, in one call, so that an interrupt cannot tear a pair."""


CPU_TIME_EVERY: Final = 8
"""Steps: asking the system for a thread's processor time costs half a microsecond."""


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


class ClockSpan(Span):
    """A span that tells the clock more than the time."""

    __slots__ = ("clock",)

    def __init__(self, clock: LoopClock, action: str, kind: SpanKind, phase: Phase) -> None:
        super().__init__(clock.write, clock.now, action, kind, phase)
        self.clock = clock


class FullSpan(ClockSpan):
    """A span that may move the clock to another step, or that is labelled in the trace of an open window."""

    __slots__ = ()

    def __enter__(self) -> str:
        clock = self.clock
        if self.kind.role is not Role.NONE:
            clock.role_begins(self.kind.role)
        Span.__enter__(self)
        if clock.marker is not None and self.label:
            clock.marker.enter(self, self.label)
        return self.action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clock = self.clock
        if clock.marker is not None:
            clock.marker.leave(self)
        Span.__exit__(self, kind, error, traceback)
        if self.kind.role is not Role.NONE:
            clock.role_ends(self.kind.role, failed=kind is not None)


class FetchSpan(ClockSpan):
    """A batch fetch: the shortest way from one step to the next. Of some, the thread's processor time is kept."""

    __slots__ = ()

    def __enter__(self) -> str:
        clock = self.clock
        clock.fetch_begins()
        self.write((self, self.now()))
        if not clock.step % CPU_TIME_EVERY:
            clock.fetch_began_ns = clock.now()
            clock.fetch_cpu_began_ns = time.thread_time_ns()
        if clock.marker is not None:  # a window may just have been opened
            clock.marker.enter(self, self.label)
        return self.action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.clock.marker is not None:
            self.clock.marker.leave(self)
        if self.clock.fetch_cpu_began_ns:
            self.clock.fetch_sampled(time.thread_time_ns())
        self.write((self, ~self.now()))


class BodySpan(ClockSpan):
    """The batch itself, in as few steps as will do."""

    __slots__ = ()

    def __enter__(self) -> str:
        self.clock.in_body = True
        self.write((self, self.now()))
        return self.action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.write((self, ~self.now()))
        self.clock.in_body = False
        self.clock.body_done = kind is None


class PassedOn:
    """A span that is also one of the user's own profiler. What that profiler costs is no phase's but ``other``."""

    __slots__ = ("clock", "inner", "span")

    def __init__(self, clock: LoopClock, span: Span, inner: AbstractContextManager[object]) -> None:
        self.clock = clock
        self.span = span
        self.inner = inner

    def __enter__(self) -> object:
        with self.clock.users_profiler:
            action = self.inner.__enter__()
        self.span.__enter__()
        return action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.span.__exit__(kind, error, traceback)
        with self.clock.users_profiler:
            return self.inner.__exit__(kind, error, traceback)
