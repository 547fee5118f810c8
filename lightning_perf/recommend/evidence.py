"""What rules look at: one run or one trace, with the figures that several rules need."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from lightning_perf.measure.analysis import Analysis, Device, IdleShare, Loop, Window, busiest_device, last_window
from lightning_perf.names import Cause, Phase
from lightning_perf.runinfo import LoaderFacts, LoopRecord, RunInfo, StepSeries

WARM_UP_STEPS: Final = 2
"""Steps at a run's start that hold what happens once (lazy initialisation, the first compilation)."""

_NORMAL: Final = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""

ENOUGH_STEPS: Final = 4
"""Plain steps after warming up from which on a mean is taken over them alone."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run or one trace.

    ``step_us`` is the mean step: of the loop clock without warm-up where there is a run, else of the trace (on a
    device, its window over its steps). ``noise_us`` is the median absolute deviation of steps, ``steps`` how many there
    are; 0 where the trace marks none, and the "step" is then everything recorded. ``phases_us`` are means of the same
    steps, empty without a run; ``quick_fetch_us`` is the time that nine of ten steps spend on ``data`` at least.
    ``inflation`` is how much longer a step takes under the profiler, 1 if unknown.
    """

    run: RunInfo | None
    loop: Loop | None
    window: Window | None
    device: Device | None
    step_us: float
    noise_us: float
    steps: int
    phases_us: dict[Phase, float]
    inflation: float
    quick_fetch_us: float = 0.0
    others: tuple[Window, ...] = ()
    """Windows of other ranks that recorded the same steps."""

    @property
    def per(self) -> str:
        """What shares are of, for people."""
        return "a step" if self.steps else "the recorded time"

    @property
    def loader(self) -> LoaderFacts | None:
        """The loader that feeds the loop: the first one of the stage."""
        stage = self.run.stage if self.run is not None else ""
        return next((one for one in (self.run.loaders if self.run else []) if one.stage == stage), None)

    @property
    def cores(self) -> int | None:
        """Processors that this rank may count on."""
        return max(1, self.run.cpu_count // max(1, self.run.world_size)) if self.run is not None else None

    @property
    def cpu_us(self) -> float | None:
        """Processor time of the process per step, all threads; None without a run."""
        loop = self.run.loop if self.run is not None else None
        if loop is None or loop.cpu_ns is None or not loop.plain.steps:
            return None
        return loop.cpu_ns / 1000 / loop.plain.steps

    def spans_us(self, prefix: str = "") -> dict[str, float]:
        """Exclusive time per step of the loop's spans whose name begins so, the largest first."""
        hooks = self.loop.hooks_us if self.loop is not None else {}
        return {name: spent for name, spent in hooks.items() if name.startswith(prefix)}

    def calls_per_step(self, name: str) -> float | None:
        """How often a span of the loop is entered in a step; None without a run."""
        record = self.run.loop if self.run is not None else None
        if record is None:
            return None
        steps = record.plain.steps + record.traced.steps
        return sum(span.calls for span in record.spans if span.name == name) / steps if steps else None

    def idle_us(self, *causes: Cause) -> float:
        """Idle time of the device per recorded step with any of these causes."""
        measured = self.device.window if self.device is not None else None
        spent = sum(share.idle_us for share in self.idle_shares(*causes))
        return spent / max(1, measured.steps) if measured is not None else 0.0

    def idle_shares(self, *causes: Cause) -> list[IdleShare]:
        """Idle time of the device by activity, over the whole window, the largest first."""
        measured = self.device.window if self.device is not None else None
        shares = [share for share in measured.idle_shares if share.cause in causes] if measured is not None else []
        return sorted(shares, key=lambda share: -share.idle_us)

    @property
    def steps_recorded(self) -> int:
        """Complete steps in the trace."""
        return sum(step.complete for step in self.window.steps) if self.window is not None else 0

    def worth(self, saving_us: float) -> bool:
        """Whether a saving is large enough to be shown: beyond 2 % of the step and twice the noise of its mean.

        A saving is one of the mean of ``steps`` steps. Steps may alternate, as those do that wait for two workers, and
        differ much more than their mean is unsure: its standard error is 1.48 deviations over the root of their number.
        """
        return saving_us > max(0.02 * self.step_us, 2 * _NORMAL * self.noise_us / math.sqrt(max(1, self.steps)))


def evidence_of_run(analysis: Analysis) -> Evidence | None:
    """The evidence of a run with its last own window; None if no step was completed."""
    run, loop = analysis.run, analysis.loop
    if run is None or loop is None or run.loop is None:
        return None
    window = last_window(analysis)
    step_us, phases_us, durations = _without_warm_up(run.loop)
    if not durations:  # every step ran under the profiler
        step_us, phases_us, durations = loop.step_time_us.mean, dict(loop.phases_us), [loop.step_time_us.p50]
    traced = loop.traced_step_time_us
    return Evidence(
        run=run,
        loop=loop,
        window=window,
        device=busiest_device(window) if window is not None else None,
        step_us=step_us,
        noise_us=deviation(durations),
        steps=len(durations),
        phases_us=phases_us,
        inflation=max(1.0, traced / loop.step_time_us.p50) if traced is not None else 1.0,
        quick_fetch_us=_tenth(run.loop.series) / 1000,
        others=other_ranks(window, analysis.windows) if window is not None else (),
    )


def evidence_of_trace(window: Window, windows: Iterable[Window] = ()) -> Evidence:
    """The evidence of a trace alone, read together with others."""
    device = busiest_device(window)
    durations = [step.duration_us for step in window.steps if step.complete]
    step_us = fmean(durations) if durations else window.duration_us
    if device is not None and device.window is not None:
        step_us = device.window.duration_us / max(1, device.window.steps)
    return Evidence(
        run=None,
        loop=None,
        window=window,
        device=device,
        step_us=step_us,
        noise_us=deviation(durations),
        steps=len(durations),
        phases_us={},
        inflation=1.0,
        others=other_ranks(window, windows),
    )


def other_ranks(window: Window, windows: Iterable[Window]) -> tuple[Window, ...]:
    """Windows of other ranks, one each, with the same steps on the same kind of device: one job, it seems."""
    if window.rank is None or not window.steps:
        return ()
    ranks = {
        one.rank: one for one in windows if one.rank not in (None, window.rank) and _recorded(one) == _recorded(window)
    }
    return tuple(ranks.values())


def _recorded(window: Window) -> tuple[list[int], list[str | None]]:
    return [step.number for step in window.steps], [device.name for device in window.devices]


def _tenth(series: StepSeries) -> int:
    """The tenth percentile of the phase ``data`` over complete plain steps, nanoseconds; 0 without any."""
    spent = sorted(
        series.phases_ns["data"][place]
        for place, complete in enumerate(series.complete)
        if complete and not series.traced[place]
    )
    return spent[len(spent) // 10] if spent else 0


def deviation(values: list[float]) -> float:
    """Median absolute deviation."""
    if not values:
        return 0.0
    middle = median(values)
    return median(abs(value - middle) for value in values)


def _without_warm_up(record: LoopRecord) -> tuple[float, dict[Phase, float], list[float]]:
    """Mean plain step and its phases, microseconds, and the durations of those plain steps that were kept.

    Steps at the start are left out if enough others remain. Means are of all others: a long run keeps every n-th step,
    and what happens every n-th step may be in all of these or in none.
    """
    series, plain = record.series, record.plain
    kept = [place for place, traced in enumerate(series.traced) if series.complete[place] and not traced]
    warm_up = [place for place in kept if series.number[place] < WARM_UP_STEPS]
    if plain.steps - len(warm_up) < ENOUGH_STEPS:
        warm_up = []
    steps = plain.steps - len(warm_up)
    if steps <= 0:
        return 0.0, {}, []

    def mean_us(total_ns: int, of_step_ns: list[int]) -> float:
        return (total_ns - sum(of_step_ns[place] for place in warm_up)) / steps / 1000

    phases_us = {phase: mean_us(total_ns, series.phases_ns[phase]) for phase, total_ns in plain.phases_ns.items()}
    durations = [series.duration_ns[place] / 1000 for place in kept if place not in warm_up]
    step_us = mean_us(plain.duration_ns, series.duration_ns)
    return step_us, phases_us, durations or [step_us]
