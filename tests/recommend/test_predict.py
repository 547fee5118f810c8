"""What is left of a step, and what a device hides."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import HostShare, Replay, Step, WhatIf, Window
from lightning_perf.recommend.predict import (
    between,
    beyond_the_queue,
    exposed,
    replayed,
    round_up,
    saving_with_workers,
    without,
    workers_needed,
)
from tests.recommend.cases import device, evidence_of, window_of

STEPS = 2
STEP_US = 26_500.0


def seen(
    host: dict[tuple[str, str], float],
    idle: dict[tuple[str, str], float],
    what_if: dict[str, float] | None = None,
    error_ratio: float = 0.0,
) -> Window:
    """A window of two steps: host and idle time per step by cause and activity, and what a replay saves."""
    replay = Replay(
        device="0",
        steps=STEPS,
        step_us=STEP_US,
        replayed_us=STEP_US,
        error_ratio=error_ratio,
        what_if=[
            WhatIf(changes=[name], step_us=STEP_US - us, saving_us_per_step=us) for name, us in (what_if or {}).items()
        ],
    )
    return window_of(
        steps=[
            Step(
                number=number,
                start_us=number * STEP_US,
                duration_us=STEP_US,
                complete=True,
                data_loading_us=0.0,
                phases_us={},
                device_busy_us={},
            )
            for number in range(STEPS)
        ],
        devices=[
            device(
                duration_us=STEPS * STEP_US,
                idle={key: STEPS * spent for key, spent in idle.items()},
                steps=STEPS,
            )
        ],
        host=[
            HostShare(cause=cause, activity=activity, time_us=STEPS * spent)  # type: ignore[arg-type]
            for (cause, activity), spent in host.items()
        ],
        replay=replay if what_if is not None else None,
    )


DATA = ("data_loading", "data")
EMA = ("callbacks", "EMA.on_train_batch_end")


def test_without_a_device_everything_is_waited_for():
    assert exposed(evidence_of({"data": 20_000, "forward": 6_500}), "data_loading", 20_000) == 20_000


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (seen({DATA: 20_000}, {DATA: 2_500}), 2_500),  # a loader of 20 ms behind 24 ms of kernels
        (seen({DATA: 20_000}, {}), 0),  # all of it is hidden
        (seen({DATA: 20_000}, {DATA: 20_000}), 20_000),
        (seen({DATA: 40_000}, {DATA: 10_000}), 5_000),  # a quarter of it, however long it took in the window
        (seen({DATA: 20_000}, {DATA: 2_500}, {"data_loading": 4_000}), 4_000),  # a replay knows better
        (seen({DATA: 20_000}, {DATA: 2_500}, {"data_loading": 4_000}, error_ratio=0.05), 2_500),  # but not this one
        (seen({}, {DATA: 2_500}), 2_500),  # an analysis without shares of the host
    ],
)
def test_what_a_device_hides(window, expected):
    evidence = evidence_of({"data": 20_000, "forward": 6_500}, window=window)
    assert exposed(evidence, "data_loading", 20_000) == pytest.approx(expected)


def test_one_activity_of_a_cause():
    other = ("callbacks", "Other.on_train_batch_end")
    window = seen({EMA: 4_000, other: 1_000}, {EMA: 1_000, other: 1_000})
    evidence = evidence_of({"callbacks": 5_000, "forward": 21_500}, window=window)
    assert exposed(evidence, "callbacks", 4_000, activity=EMA[1]) == pytest.approx(1_000)


def test_a_synchronisation_in_a_hook_is_the_hooks():
    window = seen({EMA: 1_000, ("sync", EMA[1]): 3_000}, {("sync", EMA[1]): 2_000})
    evidence = evidence_of({"callbacks": 4_000, "forward": 22_500}, window=window)
    assert exposed(evidence, "callbacks", 4_000, activity=EMA[1]) == pytest.approx(2_000)


@pytest.mark.parametrize(
    ("what_if", "expected"),
    [
        ({"callbacks": 5_000, "callbacks:EMA.on_train_batch_end": 1_000}, 1_000),
        ({"callbacks": 5_000, "callbacks:Other.on_train_batch_end": 1_000}, None),  # too small to be tried alone
        ({"callbacks": 5_000}, 5_000),  # the only one of its kind
        ({}, None),
    ],
)
def test_the_replay_of_one_activity(what_if, expected):
    evidence = evidence_of({"callbacks": 5_000, "forward": 21_500}, window=seen({}, {}, what_if))
    assert replayed(evidence, "callbacks", EMA[1]) == expected


def test_what_the_window_has_not_seen_loses_a_step_each_time():
    window = seen({DATA: 1_000}, {DATA: 1_000})
    evidence = evidence_of({"checkpoint": 2_000, "forward": 24_500}, window=window)
    assert exposed(evidence, "checkpoint", 2_000, calls=0.01) == pytest.approx(2_000 - 265)
    assert exposed(evidence, "callbacks", 2_000) == 0  # in every step, and not there: it is not what we think
    assert beyond_the_queue(evidence, 2_000, calls=0.01) == pytest.approx(1_735)


def test_validation_is_also_work_of_the_device():
    key = ("validation", "validation")
    evidence = evidence_of({"validation": 9_000, "forward": 17_500}, window=seen({key: 9_000}, {key: 1_000}))
    assert exposed(evidence, "validation", 9_000) == 9_000
    replay = seen({key: 9_000}, {key: 1_000}, {"validation": 6_000})
    assert exposed(evidence_of({"validation": 9_000, "forward": 17_500}, window=replay), "validation", 9_000) == 6_000


@pytest.mark.parametrize(("number", "expected"), [(0.3, 1), (1, 1), (1.1, 2), (3, 5), (195, 200), (501, 1_000)])
def test_round_numbers(number, expected):
    assert round_up(number) == expected


def test_work_between_the_passes_leaves_cold_caches():
    evidence = evidence_of({"callbacks": 2_000, "forward": 10_000})
    saves = without(evidence, 2_000, "it is")
    assert (saves.us, saves.low_us, saves.high_us) == (2_000 + 200, 1_600, 2_200)  # a tenth of it
    long = evidence_of({"callbacks": 10_000, "forward": 4_000})
    assert without(long, 10_000, "it is", high=1.25).us == 10_000 + 200  # a twentieth of the rest
    assert without(long, 10_000, "it is", high=1.25).high_us == 12_500
    on_a_device = evidence_of({"callbacks": 2_000, "forward": 10_000}, window=window_of(devices=[device()]))
    assert without(on_a_device, 2_000, "it is").us == 2_000


def test_ranges():
    one = between(30, 20, -5, "it is")
    assert (one.low_us, one.us, one.high_us) == (0, 20, 30)
    workers = saving_with_workers(177.6, 118.7, "they keep up")
    assert workers.us == pytest.approx(58.9)
    assert workers.low_us == pytest.approx(177.6 - 1.17 * 118.7)  # two recorded runs with 4 workers: 121 ms
    assert workers.high_us == pytest.approx(58.9)


@pytest.mark.parametrize(("cores", "cpu_ratio", "expected"), [(8, 1.0, 3), (2, 1.0, 2), (1, 1.0, 1), (2, 0.05, 3)])
def test_workers_needed(cores, cpu_ratio, expected):
    assert workers_needed(30_000, 10_000, cores=cores, cpu_ratio=cpu_ratio) == expected
