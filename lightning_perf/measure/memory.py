"""Memory peaks from a trace's allocator events."""

from __future__ import annotations

import numpy as np

from lightning_perf.decode.trace import Int64s, MemoryEvents
from lightning_perf.measure.analysis import TraceMemory

_CPU = 0
"""c10::DeviceType::CPU."""


def measure_memory(events: MemoryEvents) -> TraceMemory | None:
    """Peaks per device and the largest growth on the CPU, or None where no memory was recorded.

    Traces before torch 1.12 have no totals. The CPU's growth is then the running sum of its events; for a device
    the total at the start is not known, so it has no peak.
    """
    if events.time_ns.size == 0:
        return None
    cpu = events.device_type == _CPU
    growth = events.total_allocated_bytes[cpu]
    if np.all(growth < 0):
        growth = np.cumsum(events.bytes[cpu])
    return TraceMemory(
        peak_allocated_bytes=_peaks(events.device[~cpu], events.total_allocated_bytes[~cpu]),
        peak_reserved_bytes=_peaks(events.device[~cpu], events.total_reserved_bytes[~cpu]),
        cpu_growth_bytes=int(growth.max(initial=0)) if cpu.any() else None,
    )


def _peaks(device: np.ndarray[tuple[int], np.dtype[np.int32]], totals: Int64s) -> dict[str, int]:
    known = totals >= 0
    return {str(index): int(totals[known & (device == index)].max()) for index in np.unique(device[known]).tolist()}
