"""Analysis -> scalars for the trainer's loggers. Absent when unknown, finite always."""

from __future__ import annotations

import math

from lightning_perf.comparison.records import Comparison
from lightning_perf.measure.analysis import Analysis, Loop, Window, busiest_device, last_window
from lightning_perf.names import PHASES, Stage, metric
from lightning_perf.runinfo import MemoryPeaks

MIB = 1 << 20


def all_scalars(analysis: Analysis) -> dict[str, float | None]:
    """Every figure of a run; those of a device come from the last window."""
    figures = loop_scalars(analysis.loop)
    if analysis.run is not None:
        figures.update(memory_scalars(analysis.run.memory))
    window = last_window(analysis)
    if window is not None:
        figures.update(device_scalars(window))
    return figures


def change_scalars(comparison: Comparison) -> dict[str, float | None]:
    """Changes since the baseline as shares (0.05 is 5 % more), the typical step's with its interval."""
    change = comparison.step
    scalars: dict[str, float | None] = {f"change_{one.name}": one.change for one in comparison.metrics}
    for name, ratio in (("step_time", change.ratio), ("step_time_low", change.low), ("step_time_high", change.high)):
        scalars[f"change_{name}"] = None if ratio is None else ratio - 1
    return scalars


def loop_scalars(loop: Loop | None) -> dict[str, float | None]:
    """Figures of the loop clock. Step times are the median and the 95th percentile, ratios shares of the mean."""
    if loop is None:
        return {}
    mean_us = loop.step_time_us.mean
    scalars: dict[str, float | None] = {
        "step_time_ms": loop.step_time_us.p50 / 1e3,
        "step_time_p95_ms": loop.step_time_us.p95 / 1e3,
        "samples_per_second": loop.samples_per_second,
        "data_loading_ratio": loop.data_loading_ratio,
    }
    scalars.update({f"phase_{phase}_ratio": loop.phases_us[phase] / mean_us for phase in PHASES})
    if loop.traced_step_time_us is not None:
        scalars["profiling_overhead_ratio"] = loop.traced_step_time_us / loop.step_time_us.p50 - 1
    return scalars


def memory_scalars(memory: MemoryPeaks) -> dict[str, float | None]:
    """Peaks of memory; of the fullest device where a process has several."""
    return {
        "memory_peak_allocated_mib": max(memory.allocated_bytes.values(), default=math.nan) / MIB,
        "memory_peak_reserved_mib": max(memory.reserved_bytes.values(), default=math.nan) / MIB,
        "memory_peak_rss_mib": memory.rss_bytes / MIB if memory.rss_bytes is not None else None,
    }


def device_scalars(window: Window) -> dict[str, float | None]:
    """Figures of the device that did most operations, over the window of device-adjusted complete steps.

    The shares of the causes of idle time add up to the share of idle time.
    """
    device = busiest_device(window)
    if device is None or device.window is None or not device.window.duration_us:
        return {}
    measured = device.window
    causes: dict[str, float | None] = {
        f"gpu_idle_{cause}_ratio": idle_us / measured.duration_us for cause, idle_us in measured.idle_causes_us.items()
    }
    return {
        "gpu_busy_ratio": measured.busy_us / measured.duration_us,
        "gpu_idle_ratio": measured.idle_us / measured.duration_us,
        "gpu_idle_gaps_per_step": measured.gaps / measured.steps if measured.steps else None,
        "gpu_idle_gap_max_ms": measured.largest_gap_us / 1e3,
        **causes,
    }


def named(scalars: dict[str, float | None], stage: Stage, separator: str) -> dict[str, float]:
    """Keys as a logger wants them, without unknown and non-finite values."""
    return {
        metric(name, stage, separator): float(value)
        for name, value in scalars.items()
        if value is not None and math.isfinite(value)
    }
