"""The loop clock's books -> figures of the whole run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_perf.measure.analysis import EpochStarts, Loop, Spread
from lightning_perf.names import PHASES
from lightning_perf.runinfo import LoopRecord

US = 1e-3
"""Microseconds in a nanosecond."""


def measure_loop(record: LoopRecord) -> Loop | None:
    """Figures over complete steps, without those that ran under torch.profiler unless there are no others.

    Means are exact over all steps. Percentiles are taken over the kept series, which on long runs holds every
    ``stride``-th step. None if no step was completed.
    """
    use_traced = record.plain.steps == 0
    totals = record.traced if use_traced else record.plain
    if totals.duration_ns == 0:
        return None
    series = record.series
    complete = np.array(series.complete, dtype=bool)
    traced = np.array(series.traced, dtype=bool)
    durations_us = np.array(series.duration_ns, dtype=np.int64) * US
    working_ns = totals.duration_ns - totals.phases_ns["validation"]
    spans = {span.name: span.traced_ns if use_traced else span.plain_ns for span in record.spans}
    return Loop(
        steps=totals.steps,
        step_time_us=_spread(durations_us[complete & (traced == use_traced)], totals.duration_ns * US / totals.steps),
        samples_per_second=totals.samples / (working_ns * 1e-9) if totals.samples and working_ns else None,
        phases_us={phase: totals.phases_ns[phase] * US / totals.steps for phase in PHASES},
        hooks_us={
            name: total_ns * US / totals.steps
            for name, total_ns in sorted(spans.items(), key=lambda item: -item[1])
            if total_ns
        },
        data_loading_ratio=totals.phases_ns["data"] / totals.duration_ns,
        traced_steps=record.traced.steps,
        traced_step_time_us=None if use_traced else _median(durations_us[complete & traced]),
        epoch_start_us=_epoch_starts(record),
    )


def _spread(durations_us: npt.NDArray[np.float64], mean_us: float) -> Spread:
    if durations_us.size == 0:  # all of the few steps of this kind were thinned out of the series
        return Spread(mean=mean_us, p50=mean_us, p95=mean_us, max=mean_us)
    p50, p95 = np.percentile(durations_us, (50, 95))
    return Spread(mean=mean_us, p50=float(p50), p95=float(p95), max=float(durations_us.max()))


def _median(durations_us: npt.NDArray[np.float64]) -> float | None:
    return float(np.median(durations_us)) if durations_us.size else None


def _epoch_starts(record: LoopRecord) -> EpochStarts | None:
    starts = record.epoch_starts
    if not starts:
        return None
    return EpochStarts(
        epochs=len(starts),
        iterator=sum(start.iterator_ns for start in starts) * US / len(starts),
        first_fetch=sum(start.first_fetch_ns for start in starts) * US / len(starts),
    )
