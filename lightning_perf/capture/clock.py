"""The loop clock: exclusive wall time of every span of the training loop, for every step of the whole run.

Lightning wraps each action of its loop in ``trainer.profiler.profile(name)``. The clock answers those calls: a
span's own time is the time that no span inside it took. No sampling, no device synchronisation.

Between the operations of a model, code is cold, and each line of it costs several times what a benchmark of it
says. So a span only writes down that it began or ended, and when; the log is worked up later, many steps at once.

A step runs from the start of one batch fetch to the start of the next, or to the end of the epoch. Making the
loader's iterator happens before the first fetch of an epoch; it is added to that epoch's first step, as ``data``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from lightning_perf.capture.books import Books, StepEnd
from lightning_perf.capture.kinds import Role, SpanKind, classify, inherited
from lightning_perf.capture.span import BodySpan, FetchSpan, FullSpan, PassedOn, Span
from lightning_perf.names import Phase, Stage
from lightning_perf.runinfo import LoopRecord

LONG_LOG: Final = 4096
"""Entries after which the log is worked up: some forty steps, 0.2 MB."""

MOST_OWN_SPANS = 256
"""Most spans of the user's own that are told apart: a name with a counter in it would otherwise pile up."""


class Marker(Protocol):
    """Writes ranges into a trace while a window is open."""

    def enter(self, span: object, label: str) -> None:
        """Open a range for a span."""

    def leave(self, span: object) -> None:
        """Close the range of a span, and any inside it that an exception left open."""


class InnerProfiler(Protocol):
    """What is used of the profiler that the user gave to the trainer."""

    def profile(self, action_name: str) -> AbstractContextManager[object]:
        """Span of the user's profiler."""

    def start(self, action_name: str) -> None:
        """Begin an action."""

    def stop(self, action_name: str) -> None:
        """End an action."""


class _Spans(dict[str, Span]):
    """The spans that are known where the loop stands now: looking one up is the whole of a call to ``profile``."""

    def __init__(self, find: Callable[[str], AbstractContextManager[object]]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> AbstractContextManager[object]:
        return self._find(name)


class LoopClock:
    """Keeps the time of one stage of one run.

    Args:
        stage: what the trainer does; decides which spans are the fetch, the batch and the epoch.
        inner: the user's own profiler, to which every span is passed on, or None where it does nothing.
        now: monotonic clock, integer nanoseconds.
        fetches_itself: the model's step takes its batches from ``dataloader_iter``, so that no fetch comes first
            and a step begins with its first hook.

    ``on_boundary`` is called with the next step's number before a step begins, from step ``wake_at`` on, and with
    None where an epoch ended; the time it takes belongs to no step. ``batch_size`` holds the samples of the present
    batch if known, ``traced`` says whether torch.profiler runs, ``step`` is the present step's number, -1 before the
    first. Only the thread that made the clock is measured.
    """

    def __init__(
        self,
        stage: Stage,
        inner: InnerProfiler | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
        *,
        fetches_itself: bool = False,
    ) -> None:
        self.stage = stage
        self.now = now
        self.fetches_itself = fetches_itself
        self.on_boundary: Callable[[int | None], None] | None = None
        self.wake_at: float = 0
        self._traced = False
        self.batch_size: int | None = None
        self.profiler_ns = 0
        self._log: list[object] = []
        self.write = self._log.extend
        self._inner = inner
        self.marker: Marker | None = None
        self._thread = threading.get_ident()
        self._validating = False
        self._contexts: dict[tuple[bool, bool], dict[str, Span]] = {}
        self._known: dict[str, Span] = {}
        self._spans = _Spans(self._find)
        self._started: dict[str, AbstractContextManager[object]] = {}
        self._inherited: dict[tuple[str, Phase], Span] = {}
        self._switch()
        self._books = Books(Span(self.write, now, "", SpanKind("other", "other"), "other"), now())
        # Where the loop is.
        self.step = -1
        self._epoch = 0
        self._cpu_ns = 0
        self._cpu_counted_to_ns = time.process_time_ns()
        self.fetch_began_ns = self.fetch_cpu_began_ns = 0
        self._fetch_ns = self._fetch_cpu_ns = 0
        self._open = False
        self.body_done = False
        self.in_body = False
        self._in_iterator = False
        self._step_traced = False
        self.users_profiler = self._make("", SpanKind("other", "other/user's profiler"))

    # What Lightning calls

    @property
    def entry(self) -> Callable[[str], AbstractContextManager[object]]:
        """The shortest way to :meth:`profile`: this is called some thirty times a step."""
        return self._spans.__getitem__ if self._inner is None else self.profile

    def profile(self, action_name: str) -> AbstractContextManager[object]:
        """Context manager that keeps the time of an action of the loop."""
        span = self.span(action_name)
        if self._inner is None:
            return span
        inner = self._inner.profile(action_name)
        return PassedOn(self, span, inner) if isinstance(span, Span) else inner

    def start(self, action_name: str) -> None:
        """Begin an action that :meth:`stop` ends."""
        if self._inner is not None:
            with self.users_profiler:
                self._inner.start(action_name)
        # The span's beginning may open a window, in which the name stands for another span.
        span = self._started[action_name] = self.span(action_name)
        span.__enter__()

    def stop(self, action_name: str) -> None:
        """End an action begun by :meth:`start`. One that was never begun is ignored."""
        span = self._started.pop(action_name, None) or self.span(action_name)
        span.__exit__(None, None, None)
        if self._inner is not None:
            with self.users_profiler:
                self._inner.stop(action_name)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Span of an action where the loop stands now; one that does nothing in another thread."""
        return self._spans[name] if threading.get_ident() == self._thread else nullcontext()

    # What the callback calls

    def label_with(self, marker: Marker | None) -> None:
        """Write labels with a marker from now on, or (None) no more."""
        self.marker = marker
        self._switch()

    @property
    def traced(self) -> bool:
        """Whether torch.profiler runs: processor time then is not that of the plain run."""
        return self._traced

    @traced.setter
    def traced(self, runs: bool) -> None:
        self._count_cpu()
        self._traced = runs

    @property
    def phase(self) -> Phase:
        """Phase that the loop is in now."""
        self._settle()
        return self._books.stack[-1].phase

    @property
    def depth(self) -> int:
        """How many spans are open."""
        self._settle()
        return len(self._books.stack) - 1

    def start_afresh(self) -> None:
        """The loop begins: forget steps that were none of its (a learning rate finder's), keep the iterator made."""
        self._end_step()
        self._mark(None)
        self._settle()
        self._books.start_afresh()
        self.step, self._epoch, self.profiler_ns = -1, 0, 0
        self._cpu_ns = self._fetch_ns = self._fetch_cpu_ns = 0
        self._cpu_counted_to_ns = time.process_time_ns()

    def finish(self) -> LoopRecord:
        """End the last step and give everything that was kept. May be called again; later time is then included."""
        self._end_step()
        self._mark(None)
        return self.record()

    def record(self) -> LoopRecord:
        """Everything kept so far, over the steps that have ended."""
        self._settle()
        self._count_cpu()
        return self._books.record(
            self.profiler_ns,
            cpu_ns=self._cpu_ns,
            fetch_cpu_ratio=min(1.0, self._fetch_cpu_ns / self._fetch_ns) if self._fetch_ns else None,
        )

    # What spans call

    def role_begins(self, role: Role) -> None:
        """A span with a role is about to begin."""
        if role is Role.BODY:
            self.in_body = True
        elif role is Role.ITERATOR:
            self._in_iterator = True
        elif role is Role.VALIDATION:
            self._validating = True
            self._switch()
        elif role is Role.VALIDATION_FETCH:
            self._settle_if_long()
        elif role is Role.AFTER_BATCHES:
            self._end_epoch()
        elif self.in_body or self._in_iterator:
            return
        elif role is Role.FETCH or (
            role is Role.BATCH_START and self.fetches_itself and (self.body_done or not self._open)
        ):
            self._begin_step()

    def fetch_begins(self) -> None:
        """A batch fetch is about to begin; the same as its role, where nothing else is to be done."""
        if self.in_body or self._in_iterator:
            return
        if not self._open or self.step + 1 >= self.wake_at or len(self._log) > LONG_LOG:
            self._begin_step()
            return
        now = self.now()
        self.write((None, (now, self._end_of_step()), None, (now, None)))
        self.step += 1
        self.body_done = False
        self.batch_size = None

    def fetch_sampled(self, cpu_ns: int) -> None:
        """A batch fetch has ended of which the thread's processor time was kept."""
        self._fetch_ns += self.now() - self.fetch_began_ns
        self._fetch_cpu_ns += cpu_ns - self.fetch_cpu_began_ns
        self.fetch_cpu_began_ns = 0

    def role_ends(self, role: Role, *, failed: bool) -> None:
        """A span with a role has ended, ``failed`` if by an exception."""
        if role is Role.BODY:
            self.in_body = False
            self.body_done = not failed
        elif role is Role.ITERATOR:
            self._in_iterator = False
        elif role is Role.VALIDATION:
            self._validating = False
            self._switch()
        elif role is Role.EPOCH:
            self._end_epoch()

    # Steps

    def _begin_step(self) -> None:
        self._end_step()
        if self.on_boundary is not None and self.step + 1 >= self.wake_at:
            self.on_boundary(self.step + 1)
        self.step += 1
        self._open = True
        self.body_done = False
        self._step_traced = self.traced
        self.batch_size = None
        self._mark(None)

    def _end_step(self) -> None:
        if self._open:
            self._open = False
            self._mark(self._end_of_step())
            self._settle_if_long()

    def _end_of_step(self) -> StepEnd:
        return self.step, self._epoch, self.body_done, self._step_traced, self.batch_size

    def _end_epoch(self) -> None:
        self._end_step()
        self._epoch += 1
        if self.on_boundary is not None:
            self.on_boundary(None)

    def _mark(self, end: StepEnd | None) -> None:
        """Write that a step ended, or (None) that one begins."""
        self.write((None, (self.now(), end)))

    def _count_cpu(self) -> None:
        now_ns = time.process_time_ns()
        if not self._traced:
            self._cpu_ns += now_ns - self._cpu_counted_to_ns
        self._cpu_counted_to_ns = now_ns

    def _settle(self) -> None:
        """Bring the books up to date."""
        entries = self._log.copy()
        del self._log[: len(entries)]
        self._books.work_up(entries)

    def _settle_if_long(self) -> None:
        if len(self._log) > LONG_LOG:
            self._settle()

    # Finding spans

    def _switch(self) -> None:
        """Look spans up in the present context: in validation or not, with labels or without."""
        self._known = self._contexts.setdefault((self._validating, self.marker is not None), {})
        self._spans.clear()
        self._spans.update(self._known)

    def _find(self, name: str) -> AbstractContextManager[object]:
        """A span that the present context does not know yet."""
        if threading.get_ident() != self._thread:
            return nullcontext()
        kind = classify(name, self.stage, validating=self._validating)
        if kind.phase is None:
            return self._find_inherited(name)
        span = self._known[name] = self._spans[name] = self._make(name, kind)
        return span

    def _find_inherited(self, name: str) -> Span:
        phase = self.phase
        if (name, phase) not in self._inherited and len(self._inherited) >= MOST_OWN_SPANS:
            name = "more"
        key = (name, phase)
        if key not in self._inherited:
            self._inherited[key] = self._make(name, inherited(name, phase), full=True)
        return self._inherited[key]

    def _make(self, action: str, kind: SpanKind, *, full: bool = False) -> Span:
        phase = kind.phase or "other"
        idle = kind.role is Role.NONE or (kind.role is Role.BATCH_START and not self.fetches_itself)
        span: Span
        if full or self.marker is not None or (kind.role not in (Role.FETCH, Role.BODY) and not idle):
            span = FullSpan(self, action, kind, phase)
        elif idle:
            span = Span(self.write, self.now, action, kind, phase)
        else:
            span = (FetchSpan if kind.role is Role.FETCH else BodySpan)(self, action, kind, phase)
        self._books.spans.append(span)
        return span
