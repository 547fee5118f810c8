"""Everything measured in one trace."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.decode.trace import Trace
from lightning_perf.measure.analysis import Quality, Step, Window
from lightning_perf.measure.arithmetic import arithmetic_calls
from lightning_perf.measure.backward import match_backward
from lightning_perf.measure.call_sites import stack_notes
from lightning_perf.measure.collectives import measure_collectives
from lightning_perf.measure.devices import DeviceWork, device_work, explain_idle, measure_device
from lightning_perf.measure.efficiency import arithmetic_quality, measure_efficiency
from lightning_perf.measure.host import read_host
from lightning_perf.measure.host_time import host_shares
from lightning_perf.measure.kernels import measure_copies, measure_kernels
from lightning_perf.measure.lanes import measure_timeline
from lightning_perf.measure.launches import launch_rows
from lightning_perf.measure.memory import measure_memory
from lightning_perf.measure.operators import measure_modules, measure_operators
from lightning_perf.measure.phases import step_phases
from lightning_perf.measure.quality import trace_quality
from lightning_perf.measure.replay import replay
from lightning_perf.measure.steps import HostStep, data_loading, host_steps, inside_ns
from lightning_perf.measure.tally import ROWS, device_calls


def measure_trace(
    trace: Trace, *, by_shape: bool = False, by_call_site: bool = False, limit: int | None = ROWS, what_if: bool = False
) -> Window:
    """Measure a trace: its steps, its devices over their spans and over the complete steps, its memory, what ran.

    Pure: the same trace gives the same window. Times are summed as integer nanoseconds and divided once.

    Args:
        trace: the trace.
        by_shape: one row for each combination of an operator's input shapes, which the trace must have been read with.
        by_call_site: one row for each function of the user's code that called an operator, by recorded Python stacks.
        limit: rows of operators, kernels and modules; the others are summed in one more row. None keeps all.
        what_if: replay the device's window with what could be changed: some milliseconds for each change.
    """
    launches = launch_rows(trace)
    work = device_work(trace)
    steps = host_steps(trace, launches)
    calls = device_calls(trace, launches)
    host = read_host(trace, launches, steps)
    idle = [explain_idle(trace, device, host, steps, launches) for device in work]
    backward = match_backward(trace)
    arithmetic = arithmetic_calls(trace, launches)
    efficiency = measure_efficiency(trace, work, steps, launches, arithmetic)
    return Window(
        rank=trace.rank,
        trace=trace.path,
        events=len(trace),
        duration_us=int(trace.end_ns.max(initial=0)) / 1000,
        steps=_steps(trace, steps, work),
        devices=[measure_device(trace, device, window, steps) for device, window in zip(work, idle, strict=True)],
        memory=measure_memory(trace, steps),
        quality=[
            *(Quality(code=note.code, message=note.message, count=note.count) for note in trace.quality),
            *trace_quality(trace, steps, launches),
            *arithmetic_quality(trace, arithmetic, efficiency),
            *(stack_notes(trace) if by_call_site else ()),
        ],
        operators=measure_operators(
            trace,
            calls,
            backward,
            by_shape=by_shape,
            by_call_site=by_call_site,
            limit=limit,
            arithmetic=arithmetic,
        ),
        kernels=measure_kernels(trace, launches, busy_ns=sum(device.busy.total for device in work), limit=limit),
        modules=measure_modules(trace, calls, backward, limit=limit),
        collectives=measure_collectives(trace, launches),
        copies=measure_copies(trace),
        efficiency=efficiency,
        host=host_shares(host, steps),
        replay=replay(trace, work, steps, launches, host) if what_if else None,
        timeline=measure_timeline(trace, work, idle, host, steps),
    )


def _steps(trace: Trace, steps: Sequence[HostStep], work: Sequence[DeviceWork]) -> list[Step]:
    loading = data_loading(trace)
    return [
        Step(
            number=step.number,
            start_us=step.start_ns / 1000,
            duration_us=(step.end_ns - step.start_ns) / 1000,
            complete=step.complete,
            data_loading_us=inside_ns(loading, step) / 1000,
            phases_us={phase: spent / 1000 for phase, spent in phases.items()},
            device_busy_us={str(device.index): inside_ns(device.busy, step) / 1000 for device in work},
        )
        for step, phases in zip(steps, step_phases(trace, steps), strict=True)
    ]
