"""All figures of real traces against an independent, exact program. Skipped where the traces are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved, assert_drawn

TRACES = Path(__file__).parents[2] / "../shared/traces"
EXPECTED = json.loads((TRACES / "expected.json").read_text()) if (TRACES / "expected.json").exists() else {}
TOLERANCE_US = 0.0005  # everything is exact to the nanosecond

pytestmark = pytest.mark.skipif(not EXPECTED, reason=f"{TRACES} is not there: real traces are not part of the project")


@pytest.mark.parametrize("name", EXPECTED)
def test_agrees_with_the_independent_program(name):
    expected = EXPECTED[name]
    trace = read_trace(TRACES / name)
    window = measure_trace(trace)

    assert_conserved(window)
    assert_drawn(trace, window)
    assert window.events == expected["events"]
    assert [note.code for note in trace.quality] == ([] if expected["devices"] else ["no_device_operations"])
    assert {device.index for device in window.devices} == set(expected["devices"])
    for device in window.devices:
        for key, value in expected["devices"][device.index].items():
            assert getattr(device, key) == pytest.approx(value, abs=TOLERANCE_US), key
    assert [str(step.number) for step in window.steps] == list(expected["steps"])
    for step in window.steps:
        wanted = expected["steps"][str(step.number)]
        assert step.duration_us == pytest.approx(wanted["duration_us"], abs=TOLERANCE_US)
        assert step.data_loading_us == pytest.approx(wanted["data_loading_us"], abs=TOLERANCE_US)
        assert step.device_busy_us == pytest.approx(wanted["device_busy_us"], abs=TOLERANCE_US)


# Step time and idle time over device-adjusted steps, as a study of these traces published them.
ADJUSTED = {
    "v100_resnet50_workers0": (177_592, 461_995),
    "v100_resnet50_workers4": (141_090, 232_129),
    "a100_ddp_dataloader": (77_528, 76_584),
    "v100_ddp_dataloader": (124_086, 27_078),
    "v100_training_ns": (96_704, 11_063),
    "a100_nccl": (222_409, 509_726),
    "mi300_resnet_training": (18_839, 284),
    "mi300_owlv2_dataloader": (1_096_360, 764_544),
}


@pytest.mark.parametrize("name", ADJUSTED)
def test_device_adjusted_steps(name):
    (device,) = measure_trace(read_trace(TRACES / f"{name}.pt.trace.json.gz")).devices
    assert device.window is not None
    step_us, idle_us = ADJUSTED[name]
    assert device.window.duration_us / device.window.steps == pytest.approx(step_us, abs=1)
    assert device.window.idle_us == pytest.approx(idle_us, abs=1)


@pytest.mark.parametrize(
    ("name", "incomplete"), [("mi250_toy_training", [2]), ("cpu_only_step", []), ("no_gpu_events", [])]
)
def test_a_trailing_step_without_a_batch_is_incomplete(name, incomplete):
    window = measure_trace(read_trace(TRACES / f"{name}.pt.trace.json.gz"))
    assert [step.number for step in window.steps if not step.complete] == incomplete
