"""Memory from a trace's allocator events: peaks, what the host did at them, growth from step to step, curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Int64s, MemoryEvents, Trace
from lightning_perf.measure.analysis import MemoryPeak, TraceMemory
from lightning_perf.measure.operators import module_name, module_rows, operator_rows
from lightning_perf.measure.steps import HostStep, is_label, named
from lightning_perf.measure.thinning import highest
from lightning_perf.measure.timeline import MemoryCurve
from lightning_perf.names import Phase, phase_of_label

CPU: Final = "cpu"
"""Key of the host's memory."""

_CPU_TYPE: Final = 0
"""c10::DeviceType::CPU."""

_UNKNOWN: Final = -1

CURVE_POINTS: Final = 600
"""Most points of a curve."""
_CURVE_PARTS: Final = (CURVE_POINTS - 3) // 2


def measure_memory(trace: Trace, steps: Sequence[HostStep]) -> TraceMemory | None:
    """Peaks, growth and curves per device, or None where no memory was recorded.

    Traces before torch 1.12 have no totals. Growth is then the running sum of the events. What a device had
    allocated before is not known then, so it has no peak in bytes, but the moment of the peak is the same.

    Args:
        trace: the trace.
        steps: its :func:`~lightning_perf.measure.steps.host_steps`.
    """
    events = trace.memory
    if events.time_ns.size == 0:
        return None
    cpu = events.device_type == _CPU_TYPE
    devices = {
        str(index): np.flatnonzero(~cpu & (events.device == index)) for index in np.unique(events.device[~cpu]).tolist()
    }
    allocated = {key: _allocated(events, rows) for key, rows in devices.items()}
    host = np.flatnonzero(cpu)
    host_growth = _host_growth(events, host)
    ends_ns = np.array([step.end_ns for step in steps if step.complete], dtype=np.int64)
    growth = {key: _growth(events, series, ends_ns) for key, series in allocated.items()}
    curves = [_curve(events, key, series) for key, series in allocated.items()]
    if host.size:
        of_host = _Series(host, host_growth, known=False)
        growth[CPU] = _growth(events, of_host, ends_ns)
        curves.append(_curve(events, CPU, of_host))
    return TraceMemory(
        peak_allocated_bytes={
            key: int(series.bytes.max()) for key, series in allocated.items() if series.known and series.rows.size
        },
        peak_reserved_bytes=_peaks(events, devices),
        cpu_growth_bytes=int(host_growth.max(initial=0)) if host.size else None,
        peaks={key: _peak(trace, series, steps) for key, series in allocated.items()},
        step_growth_bytes=growth if ends_ns.size > 1 else {},
        curves=curves,
    )


@dataclass(frozen=True, slots=True)
class _Series:
    """Bytes allocated after some events of the allocator; ``known`` is False where the zero is not."""

    rows: Int64s
    bytes: Int64s
    known: bool


def _allocated(events: MemoryEvents, rows: Int64s) -> _Series:
    """What a device has allocated: the totals where there are any, else the running sum."""
    with_total = rows[events.total_allocated_bytes[rows] >= 0]
    if with_total.size:
        return _Series(with_total, events.total_allocated_bytes[with_total], known=True)
    return _Series(rows, np.cumsum(events.bytes[rows]), known=False)


def _host_growth(events: MemoryEvents, rows: Int64s) -> Int64s:
    totals = events.total_allocated_bytes[rows]
    return np.cumsum(events.bytes[rows]) if np.all(totals < 0) else totals


def _peaks(events: MemoryEvents, devices: dict[str, Int64s]) -> dict[str, int]:
    most = {key: int(events.total_reserved_bytes[rows].max()) for key, rows in devices.items()}
    return {key: value for key, value in most.items() if value >= 0}


def _growth(events: MemoryEvents, series: _Series, ends_ns: Int64s) -> list[int]:
    """Differences of what is allocated at the ends of steps."""
    before_all = int(series.bytes[0] - events.bytes[series.rows[0]])
    levels = np.concatenate([[before_all], series.bytes])
    at_ends = levels[np.searchsorted(events.time_ns[series.rows], ends_ns, side="left")]
    growth: list[int] = np.diff(at_ends).tolist()
    return growth


def _curve(events: MemoryEvents, device: str, series: _Series) -> MemoryCurve:
    """A series in few points: of equal parts of its time the highest and the lowest one.

    The first and the last point stay, and so does the first with the most reserved.
    """
    time_ns, reserved = events.time_ns[series.rows], events.total_reserved_bytes[series.rows]
    kept = np.arange(series.rows.size)
    if kept.size > CURVE_POINTS:
        part = (time_ns - time_ns[0]) // (int(time_ns[-1] - time_ns[0]) // _CURVE_PARTS + 1)
        ends = (0, kept.size - 1, int(reserved.argmax()))
        kept = np.unique(np.concatenate((ends, highest(part, series.bytes), highest(part, -series.bytes))))
    return MemoryCurve(
        device=device,
        time_us=(time_ns[kept] / 1000).tolist(),
        allocated_bytes=series.bytes[kept].tolist(),
        reserved_bytes=reserved[kept].tolist() if np.all(reserved >= 0) else None,
        since_start=not series.known,
    )


def _peak(trace: Trace, series: _Series, steps: Sequence[HostStep]) -> MemoryPeak:
    events = trace.memory
    place = int(series.bytes.argmax())
    row, allocated = int(series.rows[place]), int(series.bytes[place])
    reserved = int(events.total_reserved_bytes[row])
    time_ns = int(events.time_ns[row])
    step = next((step for step in steps if step.start_ns <= time_ns < step.end_ns), None)
    caller = (int(events.process[row]), int(events.thread[row]))
    caller_or_any = None if _UNKNOWN in caller else caller
    operator = _innermost(trace, operator_rows(trace), time_ns, caller_or_any)
    module = _innermost(trace, module_rows(trace), time_ns, caller_or_any)
    return MemoryPeak(
        time_us=time_ns / 1000,
        allocated_bytes=allocated if series.known else None,
        unallocated_bytes=reserved - allocated if series.known and reserved >= 0 else None,
        step=None if step is None else step.number,
        phase=_phase(trace, time_ns, caller_or_any if step is None else (step.process, step.thread)),
        operator=operator,
        module=None if module is None else module_name(module),
    )


def _phase(trace: Trace, time_ns: int, thread: tuple[int, int] | None) -> Phase | None:
    """Phase of the innermost label of this package on a thread; None where the trace has none."""
    labels = np.flatnonzero(named(trace, is_label))
    if labels.size == 0:
        return None
    name = _innermost(trace, labels, time_ns, thread)
    return "other" if name is None else phase_of_label(name) or "other"


def _innermost(trace: Trace, rows: Int64s, time_ns: int, thread: tuple[int, int] | None) -> str | None:
    """Name of the range open at a time that began last, on a thread (process and thread), or on any if None."""
    inside = (trace.start_ns[rows] <= time_ns) & (time_ns < trace.start_ns[rows] + trace.duration_ns[rows])
    if thread is not None:
        inside &= (trace.process[rows] == thread[0]) & (trace.thread[rows] == thread[1])
    found = rows[inside]
    return trace.names[trace.name_id[found[-1]]] if found.size else None  # rows are sorted by start
