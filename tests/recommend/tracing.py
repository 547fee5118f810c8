"""Traces written out by hand, for tests of rules that a trace decides."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_perf.measure.analysis import (
    Collective,
    Copy,
    Efficiency,
    Gap,
    IdleShare,
    Kernel,
    Operator,
    Quality,
    Replay,
    Step,
    WhatIf,
    Window,
)
from lightning_perf.recommend.evidence import Evidence, evidence_of_trace
from tests.recommend.cases import device, evidence_of, window_of

STEP_US = 1_000.0


def window(
    idle: dict[tuple[str, str], float] | None = None,
    *,
    gaps: list[Gap] | None = None,
    duration_us: float = STEP_US,
    communication_us: float = 0.0,
    exposed_us: float = 0.0,
    **changes: Any,
) -> Window:
    """A trace of one device over a window without marked steps; changes are those of its fields."""
    one = device(duration_us=duration_us, idle=idle)
    one = msgspec.structs.replace(
        one,
        window=msgspec.structs.replace(one.window, largest_gaps=gaps or []),
        compute_us=one.busy_us - exposed_us,
        communication_us=communication_us,
        exposed_communication_us=exposed_us,
    )
    return window_of(**{"duration_us": duration_us, "devices": [one], **changes})


def traced(idle: dict[tuple[str, str], float] | None = None, **changes: Any) -> Evidence:
    """The evidence of :func:`window` alone."""
    return evidence_of_trace(window(idle, **changes))


def ran(idle: dict[tuple[str, str], float] | None = None, *, of_window: Any = (), **changes: Any) -> Evidence:
    """The evidence of a run whose step takes 1 ms, with :func:`window`; changes are those of the run."""
    return evidence_of({"forward": STEP_US}, window=window(idle, **dict(of_window)), **changes)


def steps(*durations_us: float) -> list[Step]:
    return [
        Step(
            number=number,
            start_us=0.0,
            duration_us=duration,
            complete=True,
            data_loading_us=0.0,
            phases_us={},
            device_busy_us={},
        )
        for number, duration in enumerate(durations_us)
    ]


def kernel(name: str, busy_ratio: float, *, calls: int = 10, mean_us: float = 20.0, **changes: Any) -> Kernel:
    base = Kernel(
        name=name,
        calls=calls,
        total_us=calls * mean_us,
        mean_us=mean_us,
        min_us=mean_us,
        max_us=mean_us,
        busy_ratio=busy_ratio,
        launched=calls,
        launch_latency_us=0.0,
        negative_latencies=0,
        shorter_than_launch=0,
        graph_calls=0,
        queue_depth=0.0,
    )
    return msgspec.structs.replace(base, **changes)


def operator(name: str, calls: int, self_us: float, **changes: Any) -> Operator:
    base = Operator(
        name=name, calls=calls, self_us=self_us, total_us=self_us, launches=None, self_device_us=None, device_us=None
    )
    return msgspec.structs.replace(base, **changes)


def collective(name: str, exposed_us: float, **changes: Any) -> Collective:
    base = Collective(
        name="ncclDevKernel_Generic",
        collective=name,
        dtype="Float",
        in_elements=1_000,
        out_elements=1_000,
        group=None,
        group_size=2,
        calls=1,
        total_us=exposed_us,
        exposed_us=exposed_us,
        overlapped_us=0.0,
        bytes=4_000,
        gb_per_s=None,
    )
    return msgspec.structs.replace(base, **changes)


def copies_to_host(calls: int) -> Copy:
    return Copy(kind="DtoH", memory="pageable", calls=calls, total_us=1.0, bytes=None, gb_per_s=None)


def efficiency(*peaks: str, **changes: Any) -> Efficiency:
    """Figures of the device; ``float32`` has a peak of 1 and each other type of 8."""
    flops = {"float32": 1.0, **dict.fromkeys(peaks, 8.0)}
    base = Efficiency(device="0", sm_efficiency=None, occupancy=None, tensor_core_ratio=0.0, peak_flops=flops)
    return msgspec.structs.replace(base, **changes)


def gap(cause: Any, duration_us: float, host: str) -> Gap:
    return Gap(
        start_us=0.0,
        duration_us=duration_us,
        step=None,
        cause=cause,
        activity="forward",
        host=host,
        ended_by=None,
        shares=[IdleShare(cause=cause, activity="forward", idle_us=duration_us)],
    )


def quality(code: str) -> list[Quality]:
    return [Quality(code=code, message="Something is missing.", count=1)]


def replay(**savings_us: float) -> Replay:
    """A replay of the window's 1 ms after single changes."""
    rows = [WhatIf(changes=[change], step_us=STEP_US - us, saving_us_per_step=us) for change, us in savings_us.items()]
    return Replay(device="0", steps=0, step_us=STEP_US, replayed_us=STEP_US, error_ratio=0.0, what_if=rows)
