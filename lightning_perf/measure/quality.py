"""What a trace cannot carry: notes on its steps and on its links from host to device.

The file itself may be sound (``decode`` notes where it is not) and yet hold too little for a verdict. Codes are
stable: other tools compare them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import numpy as np

from lightning_perf import units
from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Category, Int64s, Trace
from lightning_perf.measure.analysis import Quality
from lightning_perf.measure.kernels import is_graph_launch
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.steps import HostStep

UNRELIABLE_SHARE: Final = 0.05
"""Of all device operations: so many that are not linked to the host, or wrongly, and causes are not to be trusted.

Kineto drops kernels when recording starts (pytorch #192021), NCCL kernels may start before their launch (kineto
#1380), and clocks of host and device disagree on some ROCm versions (kineto #991, #1082). A few of them change no
figure by as much as steps differ from each other anyhow.
"""

CLOCK_TOLERANCE_NS: Final = 1000
"""Traces until 2023 have whole microseconds: an operation may seem to start that much before its launch."""

OUTLIER_RATIO: Final = 1.5
"""A first step that takes this many times the others' median, and longer than each, was not warmed up (kineto #328).

Above the jitter of sound steps: a ResNet-50 on a V100 with four loader workers gave a first step of 1.44 times the
median of the others, and as slow ones later.
"""

ENOUGH_STEPS: Final = 3
"""Fewer complete steps have no median that one slow step cannot move; 3 to 5 are what profiling guides record."""

_KERNEL_LAUNCH: Final = re.compile(r"(?:cuda|hip|cu)\w*Launch\w*Kernel")
"""Calls that launch one kernel, and no graph."""

_SHOWN: Final = 5
"""Step numbers in a message."""


def trace_quality(trace: Trace, steps: Sequence[HostStep], launches: Int64s) -> list[Quality]:
    """Notes on what the trace lacks, in a fixed order; none for a sound one.

    Args:
        trace: the trace.
        steps: its :func:`~lightning_perf.measure.steps.host_steps`.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
    """
    operations = np.flatnonzero(trace.category <= LAST_DEVICE_OPERATION)
    notes = [*_step_notes(steps)]
    if operations.size:
        checks: tuple[Callable[[], Quality | None], ...] = (
            lambda: _steps_without_device_work(trace, steps, launches, operations),
            *(lambda early=early: _without_launch(trace, launches, operations, early=early) for early in (True, False)),
            lambda: _negative_latency(trace, launches, operations),
            lambda: _launches_without_kernel(trace, operations),
            lambda: _graphs_without_kernels(trace, launches, operations),
        )
        notes += [note for check in checks if (note := check()) is not None]
    return notes


def _step_notes(steps: Sequence[HostStep]) -> list[Quality]:
    """Too few steps, steps without a batch, a first step that is not like the others."""
    if not steps:
        text = "The trace marks no steps (ProfilerStep#N): it is measured as a whole, and figures per step are absent."
        return [Quality(code="no_steps", message=text, count=1)]
    notes = []
    complete = [step for step in steps if step.complete]
    if len(complete) < ENOUGH_STEPS:
        number = ("no complete step", "1 complete step", "2 complete steps")[len(complete)]
        text = f"The trace holds {number}; record {ENOUGH_STEPS} or more before trusting its averages."
        notes.append(Quality(code="few_steps", message=text, count=len(complete)))
    partial = [step.number for step in steps if not step.complete]
    if partial:
        verb = "holds" if len(partial) == 1 else "hold"
        text = f"{_numbers(partial)} {verb} no whole batch and no average counts {_them(partial)}."
        notes.append(Quality(code="steps_without_batch", message=text, count=len(partial)))
    if len(complete) >= ENOUGH_STEPS:
        first, *others = (step.end_ns - step.start_ns for step in complete)
        usual = median(others)
        if first > max(OUTLIER_RATIO * usual, *others):
            text = (
                f"Step {complete[0].number}, the first, took {units.duration(first / 1000)}, {first / usual:.1f} times "
                f"the median of the others; averages include it, though it may belong to warming up."
            )
            notes.append(Quality(code="first_step_outlier", message=text, count=1))
    return notes


def _steps_without_device_work(
    trace: Trace, steps: Sequence[HostStep], launches: Int64s, operations: Int64s
) -> Quality | None:
    """Complete steps that launched nothing and during which nothing unlinked began, where other steps have work."""
    complete = [step for step in steps if step.complete]
    linked = launches[operations] != NO_LAUNCH
    begun = np.sort(np.where(linked, trace.start_ns[launches[operations]], trace.start_ns[operations]))
    edges = np.array([(step.start_ns, step.end_ns) for step in complete], dtype=np.int64).reshape(-1, 2)
    worked = np.diff(np.searchsorted(begun, edges, side="left"), axis=1)[:, 0] > 0
    empty = [step.number for step, has_work in zip(complete, worked.tolist(), strict=True) if not has_work]
    if not empty or len(empty) == len(complete):
        return None
    text = (
        f"{_numbers(empty)} launched no recorded device work though others of the {len(complete)} complete steps did; "
        f"the device's records may be missing."
    )
    return Quality(code="steps_without_device_work", message=text, count=len(empty))


def _without_launch(trace: Trace, launches: Int64s, operations: Int64s, *, early: bool) -> Quality | None:
    """Operations without a launch call: queued before recording began, or lost.

    Streams keep the order of launches. What starts before the first operation of its stream whose launch is
    known was therefore launched before that; the rest should have a launch.
    """
    unknown = operations[launches[operations] == NO_LAUNCH]
    if not _unreliable(unknown.size, operations.size):
        return None
    known = operations[launches[operations] != NO_LAUNCH]
    names, stream = np.unique(trace.stream, return_inverse=True)
    queue = trace.device.astype(np.int64) * names.size + stream
    queues, first = np.unique(queue[known], return_index=True)  # rows are sorted by start
    before = np.zeros(unknown.size, dtype=np.bool_)
    if queues.size:
        place = np.minimum(np.searchsorted(queues, queue[unknown]), queues.size - 1)
        before = (queues[place] == queue[unknown]) & (trace.start_ns[unknown] < trace.start_ns[known[first]][place])
    count = int(np.count_nonzero(before == early))
    if not _unreliable(count, operations.size):
        return None
    if early:
        code, text = "launched_before_recording", "were launched before recording began and belong to no step."
    else:
        code, text = "operations_without_launch", "have no recorded launch; what the host did for them is unknown."
    return Quality(code=code, message=f"{_share(count, operations.size)} {text}", count=count)


def _negative_latency(trace: Trace, launches: Int64s, operations: Int64s) -> Quality | None:
    """Operations that seem to start before the call that launched them."""
    linked = operations[launches[operations] != NO_LAUNCH]
    early_ns = trace.start_ns[launches[linked]] - trace.start_ns[linked]
    count = int(np.count_nonzero(early_ns > CLOCK_TOLERANCE_NS))
    if not _unreliable(count, operations.size):
        return None
    text = (
        f"{_share(count, operations.size)} seem to start before their launch, by up to "
        f"{units.duration(int(early_ns.max()) / 1000)}; the clocks of host and device disagree."
    )
    return Quality(code="negative_launch_latency", message=text, count=count)


def _launches_without_kernel(trace: Trace, operations: Int64s) -> Quality | None:
    """Launches whose kernel is missing: it was dropped, or never ran because the launch became part of a graph."""
    called = _calls(trace, lambda name: _KERNEL_LAUNCH.match(name) is not None)
    # By id and not by call: a runtime's and a driver's call may share the id of one kernel.
    count = int(np.count_nonzero(~np.isin(trace.correlation[called], trace.correlation[operations])))
    if not _unreliable(count, called.size):
        return None
    text = (
        f"{units.count(count)} of {units.count(called.size)} kernel launches "
        f"({units.percent(count / called.size)}) have no recorded kernel, so the device may be busier than the "
        f"trace shows; warm the profiler up before it records, and do not capture graphs meanwhile."
    )
    return Quality(code="launches_without_kernel", message=text, count=count)


def _graphs_without_kernels(trace: Trace, launches: Int64s, operations: Int64s) -> Quality | None:
    """Launches of CUDA or HIP graphs of which no kernel was recorded."""
    called = _calls(trace, is_graph_launch)
    missing = np.setdiff1d(called, launches[operations[trace.category[operations] == Category.KERNEL]])
    if missing.size == 0:
        return None
    text = (
        f"{missing.size} of {called.size} graph launches have no recorded kernels, so the device is busier than the "
        f"trace shows; drivers and CUPTI from CUDA 12 on record them."
    )
    return Quality(code="graphs_without_kernels", message=text, count=int(missing.size))


def _calls(trace: Trace, wanted: Callable[[str], bool]) -> Int64s:
    """Rows of the runtime's and driver's calls whose name is wanted."""
    of_name = np.array([wanted(name) for name in trace.names], dtype=np.bool_)[trace.name_id]
    return np.flatnonzero(of_name & ((trace.category == Category.RUNTIME) | (trace.category == Category.DRIVER)))


def _unreliable(count: int, size: int) -> bool:
    return count > UNRELIABLE_SHARE * size


def _share(count: int, size: int) -> str:
    return f"{units.count(count)} of {units.count(size)} device operations ({units.percent(count / size)})"


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"Step {shown}" if len(numbers) == 1 else f"Steps {shown}"


def _them(numbers: Sequence[int]) -> str:
    return "it" if len(numbers) == 1 else "them"
