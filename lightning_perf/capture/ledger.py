"""The loop clock's books: sums over all steps, and a series of steps that stays small however long the run."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from lightning_perf.names import PHASES, Phase
from lightning_perf.runinfo import StepSeries, StepTotals

SERIES_LIMIT = 4096
"""Most steps kept one by one (0.4 MB). A longer run keeps every second, every fourth ... step; sums stay exact."""

_COMPLETE, _TRACED = 1, 2
_HEAD = 3
"""Numbers in a row before the phases: the step's number, its epoch, its flags."""
_WIDTH = _HEAD + len(PHASES)


class _Count:
    """How many complete steps of one kind there were, and how many samples they held."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.samples_known = True

    def totals(self, phases_ns: dict[Phase, int]) -> StepTotals:
        return StepTotals(
            steps=self.steps,
            duration_ns=sum(phases_ns.values()),
            phases_ns=phases_ns,
            samples=self.samples if self.steps and self.samples_known else None,
        )


class Ledger:
    """Takes one entry per step. Phase sums are kept by the clock's spans, which add up to them."""

    def __init__(self) -> None:
        self.plain = _Count()
        self.traced = _Count()
        self.incomplete_steps = 0
        self._stride = 1
        self._rows = array("q")

    def add_step(
        self,
        number: int,
        epoch: int,
        phases_ns: Sequence[int],
        *,
        complete: bool,
        traced: bool,
        samples: int | None,
    ) -> None:
        """Enter a step; ``phases_ns`` has one entry for each of ``PHASES``."""
        if not complete:
            self.incomplete_steps += 1
        else:
            kind = self.traced if traced else self.plain
            kind.steps += 1
            if samples is None:
                kind.samples_known = False
            else:
                kind.samples += samples
        if number % self._stride == 0:
            self._rows.extend((number, epoch, complete * _COMPLETE + traced * _TRACED, *phases_ns))
            if len(self._rows) > SERIES_LIMIT * _WIDTH:
                self._thin_out()

    def series(self) -> StepSeries:
        """The kept steps."""
        number, epoch, flags, *phases = (self._rows[column::_WIDTH].tolist() for column in range(_WIDTH))
        return StepSeries(
            stride=self._stride,
            number=number,
            epoch=epoch,
            duration_ns=[sum(step) for step in zip(*phases, strict=True)],
            phases_ns=dict(zip(PHASES, phases, strict=True)),
            complete=[bool(flag & _COMPLETE) for flag in flags],
            traced=[bool(flag & _TRACED) for flag in flags],
        )

    def _thin_out(self) -> None:
        """Keep every second row: step numbers count up by one, so those kept are multiples of the stride."""
        self._stride *= 2
        kept = array("q")
        for start in range(0, len(self._rows), 2 * _WIDTH):
            kept.extend(self._rows[start : start + _WIDTH])
        self._rows = kept
