"""Simulated trainings on a device that are slow for one reason: what is said about each first."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest

from lightning_perf.measure.analysis import Analysis, Window
from lightning_perf.measure.loop import measure_loop
from lightning_perf.measure.window import measure_trace
from lightning_perf.names import PHASES, Phase
from lightning_perf.recommend.findings import recommend
from lightning_perf.recommend.rules import RULES
from lightning_perf.runinfo import DeviceFacts, LoopRecord, OptimizerFacts, RunInfo, SpanTotal, StepSeries, StepTotals
from tests.measure.scenarios import SCENARIOS, Scenario
from tests.recommend.cases import loader, loop_record, run

PHASE_SPANS: dict[Phase, str] = {
    "data": "data",
    "logging": "logging/self.log",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "transfer": "transfer",
}
"""Names of the clock's spans for phases that have one here."""


def clock_of(window: Window) -> LoopRecord:
    """What the loop clock would have kept of the recorded steps, had they run without the profiler."""
    steps = [step for step in window.steps if step.complete]
    phases_ns: dict[Phase, list[int]] = {
        phase: [round(1000 * step.phases_us.get(phase, 0.0)) for step in steps] for phase in PHASES
    }
    spent: defaultdict[tuple[Phase, str], int] = defaultdict(int)
    for phase, name in PHASE_SPANS.items():
        spent[phase, name] = sum(phases_ns[phase])
    for share in window.host:
        if share.cause == "callbacks":
            spent["callbacks", f"callbacks/{share.activity}"] += round(1000 * share.time_us)
        elif share.cause in ("gc", "compile"):  # the clock keeps these apart from the phase that they interrupt
            spent["other", f"other/{share.cause}"] += round(1000 * share.time_us)
            for place in range(len(steps)):
                phases_ns["forward"][place] -= round(1000 * share.time_us / len(steps))
                phases_ns["other"][place] += round(1000 * share.time_us / len(steps))
    # A host that is ahead of its device in six steps is held up by it in a thousand.
    measured = window.devices[0].window
    assert measured is not None
    for place, step in enumerate(steps):
        phases_ns["backward"][place] += max(0, round(1000 * (measured.duration_us / measured.steps - step.duration_us)))
    duration_ns = [sum(spent_ns[place] for spent_ns in phases_ns.values()) for place in range(len(steps))]
    return msgspec.structs.replace(
        loop_record(),
        plain=StepTotals(
            steps=len(steps),
            duration_ns=sum(duration_ns),
            phases_ns={phase: sum(spent_ns) for phase, spent_ns in phases_ns.items()},
        ),
        series=StepSeries(
            stride=1,
            number=[step.number + 10 for step in steps],
            epoch=[0] * len(steps),
            duration_ns=duration_ns,
            phases_ns=phases_ns,
            complete=[True] * len(steps),
            traced=[False] * len(steps),
        ),
        spans=[
            SpanTotal(
                name=name,
                phase=phase,
                calls=sum(spent_ns > 0 for spent_ns in phases_ns[phase]),
                plain_ns=total_ns,
                traced_ns=0,
            )
            for (phase, name), total_ns in spent.items()
            if total_ns
        ],
    )


def analysis_of(scenario: Scenario, folder) -> Analysis:
    window = measure_trace(scenario.trace(scenario.slow, folder), what_if=True)
    window = msgspec.structs.replace(window, trace="rank0.1.pt.trace.json.gz")
    record = clock_of(window)
    devices = [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB", memory_bytes=80 << 30)]
    optimizer = OptimizerFacts(optimizer_class="Adam", parameter_tensors=300, parameters=3_000_000, foreach=False)
    info: RunInfo = run(devices=devices, loop=record, loaders=[loader(pin_memory=False)], optimizers=[optimizer])
    return Analysis(run=info, loop=measure_loop(record), windows=[window])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_planted_cause_comes_first(tmp_path, scenario):
    analysis = analysis_of(scenario, tmp_path)
    found = [one for one in recommend(analysis, RULES) if one.saving_us_per_step is not None]
    if scenario.rule is None:
        assert [(one.rule, one.saving_us_per_step) for one in found if one.severity in ("high", "medium")] == []
        return
    assert [one.rule for one in found][:1] == [scenario.rule], [(one.rule, one.saving_us_per_step) for one in found]
