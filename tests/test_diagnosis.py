"""Planted bottlenecks in real trainings: the right finding comes first, and its prediction has the right size.

A few of the cases of ``benchmarks/diagnosis``, which measures all of them. Speeds are never fixed here: a machine that
is busy with something else makes a round worthless, and then one more is tried.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.diagnosis import measured, peers, results, runs
from benchmarks.diagnosis.measured import Outcome

QUICK = ["loader_waits", "workers_restart", "slow_transfer", "slow_hook", "many_logs", "validation_often"]
HEALTHY = "healthy_in_memory"


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trainings choose threads and a seed, and silence Lightning."""
    import torch

    log, threads, state = logging.getLogger("lightning.pytorch"), torch.get_num_threads(), torch.get_rng_state()
    level = log.level
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that it is put back
    yield
    log.setLevel(level)
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.parametrize("name", QUICK)
def test_the_planted_bottleneck_comes_first_with_a_prediction_of_the_right_size(name: str, tmp_path: Path) -> None:
    wrong = wrong_with(name, tmp_path / "once") and wrong_with(name, tmp_path / "again")
    assert not wrong


def wrong_with(name: str, folder: Path) -> list[str]:
    """What is wrong with the diagnosis of a case in one round."""
    done = {how: [measured.measured(name, how, folder / how)] for how in runs.what_to_do(name)}
    expected = measured.case(name).EXPECTED
    row = results.row(name, str(expected), done)
    assert row.failed is None
    ((saves,), predicted) = row.measured, row.predicted
    wrong = [] if row.right else [f"expected {expected}, got {done['diagnosed']}"]
    if saves <= 0:
        wrong.append(f"the change saves {saves} ms")
    if not predicted or not saves / 2 < predicted[0] < saves * 2:
        wrong.append(f"predicted {predicted} ms, measured {saves} ms")
    return wrong


def test_a_healthy_run_gets_no_finding_of_consequence(tmp_path: Path) -> None:
    alarms = alarms_of(HEALTHY, tmp_path / "once") and alarms_of(HEALTHY, tmp_path / "again")
    assert not alarms


def alarms_of(name: str, folder: Path) -> list[str]:
    outcome = measured.diagnosed(name, folder)
    return [
        found["rule"] for found in outcome["findings"] if (found["saving_ms"] or 0) > results.ALARM * outcome["step_ms"]
    ]


@pytest.mark.parametrize("name", measured.names())
def test_every_case_says_what_it_is(name: str) -> None:
    case = measured.case(name)
    assert case.__doc__
    assert hasattr(case, "fixed")
    assert hasattr(case, "slow") == (case.EXPECTED is not None) == (not name.startswith("healthy_"))


def test_a_run_that_fails_is_told(tmp_path: Path) -> None:
    assert measured.measured("no_such_case", "slow", tmp_path).get("error", "").startswith("ModuleNotFoundError: ")


def test_the_benchmark_runs_and_prints_its_table() -> None:
    started = [sys.executable, runs.PROGRAM, "--cases", "slow_hook", "--repeat", "1", "--only-ours"]
    done = subprocess.run(started, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "| slow_hook | host.hook  |" in done.stdout
    assert "of 1." in done.stdout


def outcomes(
    slow: list[float], fixed: list[float], *findings: list[tuple[str, float | None]], verdict: str = "INPUT_BOUND"
) -> dict[str, list[Outcome]]:
    return {
        "slow": [{"step_ms": one} for one in slow],
        "fixed": [{"step_ms": one} for one in fixed],
        "diagnosed": [
            {
                "step_ms": 20.0,
                "findings": [{"rule": rule, "saving_ms": ms, "range_ms": None, "action": ""} for rule, ms in found],
            }
            for found in findings
        ],
        "traceml": [{"verdict": verdict}],
    }


def test_the_tables_say_what_is_right_and_how_far_off_predictions_are() -> None:
    right: list[tuple[str, float | None]] = [("data.sync_loader", 11.0), ("host.gc", 2.0)]
    wrong: list[tuple[str, float | None]] = [("host.gc", 9.0), ("host.hook", 4.0)]
    rounds = {
        "loads": outcomes([20.0, 22.0, 21.0], [10.0, 12.0, 11.0], right, right, wrong),
        "hooks": outcomes([20.0], [12.0], wrong),
        "fine": outcomes([], [20.0, 20.0], [("host.gc", 0.5), ("gpu.compute_bound", None)], [("host.gc", 1.5)]),
    }
    report = results.report({"loads": "data.sync_loader", "hooks": "host.hook", "fine": None}, rounds, ["traceml"])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.splitlines() if line.startswith("|")]
    loads, hooks, fine = lines[2], lines[3], lines[6]
    assert loads[:4] == ["loads", "data.sync_loader", "right", "input-bound"]
    assert (loads[-3], loads[-1]) == ("10.0 [10.0, 10.0]", "+10%")
    assert hooks[:4] == ["hooks", "host.hook", "**host.gc**", "**input-bound**"]
    assert hooks[-3:] == ["8.0", "4.0", "-50%"]
    assert fine[:3] == ["fine", "host.gc 8%", "**input-bound**"]
    assert "Top finding right: 1 of 2." in report
    assert "median error 30%; within 20% in 1 of 2" in report
    assert "TraceML 0.5.0 names the place: 1 of 2." in report
    assert "Findings of more than 5% of the step: 1 in 2 healthy runs." in report


def test_verdicts_of_other_tools_that_are_not_known_are_shown_as_they_are() -> None:
    assert peers.text("traceml", "NEW_KIND") == "NEW_KIND"
    assert not peers.is_right("traceml", "NEW_KIND", "host.gc")
