"""The loop clock's books: what was written in the loop, worked up into steps and the time of every span."""

from __future__ import annotations

from collections import deque
from typing import Final

from lightning_perf.capture.ledger import SERIES_LIMIT, Ledger
from lightning_perf.capture.span import Span
from lightning_perf.names import PHASES, Phase
from lightning_perf.runinfo import EpochStart, LoopRecord, SpanTotal

StepEnd = tuple[int, int, bool, bool, "int | None"]
"""A step's number, its epoch, whether it is complete, whether it was traced, and its samples if known."""

_DATA: Final = PHASES.index("data")


class Books:
    """Works up a log of pairs: a span and a time (negative, by ``~``, for an end), or None and a boundary.

    A boundary is a time with a :data:`StepEnd`, or with None where a step begins or the log was closed.
    """

    def __init__(self, root: Span, began_ns: int) -> None:
        self.stack = [root]
        self.spans = [root]
        self._last = began_ns
        self._touched: list[Span] = []
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget all steps; an iterator made just now is kept for the next one."""
        self._ledger = Ledger()
        self._epoch_starts: deque[EpochStart] = deque(maxlen=SERIES_LIMIT)
        self._epoch_of_last_step = -1
        self._iterator_ns = sum(span.ns for span in self._touched)
        self._outside_ns = 0
        for span in self.spans:
            span.calls = span.plain_ns = span.traced_ns = 0

    def record(self, profiler_ns: int, *, cpu_ns: int, fetch_cpu_ratio: float | None) -> LoopRecord:
        """Everything in the books."""
        return LoopRecord(
            plain=self._ledger.plain.totals(self._phase_totals(traced=False)),
            traced=self._ledger.traced.totals(self._phase_totals(traced=True)),
            incomplete_steps=self._ledger.incomplete_steps,
            outside_ns=self._outside_ns,
            profiler_ns=profiler_ns,
            cpu_ns=cpu_ns,
            fetch_cpu_ratio=fetch_cpu_ratio,
            series=self._ledger.series(),
            spans=self._span_totals(),
            epoch_starts=list(self._epoch_starts),
        )

    def work_up(self, entries: list[object]) -> None:
        """Enter what was written, in order; it may end anywhere."""
        stack, touched, last = self.stack, self._touched, self._last
        for span, time_ns in zip(entries[::2], entries[1::2], strict=True):
            if span is None:
                last = self._enter_boundary(last, *time_ns)  # type: ignore[misc]
                continue
            began = time_ns >= 0  # type: ignore[operator]
            now = time_ns if began else ~time_ns  # type: ignore[operator]
            if now < last:  # type: ignore[operator]
                now = last  # the garbage collector came between looking at the clock and writing it down
            top = stack[-1]
            top.ns += now - last  # type: ignore[operator]
            touched.append(top)
            last = now  # type: ignore[assignment]
            if began:
                span.calls += 1  # type: ignore[attr-defined]
                stack.append(span)  # type: ignore[arg-type]
            elif top is span:
                stack.pop()
            elif span in stack:  # an exception left those inside it open
                while stack.pop() is not span:
                    pass
        self._last = last

    def _enter_boundary(self, last: int, now: int, end: StepEnd | None) -> int:
        self.stack[-1].ns += now - last
        self._touched.append(self.stack[-1])
        if end is None:
            self._book_outside()
        else:
            self._book_step(*end)
        return now

    def _book_step(self, number: int, epoch: int, complete: bool, traced: bool, samples: int | None) -> None:  # noqa: FBT001 - a StepEnd
        """Enter a step into the ledger."""
        phases_ns = [0] * len(PHASES)
        for span in self._touched:
            ns = span.ns
            if ns:
                phases_ns[span.column] += ns
                if complete:
                    if traced:
                        span.traced_ns += ns
                    else:
                        span.plain_ns += ns
                span.ns = 0
        self._touched.clear()
        self._ledger.add_step(number, epoch, phases_ns, complete=complete, traced=traced, samples=samples)
        if epoch != self._epoch_of_last_step:
            self._epoch_of_last_step = epoch
            first_fetch_ns = phases_ns[_DATA] - self._iterator_ns
            self._epoch_starts.append(
                EpochStart(epoch=epoch, iterator_ns=self._iterator_ns, first_fetch_ns=first_fetch_ns)
            )
        self._iterator_ns = 0

    def _book_outside(self) -> None:
        """Book the time since the last step ended. Making an iterator stays on its span, for the next step."""
        kept: dict[int, Span] = {}
        for span in self._touched:
            if span.column == _DATA:
                kept[id(span)] = span
            else:
                self._outside_ns += span.ns
                span.ns = 0
        self._touched[:] = kept.values()
        self._iterator_ns = sum(span.ns for span in self._touched)

    def _phase_totals(self, *, traced: bool) -> dict[Phase, int]:
        totals = dict.fromkeys(PHASES, 0)
        for span in self.spans:
            totals[span.phase] += span.traced_ns if traced else span.plain_ns
        return totals

    def _span_totals(self) -> list[SpanTotal]:
        """Sums by label: two spans may share one, for example two checkpoint callbacks."""
        sums: dict[tuple[str, Phase], list[int]] = {}
        for span in self.spans:
            if span.plain_ns or span.traced_ns:
                row = sums.setdefault((span.kind.name, span.phase), [0, 0, 0])
                for column, value in enumerate((span.calls, span.plain_ns, span.traced_ns)):
                    row[column] += value
        return [
            SpanTotal(name=name, phase=phase, calls=calls, plain_ns=plain_ns, traced_ns=traced_ns)
            for (name, phase), (calls, plain_ns, traced_ns) in sorted(sums.items(), key=lambda row: -sum(row[1][1:]))
        ]
