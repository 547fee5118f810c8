"""What rules look at."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from lightning_perf.measure.analysis import Analysis
from lightning_perf.measure.loop import measure_loop
from lightning_perf.names import PHASES, Phase
from lightning_perf.recommend.evidence import Evidence, deviation, evidence_of_run
from lightning_perf.runinfo import LoopRecord, StepSeries, StepTotals
from tests.recommend.cases import loop_record, run


def of_steps(durations_us: Sequence[int], *, traced: Sequence[int] = (), stride: int = 1) -> Evidence:
    """Steps that spend all their time in forward; those traced by number, every ``stride``-th kept."""
    numbers = list(range(len(durations_us)))
    kept = numbers[::stride]
    plain = [number for number in numbers if number not in traced]

    def totals(of: list[int]) -> StepTotals:
        total_ns = 1000 * sum(durations_us[number] for number in of)
        phases: dict[Phase, int] = {phase: total_ns if phase == "forward" else 0 for phase in PHASES}
        return StepTotals(steps=len(of), duration_ns=total_ns, phases_ns=phases)

    durations_ns = [1000 * durations_us[number] for number in kept]
    series = StepSeries(
        stride=stride,
        number=kept,
        epoch=[0] * len(kept),
        duration_ns=durations_ns,
        phases_ns={phase: durations_ns if phase == "forward" else [0] * len(kept) for phase in PHASES},
        complete=[True] * len(kept),
        traced=[number in traced for number in kept],
    )
    record: LoopRecord = msgspec.structs.replace(
        loop_record(), plain=totals(plain), traced=totals(list(traced)), series=series
    )
    evidence = evidence_of_run(Analysis(run=run(loop=record), loop=measure_loop(record), windows=[]))
    assert evidence is not None
    return evidence


def test_warming_up_is_left_out():
    evidence = of_steps([900, 500, 10, 12, 10, 12])
    assert (evidence.step_us, evidence.phases_us["forward"], evidence.noise_us) == (11, 11, 1)


def test_few_steps_are_all_counted():
    assert of_steps([90, 10, 20]).step_us == 40


def test_steps_under_the_profiler_are_not_counted_but_compared():
    evidence = of_steps([10, 10, 10, 10, 10, 10, 10, 30, 30], traced=[7, 8])
    assert (evidence.step_us, evidence.inflation) == (10, 3)


def test_steps_under_the_profiler_where_there_are_no_others():
    assert of_steps([30, 30], traced=[0, 1]).step_us == 30


def test_what_happens_in_steps_that_were_not_kept_counts():
    """Every odd step is slow; the series kept the even ones."""
    evidence = of_steps([10, 50] * 20, stride=2)
    assert evidence.step_us == pytest.approx((10 * 19 + 50 * 20) / 39)
    assert evidence.noise_us == 0


@pytest.mark.parametrize(("values", "expected"), [([], 0), ([5], 0), ([1, 2, 3, 4, 100], 1)])
def test_deviation(values, expected):
    assert deviation(values) == expected
