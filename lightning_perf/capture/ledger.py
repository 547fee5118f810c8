"""The loop clock's books: exact sums over all steps, and a series of steps that stays small however long the run."""

from __future__ import annotations

from array import array

from lightning_perf.names import PHASES
from lightning_perf.runinfo import StepSeries, StepTotals

SERIES_LIMIT = 8192
"""Most steps kept one by one (0.8 MB). A longer run keeps every second, every fourth ... step; sums stay exact."""


class _Totals:
    """Running sums over complete steps of one kind."""

    def __init__(self) -> None:
        self.steps = 0
        self.duration_ns = 0
        self.phases_ns = [0] * len(PHASES)
        self.samples = 0
        self.samples_known = True

    def add(self, duration_ns: int, phases_ns: list[int], samples: int | None) -> None:
        self.steps += 1
        self.duration_ns += duration_ns
        self.phases_ns = [total + part for total, part in zip(self.phases_ns, phases_ns, strict=True)]
        self.samples += samples or 0
        self.samples_known &= samples is not None

    def record(self) -> StepTotals:
        return StepTotals(
            steps=self.steps,
            duration_ns=self.duration_ns,
            phases_ns=dict(zip(PHASES, self.phases_ns, strict=True)),
            samples=self.samples if self.steps and self.samples_known else None,
        )


class Ledger:
    """Takes one entry per step."""

    def __init__(self) -> None:
        self.plain = _Totals()
        self.traced = _Totals()
        self.incomplete_steps = 0
        self._stride = 1
        self._number = array("q")
        self._epoch = array("q")
        self._duration_ns = array("q")
        self._phases_ns = [array("q") for _ in PHASES]
        self._flags = array("b")

    def add_step(
        self,
        number: int,
        epoch: int,
        phases_ns: list[int],
        *,
        complete: bool,
        traced: bool,
        samples: int | None,
    ) -> None:
        """Enter a step; ``phases_ns`` has one entry for each of ``PHASES``."""
        duration_ns = sum(phases_ns)
        if not complete:
            self.incomplete_steps += 1
        else:
            (self.traced if traced else self.plain).add(duration_ns, phases_ns, samples)
        if number % self._stride:
            return
        self._number.append(number)
        self._epoch.append(epoch)
        self._duration_ns.append(duration_ns)
        self._flags.append(complete + 2 * traced)
        for column, value in zip(self._phases_ns, phases_ns, strict=True):
            column.append(value)
        if len(self._number) > SERIES_LIMIT:
            self._thin_out()

    def series(self) -> StepSeries:
        """The kept steps."""
        return StepSeries(
            stride=self._stride,
            number=self._number.tolist(),
            epoch=self._epoch.tolist(),
            duration_ns=self._duration_ns.tolist(),
            phases_ns={phase: column.tolist() for phase, column in zip(PHASES, self._phases_ns, strict=True)},
            complete=[bool(flags & 1) for flags in self._flags],
            traced=[bool(flags & 2) for flags in self._flags],
        )

    def _thin_out(self) -> None:
        """Keep every second of the kept steps: step numbers count up by one, so they are multiples of the stride."""
        self._stride *= 2
        for column in (self._number, self._epoch, self._duration_ns, self._flags, *self._phases_ns):
            column[:] = column[::2]
