"""What each device did: busy, idle, computing, communicating, copying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Category, Int64s, Trace
from lightning_perf.measure.analysis import Device, DeviceWindow
from lightning_perf.measure.causes import IdleTime, idle_time
from lightning_perf.measure.collectives import is_collective
from lightning_perf.measure.host import HOST, Host
from lightning_perf.measure.intervals import Intervals, clip, gaps, split, subtract, union
from lightning_perf.measure.launches import NO_LAUNCH, names_where
from lightning_perf.measure.steps import HostStep


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A device, the rows of its operations, and when any of them ran.

    ``instants_ns`` are the starts of operations that took no time (less than the trace can tell): they are not
    busy time, but they end one gap and begin another.
    """

    index: int
    rows: Int64s
    busy: Intervals
    instants_ns: Int64s

    def idle(self, start_ns: int, end_ns: int) -> Intervals:
        """The maximal idle intervals inside ``[start_ns, end_ns)``."""
        return split(gaps(self.busy, start_ns, end_ns), self.instants_ns)


def device_work(trace: Trace) -> list[DeviceWork]:
    """The operations of every device that has any, by device index."""
    operations = np.flatnonzero(trace.category <= LAST_DEVICE_OPERATION)
    work = []
    for index in np.unique(trace.device[operations]).tolist():
        rows = operations[trace.device[operations] == index]
        instants = trace.start_ns[rows[trace.duration_ns[rows] == 0]]
        work.append(DeviceWork(index=index, rows=rows, busy=_covered(trace, rows), instants_ns=instants))
    return work


@dataclass(frozen=True, slots=True)
class WindowIdle:
    """When a device was idle in its window of complete steps, and why."""

    start_ns: int
    end_ns: int
    gaps: Intervals
    explained: IdleTime


def explain_idle(trace: Trace, work: DeviceWork, host: Host, steps: Sequence[HostStep], launches: Int64s) -> WindowIdle:
    """Explain a device's idle time over its window."""
    start_ns, end_ns = window_bounds(trace, work, steps, launches)
    idle = work.idle(start_ns, end_ns)
    explained = idle_time(trace, work.rows, work.busy, idle, start_ns, host, steps, launches)
    return WindowIdle(start_ns=start_ns, end_ns=end_ns, gaps=idle, explained=explained)


def measure_device(trace: Trace, work: DeviceWork, window: WindowIdle, steps: Sequence[HostStep]) -> Device:
    """A device over its span and over its window of complete steps."""
    rows = work.rows
    collective = names_where(trace, rows, is_collective)[trace.name_id[rows]]
    kernel = trace.category[rows] == Category.KERNEL
    communication = _covered(trace, rows[collective])
    start_ns, end_ns = int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())
    idle = work.idle(start_ns, end_ns)
    names = {device.index: device.name for device in trace.devices}
    return Device(
        index=str(work.index),
        name=names.get(work.index),
        operations=int(rows.size),
        span_us=(end_ns - start_ns) / 1000,
        busy_us=work.busy.total / 1000,
        idle_us=idle.total / 1000,
        gaps=len(idle),
        compute_us=_covered(trace, rows[kernel & ~collective]).total / 1000,
        communication_us=communication.total / 1000,
        exposed_communication_us=subtract(communication, _covered(trace, rows[~collective])).total / 1000,
        copy_us=_covered(trace, rows[trace.category[rows] == Category.MEMCPY]).total / 1000,
        window=_window(work, window, steps),
    )


def _covered(trace: Trace, rows: Int64s) -> Intervals:
    return union(trace.start_ns[rows], trace.start_ns[rows] + trace.duration_ns[rows])


def window_bounds(trace: Trace, work: DeviceWork, steps: Sequence[HostStep], launches: Int64s) -> tuple[int, int]:
    """Start and end of the window of device-adjusted complete steps.

    Without steps the window is the host's recorded time; without a host it is the device's span.
    """
    complete = [step for step in steps if step.complete]
    if complete:
        return adjusted_window(trace, work, complete, launches)
    host = np.flatnonzero(np.isin(trace.category, HOST))
    rows = host if host.size else work.rows
    return int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())


def _window(work: DeviceWork, window: WindowIdle, steps: Sequence[HostStep]) -> DeviceWindow:
    """The device over its window."""
    idle, explained = window.gaps, window.explained
    return DeviceWindow(
        steps=sum(step.complete for step in steps),
        duration_us=(window.end_ns - window.start_ns) / 1000,
        busy_us=clip(work.busy, window.start_ns, window.end_ns).total / 1000,
        idle_us=idle.total / 1000,
        gaps=len(idle),
        largest_gap_us=int(idle.lengths.max(initial=0)) / 1000,
        idle_causes_us={cause: spent / 1000 for cause, spent in explained.causes_ns.items()},
        idle_shares=explained.shares,
        largest_gaps=explained.largest_gaps,
    )


def adjusted_window(trace: Trace, work: DeviceWork, steps: Sequence[HostStep], launches: Int64s) -> tuple[int, int]:
    """Start and end of steps on a device: a step ends when the work ends that it launched on any thread.

    So it begins, too: work launched before the first step that ends before that step's own work begins belongs
    to what came before. This is torch-tb-profiler's rule, with the driver API's launches included.

    Args:
        trace: the trace.
        work: the device.
        steps: the steps, at least one, by start.
        launches: the trace's :func:`launch_rows`.
    """
    rows = work.rows
    launched = launches[rows] != NO_LAUNCH
    launch_ns = np.where(launched, trace.start_ns[launches[rows]], -1)
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    step = np.searchsorted(starts, launch_ns, side="right") - 1
    inside = launched & (step >= 0) & (launch_ns < ends[np.maximum(step, 0)])
    work_end = trace.end_ns[rows]

    start_ns = steps[0].start_ns
    first = inside & (step == 0)
    if first.any():
        before = work_end[~inside & (work_end <= trace.start_ns[rows][first].min())]
        start_ns = max(start_ns, int(before.max(initial=start_ns)))
    end_ns = max(int(ends.max()), int(work_end[inside].max(initial=start_ns)))
    return start_ns, end_ns
