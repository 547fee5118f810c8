"""Evidence written out by hand, for tests of rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lightning_perf.measure.analysis import Device, DeviceWindow, IdleShare, Loop, Spread, Window
from lightning_perf.names import PHASES, Phase
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.runinfo import LoaderFacts, LoopRecord, MemoryPeaks, RunInfo, SpanTotal, StepTotals
from tests.records import run_info

STEPS = 1_000
"""Plain steps of the run."""


def run(**changes: Any) -> RunInfo:
    """A run on a CPU of eight cores; ``trainer``, ``flags`` and ``loop`` may be mappings of what differs."""
    base = run_info(devices=[], memory=MemoryPeaks())
    base = msgspec.structs.replace(base, loaders=[loader()])
    for name in ("trainer", "flags", "loop"):
        if isinstance(changes.get(name), dict):
            changes[name] = msgspec.structs.replace(getattr(base, name), **changes[name])
    return msgspec.structs.replace(base, **changes)


def loader(**changes: Any) -> LoaderFacts:
    facts = {"stage": "fit", "loader_class": "DataLoader", "dataset_class": "Photos", "num_workers": 0, "length": 1_204}
    return LoaderFacts(**{**facts, **changes})


def loop_record(
    *, cpu_us: float = 0.0, fetch_cpu_ratio: float | None = 1.0, spans: dict[str, tuple[Phase, int]] | None = None
) -> LoopRecord:
    """The clock's tables: processor time per step, and spans as (phase, calls in all)."""
    base = run_info(devices=[], memory=MemoryPeaks()).loop
    assert base is not None
    return msgspec.structs.replace(
        base,
        plain=StepTotals(steps=STEPS, duration_ns=0, phases_ns={}),
        traced=StepTotals(steps=0, duration_ns=0, phases_ns={}),
        cpu_ns=round(cpu_us * 1000 * STEPS),
        fetch_cpu_ratio=fetch_cpu_ratio,
        spans=[
            SpanTotal(name=name, phase=phase, calls=calls, plain_ns=0, traced_ns=0)
            for name, (phase, calls) in (spans or {}).items()
        ],
    )


def evidence_of(
    phases_us: dict[Phase, float],
    *,
    hooks_us: dict[str, float] | None = None,
    noise_us: float = 0.0,
    window: Window | None = None,
    **changes: Any,
) -> Evidence:
    """Evidence of a run whose mean step is made of these phases; other changes are those of :func:`run`."""
    changes.setdefault("loop", loop_record())
    phases: dict[Phase, float] = {phase: phases_us.get(phase, 0.0) for phase in PHASES}
    step_us = sum(phases.values())
    facts = run(**changes)
    return Evidence(
        run=facts,
        loop=Loop(
            steps=STEPS,
            step_time_us=Spread(mean=step_us, p50=step_us, p95=step_us, max=step_us),
            samples_per_second=None,
            phases_us=phases,
            hooks_us=hooks_us or {},
            data_loading_ratio=phases["data"] / step_us,
            traced_steps=0,
            traced_step_time_us=None,
            epoch_start_us=None,
        ),
        window=window,
        device=window.devices[0] if window is not None and window.devices else None,
        step_us=step_us,
        noise_us=noise_us,
        steps=STEPS,
        phases_us=phases,
        inflation=1.0,
    )


def device(*, duration_us: float = 1_000.0, idle: dict[tuple[str, str], float] | None = None, steps: int = 1) -> Device:
    """A device whose window is idle for these times by cause and activity, and busy for the rest."""
    shares = [
        IdleShare(cause=cause, activity=activity, idle_us=spent)  # type: ignore[arg-type]
        for (cause, activity), spent in (idle or {}).items()
    ]
    causes: dict[Any, float] = {}
    for share in shares:
        causes[share.cause] = causes.get(share.cause, 0.0) + share.idle_us
    idle_us = sum(causes.values())
    measured = DeviceWindow(
        steps=steps,
        duration_us=duration_us,
        busy_us=duration_us - idle_us,
        idle_us=idle_us,
        gaps=len(shares),
        largest_gap_us=max((share.idle_us for share in shares), default=0.0),
        idle_causes_us=causes,
        idle_shares=shares,
    )
    return Device(
        index="0",
        name="NVIDIA A100-SXM4-80GB",
        operations=100,
        span_us=duration_us,
        busy_us=duration_us - idle_us,
        idle_us=idle_us,
        gaps=len(shares),
        compute_us=duration_us - idle_us,
        communication_us=0.0,
        exposed_communication_us=0.0,
        copy_us=0.0,
        window=measured,
    )


def window_of(**changes: Any) -> Window:
    """A trace without anything in it but what is given."""
    base = Window(
        rank=0,
        trace="rank0.1.pt.trace.json.gz",
        events=1,
        duration_us=1.0,
        steps=[],
        devices=[],
        memory=None,
        quality=[],
    )
    return msgspec.structs.replace(base, **changes)


def with_noise(evidence: Evidence, noise_us: float) -> Evidence:
    return replace(evidence, noise_us=noise_us)
