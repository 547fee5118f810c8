"""The schedule: a pure function, the same as torch's, and obeyed by real runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_perf import PerfCallback
from lightning_perf.capture.window import Schedule, fit_to, schedule_from
from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Trace
from lightning_perf.errors import ConfigError
from tests.training import Net, Plant, loader, quiet

SMALL = st.integers(0, 4)
SCHEDULES = st.builds(Schedule, skip_first=SMALL, wait=SMALL, warmup=SMALL, active=st.integers(1, 4), repeat=SMALL)
SAME_AS = {
    torch.profiler.ProfilerAction.NONE: "off",
    torch.profiler.ProfilerAction.WARMUP: "warmup",
    torch.profiler.ProfilerAction.RECORD: "record",
    torch.profiler.ProfilerAction.RECORD_AND_SAVE: "record",
}


@given(schedule=SCHEDULES)
def test_schedule_means_what_torch_means(schedule: Schedule) -> None:
    oracle = torch.profiler.schedule(
        skip_first=schedule.skip_first,
        wait=schedule.wait,
        warmup=schedule.warmup,
        active=schedule.active,
        repeat=schedule.repeat,
    )
    for step in range(60):
        action = oracle(step)
        assert schedule.action(step) == SAME_AS[action]
        assert schedule.ends_window(step) == (action is torch.profiler.ProfilerAction.RECORD_AND_SAVE)


@given(schedule=SCHEDULES, step=st.integers(0, 40))
def test_next_window_is_the_next_step_that_begins_one(schedule: Schedule, step: int) -> None:
    upcoming = [later for later in range(step, step + 60) if schedule.begins_window(later)]
    assert schedule.next_window(step) == (upcoming[0] if upcoming else None)


def windows_of(schedule: Schedule, steps: int) -> list[list[int]]:
    """Recorded steps of each cycle, the last one possibly cut short, by counting."""
    windows: list[list[int]] = []
    for step in range(steps):
        if schedule.action(step) == "record":
            if step == 0 or schedule.action(step - 1) != "record" or schedule.ends_window(step - 1):
                windows.append([])
            windows[-1].append(step)
    return windows


def recorded_steps(trace: Path) -> list[int]:
    names = read_trace(trace).names
    return sorted(int(name.split("#")[1]) for name in names if name.startswith("ProfilerStep#"))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES, steps=st.integers(1, 14), epochs=st.integers(1, 2))
def test_a_run_obeys_the_schedule(
    schedule: Schedule, steps: int, epochs: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    callback = PerfCallback(dirpath=str(folder / "perf"), schedule=schedule, summary=False)
    trainer = quiet(folder, callbacks=[callback], logger=False, max_epochs=epochs)
    trainer.fit(Net(Plant()), loader(Plant(), steps))
    expected = windows_of(schedule, steps * epochs)
    traces = sorted((folder / "perf").glob("*.pt.trace.json.gz"))
    assert [recorded_steps(trace) for trace in traces] == expected
    assert [(w.first_step, w.last_step) for w in callback.analysis.run.windows] == [(w[0], w[-1]) for w in expected]
    assert [[step.number for step in window.steps] for window in callback.analysis.windows] == expected
    assert not torch.autograd._profiler_enabled()
    written = sorted(path.suffix for path in (folder / "perf").iterdir())
    assert written == [*[".gz"] * len(expected), ".html", ".json", ".json"]


@pytest.mark.parametrize("workers", [0, 1])
def test_every_fetch_of_a_window_has_its_own_range(tmp_path: Path, workers: int) -> None:
    """Also the one that opens the window: none is open while the batch that it fetched runs."""
    callback = PerfCallback(
        dirpath=str(tmp_path / "perf"),
        schedule=Schedule(skip_first=2, wait=1, warmup=1, active=3, repeat=2),
        summary=False,
    )
    trainer = quiet(tmp_path, callbacks=[callback], logger=False)
    trainer.fit(Net(Plant()), loader(Plant(), 12, num_workers=workers))
    for path in sorted((tmp_path / "perf").glob("*.pt.trace.json.gz")):
        trace = read_trace(path)

        def ranges(name: str, trace: Trace = trace) -> list[tuple[int, int]]:
            rows = np.flatnonzero(trace.name_id == trace.names.index(name))
            return list(zip(trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist(), strict=True))

        fetches, bodies = ranges("perf/data"), ranges("perf/forward")
        assert len(fetches) == len(bodies) == 3
        for (_, fetched), (began, ended), (refetched, _) in zip(
            fetches, bodies, [*fetches[1:], (2**60, 0)], strict=True
        ):
            assert fetched <= began < ended <= refetched


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (None, Schedule()),
        (20, Schedule()),
        (19, Schedule(skip_first=11, wait=0, warmup=2, active=6)),
        (6, Schedule(skip_first=1, wait=0, warmup=2, active=3)),
        (3, Schedule(skip_first=1, wait=0, warmup=1, active=1)),
        (2, Schedule(skip_first=0, wait=0, warmup=1, active=1)),
        (1, Schedule(skip_first=0, wait=0, warmup=0, active=1)),
    ],
)
def test_default_fits_itself_to_short_runs(total: int | None, expected: Schedule) -> None:
    assert fit_to(total) == expected


@given(total=st.integers(1, 40))
def test_fitted_schedule_records_inside_the_run(total: int) -> None:
    schedule = fit_to(total)
    recorded = [step for step in range(total) if schedule.action(step) == "record"]
    assert len(recorded) == schedule.active
    assert schedule.ends_window(recorded[-1])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"active": 0}, "active=0; expected a whole number of at least 1"),
        ({"wait": -1}, "wait=-1; expected a whole number of at least 0"),
        ({"warmup": 1.5}, "warmup=1.5; expected a whole number"),
        ({"skip_first": True}, "skip_first=True; expected a whole number"),
        ({"skip": 3}, "unknown key 'skip'; expected some of skip_first, wait, warmup, active, repeat"),
        ([1, 2], "expected a mapping"),
    ],
)
def test_wrong_settings_say_what_to_do(setting: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule_from(setting)  # type: ignore[arg-type]


def test_a_mapping_keeps_the_other_defaults() -> None:
    assert schedule_from({"active": 3}) == Schedule(active=3)
