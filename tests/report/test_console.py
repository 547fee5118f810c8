"""Text for people: from records, without a run."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from lightning_perf.measure.analysis import (
    Analysis,
    Arithmetic,
    Device,
    DeviceWindow,
    Efficiency,
    Loop,
    MemoryPeak,
    Spread,
    TraceMemory,
    Window,
)
from lightning_perf.names import PHASES
from lightning_perf.report import console, scalars
from lightning_perf.runinfo import DeviceFacts, MemoryPeaks
from tests.records import run_info

DEVICE = Device(
    index="0",
    name="NVIDIA A100-SXM4-80GB",
    operations=900,
    span_us=1000.0,
    busy_us=600.0,
    idle_us=400.0,
    gaps=30,
    compute_us=500.0,
    communication_us=50.0,
    exposed_communication_us=20.0,
    copy_us=50.0,
    window=DeviceWindow(
        steps=6,
        duration_us=1200.0,
        busy_us=660.0,
        idle_us=540.0,
        gaps=32,
        largest_gap_us=120.0,
        idle_causes_us={"launch": 405.0, "data_loading": 135.0},
    ),
)
WINDOW = Window(
    rank=0,
    trace="rank0.1.pt.trace.json.gz",
    events=10,
    duration_us=1.0,
    steps=[],
    devices=[DEVICE],
    memory=None,
    quality=[],
)
LOOP = Loop(
    steps=1194,
    step_time_us=Spread(mean=180_000.0, p50=177_600.0, p95=184_100.0, max=900_000.0),
    samples_per_second=180.0,
    phases_us={
        **dict.fromkeys(PHASES, 0.0),
        "data": 59_400.0,
        "forward": 37_800.0,
        "backward": 64_800.0,
        "other": 18_000.0,
    },
    hooks_us={},
    data_loading_ratio=0.33,
    traced_steps=10,
    traced_step_time_us=213_120.0,
    epoch_start_us=None,
)
RUN = run_info(
    devices=[DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB", memory_bytes=85_000_000_000)],
    memory=MemoryPeaks(rss_bytes=1 << 30, allocated_bytes={"0": 10 << 30}, reserved_bytes={"0": 12 << 30}),
)


def test_summary_of_a_run_on_a_device() -> None:
    text = console.summarize_run(Analysis(run=RUN, loop=LOOP, windows=[WINDOW]), Path("logs/perf"))
    assert text.splitlines() == [
        "lightning-perf · ResNet · 1,204 steps, 6 of them traced · NVIDIA A100-SXM4-80GB",
        "",
        "  Nothing stands out. The backward pass takes 36 % of a step: 64.8 ms of 180.0 ms on average.",
        "",
        (
            "  step 177.6 ms (p95 184.1 ms)   5.63 it/s   180.0 samples/s   GPU busy 55 %   "
            "memory peak 10.0 GiB of 79.2 GiB"
        ),
        "  data 33 | forward 21 | backward 36 | other 10   (% of step)",
        "  (under torch.profiler: 213.1 ms a step)",
        "",
        "  report       logs/perf/report.html",
        "  TensorBoard  tensorboard --logdir logs     (tab Perf)",
    ]


def test_a_run_without_a_step_says_so() -> None:
    text = console.summarize_run(Analysis(run=RUN, loop=None, windows=[]), None)
    assert "No step was completed" in text


def test_a_trace_alone_has_no_run() -> None:
    with pytest.raises(ValueError, match="summarize_trace"):
        console.summarize_run(Analysis(run=None, loop=None, windows=[]), None)


def test_summary_of_a_trace() -> None:
    text = console.summarize_trace(WINDOW)
    assert "rank0.1.pt.trace.json.gz · 10 events · rank 0 · 0 complete steps" in text
    assert "device 0 (NVIDIA A100-SXM4-80GB): busy 55 %" in text
    assert "idle     540.0 µs: launch 75 %, data_loading 25 %" in text


def efficiency(device: str = "0", arithmetic: Arithmetic | None = None, **shares: float) -> Efficiency:
    named = {**dict.fromkeys(("sm_efficiency", "occupancy", "tensor_core_ratio")), **shares}
    return Efficiency(device=device, arithmetic=arithmetic, **named)


def computed(flops_per_s: float | None, dtype: str | None, mfu: float | None = None, unknown: int = 0) -> Arithmetic:
    return Arithmetic(
        flops=1,
        flops_per_step=1,
        achieved_flops_per_s=flops_per_s,
        mfu=mfu,
        flops_dtype=dtype,
        uncounted_calls=unknown,
    )


def lines_of(window: Window, kind: str) -> list[str]:
    return [line for line in console.summarize_trace(window).splitlines() if line.startswith(f"  {kind} ")]


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (
            efficiency(
                sm_efficiency=0.55,
                occupancy=0.49,
                tensor_core_ratio=0.12,
                arithmetic=computed(23.1e12, "bfloat16", 0.18),
            ),
            (
                "  compute  device 0: SM 55 %, occupancy 49 %, tensor cores 12 % of kernel time, "
                "23.1 TFLOP/s bfloat16 = 18 % of peak"
            ),
        ),
        (efficiency(occupancy=0.49), "  compute  device 0: occupancy 49 %"),
        (
            efficiency(arithmetic=computed(8.5e8, "float32", unknown=3)),
            "  compute  device 0: at least 850.0 MFLOP/s float32",
        ),
        (efficiency("cpu", computed(63e9, None)), "  compute  host: 63.0 GFLOP/s"),
        (efficiency("1", computed(None, None)), None),
        (efficiency(), None),
    ],
)
def test_efficiency_of_a_trace(known: Efficiency, line: str | None) -> None:
    window = msgspec.structs.replace(WINDOW, efficiency=[known])
    assert lines_of(window, "compute") == ([] if line is None else [line])


def peak(**parts: object) -> MemoryPeak:
    nothing = dict.fromkeys(("allocated_bytes", "unallocated_bytes", "step", "phase", "operator", "module"))
    return MemoryPeak(**{"time_us": 1.0, **nothing, **parts})  # type: ignore[arg-type]


def test_memory_of_a_trace() -> None:
    memory = TraceMemory(
        peak_allocated_bytes={"0": 3 << 30},
        peak_reserved_bytes={"0": 4 << 30},
        cpu_growth_bytes=None,
        peaks={
            "0": peak(step=4, phase="backward", operator="aten::mm", module="layer4.1"),
            "1": peak(operator="aten::empty"),
            "2": peak(),
        },
        step_growth_bytes={"0": [1 << 20, 3 << 20], "1": [0, 0], "cpu": [5, -7]},
    )
    assert lines_of(msgspec.structs.replace(WINDOW, memory=memory), "memory") == [
        (
            "  memory   device 0: peak 3.00 GiB allocated, 4.00 GiB reserved; "
            "peak in step 4, backward, layer4.1, aten::mm; grows 2.00 MiB a step"
        ),
        "  memory   device 1: peak in aten::empty",
    ]


def test_emit_respects_logging_that_is_set_up(caplog: pytest.LogCaptureFixture) -> None:
    before = list(console.log.handlers)
    with caplog.at_level(logging.INFO, "lightning_perf"):
        console.emit("hello 100%")
    assert caplog.messages == ["hello 100%"]
    assert console.log.handlers == before


def test_scalars_of_a_run() -> None:
    figures = scalars.named(scalars.all_scalars(Analysis(run=RUN, loop=LOOP, windows=[WINDOW])), "fit", "/")
    assert figures["perf/step_time_ms"] == 177.6
    assert figures["perf/step_time_p95_ms"] == 184.1
    assert figures["perf/gpu_busy_ratio"] == pytest.approx(0.55)
    assert figures["perf/gpu_idle_ratio"] == pytest.approx(0.45)
    assert figures["perf/gpu_idle_launch_ratio"] == pytest.approx(0.3375)
    assert figures["perf/gpu_idle_data_loading_ratio"] == pytest.approx(0.1125)
    assert figures["perf/gpu_idle_gaps_per_step"] == pytest.approx(32 / 6)
    assert figures["perf/gpu_idle_gap_max_ms"] == pytest.approx(0.12)
    assert figures["perf/memory_peak_allocated_mib"] == 10 * 1024
    assert figures["perf/memory_peak_reserved_mib"] == 12 * 1024
    assert figures["perf/profiling_overhead_ratio"] == pytest.approx(0.2)
    assert figures["perf/phase_backward_ratio"] == pytest.approx(0.36)


def test_unknown_figures_are_absent() -> None:
    run = run_info(devices=[], memory=MemoryPeaks())
    assert scalars.named(scalars.all_scalars(Analysis(run=run, loop=None, windows=[])), "fit", "/") == {}


@pytest.mark.parametrize(("stage", "separator", "key"), [("fit", "/", "perf/x"), ("test", "-", "perf-test_x")])
def test_keys(stage: str, separator: str, key: str) -> None:
    values = {"x": 1, "nan": float("nan"), "inf": float("inf"), "none": None}
    assert scalars.named(values, stage, separator) == {key: 1.0}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        ("lightning_logs/version_3/perf", "lightning_logs"),
        ("lightning_logs/version_3/perf/test", "lightning_logs"),
        ("a/perf", "a"),
    ],
)
def test_the_tensorboard_hint_shows_runs_side_by_side(folder: str, shown: str) -> None:
    text = console.summarize_run(Analysis(run=RUN, loop=LOOP, windows=[WINDOW]), Path(folder))
    assert f"tensorboard --logdir {shown}     (tab Perf)" in text.splitlines()[-1]
