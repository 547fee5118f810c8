"""The loop clock: exclusive wall time of every span of the training loop, for every step of the whole run.

Lightning wraps each action of its loop in ``trainer.profiler.profile(name)``. The clock answers those calls: a
span's own time is the time that no span inside it took. No sampling, no device synchronisation, and no object
made per span, so that it costs about half of what Lightning's ``profile()`` costs when it does nothing.

A step runs from the start of one batch fetch to the start of the next, or to the end of the epoch. Making the
loader's iterator happens before the first fetch of an epoch; it is added to that epoch's first step, as ``data``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from types import TracebackType
from typing import Final, Protocol

from lightning_perf.capture.ledger import SERIES_LIMIT, Ledger
from lightning_perf.capture.spans import Role, SpanKind, classify, inherited
from lightning_perf.names import PHASES, Phase, Stage
from lightning_perf.runinfo import EpochStart, LoopRecord, SpanTotal

_DATA: Final = PHASES.index("data")

MOST_OWN_SPANS = 256
"""Most spans of the user's own that are told apart: a name with a counter in it would otherwise pile up."""


class Marker(Protocol):
    """Writes ranges into a trace while a window is open."""

    def enter(self, depth: int, label: str) -> None:
        """Open a range at a nesting depth."""

    def leave(self, depth: int) -> None:
        """Close the range at a depth, and any deeper one that an exception left open."""


class InnerProfiler(Protocol):
    """What is used of the profiler that the user gave to the trainer."""

    def profile(self, action_name: str) -> AbstractContextManager[object]:
        """Span of the user's profiler."""

    def start(self, action_name: str) -> None:
        """Begin an action."""

    def stop(self, action_name: str) -> None:
        """End an action."""


class Span(ContextDecorator):
    """One named span in one context, and its own re-entrant context manager. ``ns`` is its time in this step."""

    __slots__ = ("action", "calls", "clock", "column", "kind", "label", "ns", "phase", "plain_ns", "traced_ns")

    def __init__(self, clock: LoopClock, action: str, kind: SpanKind, phase: Phase) -> None:
        self.clock = clock
        self.action = action
        self.kind = kind
        self.phase = phase
        self.column = PHASES.index(phase)
        self.label = kind.label if kind.marked else ""
        self.ns = 0
        self.plain_ns = 0
        self.traced_ns = 0
        self.calls = 0

    def __enter__(self) -> str:
        clock = self.clock
        now = clock.now()
        stack = clock.stack
        stack[-1].ns += now - clock.last
        clock.last = now
        stack.append(self)
        self.calls += 1
        if clock.marker is not None and self.label:
            clock.marker.enter(len(stack), self.label)
        return self.action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clock = self.clock
        stack = clock.stack
        if clock.marker is not None:
            clock.marker.leave(len(stack))
        now = clock.now()
        top = stack.pop()
        top.ns += now - clock.last
        clock.last = now
        if top is not self:
            clock.unwind(top, self)


class _RoleSpan(Span):
    """A span whose start or end may move the clock to another step."""

    __slots__ = ()

    def __enter__(self) -> str:
        self.clock.role_begins(self.kind.role)
        return Span.__enter__(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        Span.__exit__(self, kind, error, traceback)
        self.clock.role_ends(self.kind.role, failed=kind is not None)


class _PassedOn:
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


class LoopClock:
    """Keeps the time of one stage of one run.

    Args:
        stage: what the trainer does; decides which spans are the fetch, the batch and the epoch.
        inner: the user's own profiler, to which every span is passed on, or None where it does nothing.
        now: monotonic clock, integer nanoseconds.

    ``on_boundary`` is called with the next step's number before a step begins, and with None where an epoch
    ended; the time it takes belongs to no step. ``batch_size`` holds the samples of the present batch if known,
    ``traced`` says whether torch.profiler runs, ``marker`` writes labels while a window is open.
    """

    def __init__(
        self, stage: Stage, inner: InnerProfiler | None = None, now: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.stage = stage
        self.now = now
        self.on_boundary: Callable[[int | None], None] | None = None
        self.marker: Marker | None = None
        self.traced = False
        self.batch_size: int | None = None
        self.profiler_ns = 0
        self.last = now()
        self._all: list[Span] = []
        self.users_profiler = self._make("", SpanKind("other", "other/user's profiler"))
        self.stack: list[Span] = [self._make("", SpanKind("other", "other"))]
        self._inner = inner
        self._training: dict[str, Span] = {}
        self._validation: dict[str, Span] = {}
        self._spans = self._training
        self._inherited: dict[tuple[str, Phase], Span] = {}
        self._ledger = Ledger()
        self._thread = threading.get_ident()
        self._number = -1
        self._epoch = 0
        self._open = False
        self._body_done = False
        self._in_body = False
        self._step_traced = False
        self._epoch_begins = True
        self._epoch_starts: deque[EpochStart] = deque(maxlen=SERIES_LIMIT)
        self._iterator_ns = 0
        self._outside_ns = 0

    # What Lightning calls

    @property
    def entry(self) -> Callable[[str], AbstractContextManager[object]]:
        """The shortest way to :meth:`profile`: this is called some thirty times a step."""
        return self.span if self._inner is None else self.profile

    def profile(self, action_name: str) -> AbstractContextManager[object]:
        """Context manager that keeps the time of an action of the loop."""
        span = self.span(action_name)
        if self._inner is None:
            return span
        inner = self._inner.profile(action_name)
        return _PassedOn(self, span, inner) if isinstance(span, Span) else inner

    def start(self, action_name: str) -> None:
        """Begin an action that :meth:`stop` ends."""
        if self._inner is not None:
            with self.users_profiler:
                self._inner.start(action_name)
        self.span(action_name).__enter__()

    def stop(self, action_name: str) -> None:
        """End an action begun by :meth:`start`. One that was never begun is ignored."""
        span = self.span(action_name)
        if isinstance(span, Span) and span in self.stack:
            span.__exit__(None, None, None)
        if self._inner is not None:
            with self.users_profiler:
                self._inner.stop(action_name)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Span of an action where the loop stands now. Other threads than the loop's are not measured."""
        if threading.get_ident() != self._thread:
            return nullcontext()
        return self._spans.get(name) or self._find(name)

    # What the callback calls

    @property
    def step(self) -> int:
        """Number of the present step, -1 before the first."""
        return self._number

    @property
    def phase(self) -> Phase:
        """Phase that the loop is in now."""
        return self.stack[-1].phase

    @property
    def depth(self) -> int:
        """How many spans are open."""
        return len(self.stack) - 1

    def start_afresh(self) -> None:
        """The loop begins: forget steps that were none of its (a learning rate finder's), keep the iterator made."""
        self._end_step()
        self._flush_outside()
        self._ledger = Ledger()
        self._epoch_starts.clear()
        self._number, self._epoch, self._epoch_begins = -1, 0, True
        self._outside_ns = self.profiler_ns = 0
        for span in self._all:
            span.calls = span.plain_ns = span.traced_ns = 0

    def finish(self) -> LoopRecord:
        """End the last step and give everything that was kept. May be called again; later time is then included."""
        self._end_step()
        self._flush_outside()
        return self.record()

    def record(self) -> LoopRecord:
        """Everything kept so far, over the steps that have ended."""
        return LoopRecord(
            plain=self._ledger.plain.totals(self._phase_totals(traced=False)),
            traced=self._ledger.traced.totals(self._phase_totals(traced=True)),
            incomplete_steps=self._ledger.incomplete_steps,
            outside_ns=self._outside_ns,
            profiler_ns=self.profiler_ns,
            series=self._ledger.series(),
            spans=self._span_totals(),
            epoch_starts=list(self._epoch_starts),
        )

    # What spans call

    def unwind(self, top: Span, span: Span) -> None:
        """Put the stack right after ``span`` ended while ``top`` was the innermost one."""
        if span not in self.stack:
            self.stack.append(top)
            return
        while self.stack.pop() is not span:
            pass

    def role_begins(self, role: Role) -> None:
        """A span with a role is about to begin."""
        if role is Role.BODY:
            self._in_body = True
        elif role is Role.VALIDATION:
            self._spans = self._validation
        elif role is Role.AFTER_BATCHES:
            self._end_epoch()
        elif self._in_body:
            return
        elif role is Role.FETCH:
            if not self._is_making_iterator():
                self._begin_step()
        elif role is Role.BATCH_START and (self._body_done or not self._open):
            self._begin_step()

    def role_ends(self, role: Role, *, failed: bool) -> None:
        """A span with a role has ended, ``failed`` if by an exception."""
        if role is Role.BODY:
            self._in_body = False
            self._body_done = not failed
        elif role is Role.VALIDATION:
            self._spans = self._training
        elif role is Role.EPOCH:
            self._end_epoch()

    # Steps

    def _end_epoch(self) -> None:
        self._end_step()
        self._epoch += 1
        self._epoch_begins = True
        if self.on_boundary is not None:
            self.on_boundary(None)

    def _begin_step(self) -> None:
        follows = self._open
        self._end_step()
        ended = self.last
        if self.on_boundary is not None:
            self.on_boundary(self._number + 1)
        if follows and self.last == ended:
            # Nothing but the boundary lies between the two steps, and no span ran in it: the usual case, kept short.
            self._charge()
            self._outside_ns += self.stack[-1].ns
            self.stack[-1].ns = 0
        else:
            self._flush_outside()
        self._number += 1
        self._open = True
        self._body_done = False
        self._step_traced = self.traced
        self.batch_size = None

    def _end_step(self) -> None:
        self._charge()
        if not self._open:
            return
        self._open = False
        data_ns = self._book(complete=self._body_done)
        if self._epoch_begins:
            self._epoch_begins = False
            self._epoch_starts.append(
                EpochStart(epoch=self._epoch, iterator_ns=self._iterator_ns, first_fetch_ns=data_ns - self._iterator_ns)
            )
        self._iterator_ns = 0

    def _book(self, *, complete: bool) -> int:
        """Enter the step into the ledger; its ``data`` nanoseconds."""
        phases_ns = [0] * len(PHASES)
        for span in self._all:
            ns = span.ns
            if ns:
                phases_ns[span.column] += ns
                if complete:
                    if self._step_traced:
                        span.traced_ns += ns
                    else:
                        span.plain_ns += ns
                span.ns = 0
        self._ledger.add_step(
            self._number,
            self._epoch,
            phases_ns,
            complete=complete,
            traced=self._step_traced,
            samples=self.batch_size,
        )
        return phases_ns[_DATA]

    def _flush_outside(self) -> None:
        """Book the time since the last step ended. Making an iterator stays on its span, for the next step."""
        self._charge()
        self._iterator_ns = 0
        for span in self._all:
            if span.ns:
                if span.column == _DATA:
                    self._iterator_ns += span.ns
                else:
                    self._outside_ns += span.ns
                    span.ns = 0

    def _phase_totals(self, *, traced: bool) -> dict[Phase, int]:
        totals = dict.fromkeys(PHASES, 0)
        for span in self._all:
            totals[span.phase] += span.traced_ns if traced else span.plain_ns
        return totals

    def _span_totals(self) -> list[SpanTotal]:
        """Sums by label: two spans may share one, for example two checkpoint callbacks."""
        sums: dict[tuple[str, Phase], list[int]] = {}
        for span in self._all:
            if span.plain_ns or span.traced_ns:
                row = sums.setdefault((span.kind.name, span.phase), [0, 0, 0])
                for column, value in enumerate((span.calls, span.plain_ns, span.traced_ns)):
                    row[column] += value
        return [
            SpanTotal(name=name, phase=phase, calls=calls, plain_ns=plain_ns, traced_ns=traced_ns)
            for (name, phase), (calls, plain_ns, traced_ns) in sorted(sums.items(), key=lambda row: -sum(row[1][1:]))
        ]

    def _charge(self) -> None:
        now = self.now()
        self.stack[-1].ns += now - self.last
        self.last = now

    def _is_making_iterator(self) -> bool:
        return any(span.phase == "data" for span in self.stack)

    def _find(self, name: str) -> Span:
        kind = classify(name, self.stage, validating=self._spans is self._validation)
        if kind.phase is None:
            return self._find_inherited(name)
        span = self._spans[name] = self._make(name, kind)
        return span

    def _find_inherited(self, name: str) -> Span:
        if (name, self.phase) not in self._inherited and len(self._inherited) >= MOST_OWN_SPANS:
            name = "more"
        key = (name, self.phase)
        if key not in self._inherited:
            self._inherited[key] = self._make(name, inherited(name, self.phase))
        return self._inherited[key]

    def _make(self, action: str, kind: SpanKind) -> Span:
        make = Span if kind.role is Role.NONE else _RoleSpan
        span = make(self, action, kind, kind.phase or "other")
        self._all.append(span)
        return span
