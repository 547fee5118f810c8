"""Figures against the analysis that they draw: the same numbers, all of them, nothing invented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import (
    Analysis,
    Collective,
    Device,
    DeviceWindow,
    Kernel,
    MemoryPeak,
    Module,
    Operator,
    Step,
    TraceMemory,
    Window,
)
from lightning_perf.measure.loop import measure_loop
from lightning_perf.measure.timeline import HostLane, IdleLane, Lane, MemoryCurve, Timeline
from lightning_perf.names import PHASES
from lightning_perf.pipeline import advised, analyze
from lightning_perf.report.colors import CAUSE_PAINT, PHASE_PAINT, WORK_PAINT
from lightning_perf.report.figures import Figures, before_after
from lightning_perf.report.figures.style import exact_size, exact_time, plain, tick_name, wrapped
from lightning_perf.runinfo import EpochStart, LoaderFacts, LoopRecord, MemoryPeaks, SpanTotal, StepSeries, StepTotals
from tests.records import run_info

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "../shared/traces"
MS = 1000.0
EVERY = [
    "loop",
    "phases",
    "hooks",
    "data",
    "steps",
    "device",
    "gaps",
    "operators",
    "kernels",
    "modules",
    "memory",
    "communication",
    "ranks",
]


# Samples


def step(number, *, complete=True, phases=True, start=None, scale=1.0) -> Step:
    """A step of 100 ms, or ``scale`` times as long: 40 data, 25 forward, 30 backward, 5 other."""
    parts = {"data": 40 * MS, "forward": 25 * MS, "backward": 30 * MS, "other": 5 * MS}
    return Step(
        number=number,
        start_us=100 * MS * number if start is None else start,
        duration_us=100 * MS * scale,
        complete=complete,
        data_loading_us=40 * MS * scale,
        phases_us={phase: spent * scale for phase, spent in parts.items()} if phases else {},
        device_busy_us={"0": 55 * MS},
    )


def device(index="0", name="NVIDIA A100", *, window=True) -> Device:
    causes = {"data_loading": 80 * MS, "launch": 8 * MS, "unknown": 2 * MS}
    return Device(
        index=index,
        name=name,
        operations=10,
        span_us=210 * MS,
        busy_us=120 * MS,
        idle_us=90 * MS,
        gaps=3,
        compute_us=90 * MS,
        communication_us=40 * MS,
        exposed_communication_us=20 * MS,
        copy_us=15 * MS,
        window=DeviceWindow(
            steps=2,
            duration_us=200 * MS,
            busy_us=110 * MS,
            idle_us=90 * MS,
            gaps=3,
            largest_gap_us=40 * MS,
            idle_causes_us=causes,
        )
        if window
        else None,
    )


def operator(name, self_us, device_us=None, shapes=None) -> Operator:
    return Operator(
        name=name,
        shapes=shapes,
        calls=3,
        self_us=self_us,
        total_us=2 * self_us,
        launches=None if device_us is None else 3,
        self_device_us=device_us,
        device_us=device_us,
    )


def kernel(name, total_us) -> Kernel:
    return Kernel(
        name=name,
        calls=2,
        total_us=total_us,
        mean_us=total_us / 2,
        min_us=1.0,
        max_us=total_us,
        busy_ratio=None,
        launched=0,
        launch_latency_us=None,
        negative_latencies=0,
        shorter_than_launch=0,
        graph_calls=0,
        queue_depth=None,
    )


def module(name, self_device_us, *, source="label", backward_us=None) -> Module:
    return Module(
        name=name,
        source=source,
        calls=1,
        self_us=1.0,
        total_us=1.0,
        launches=1,
        self_device_us=self_device_us,
        device_us=self_device_us,
        self_backward_device_us=backward_us,
    )


def collective(name, total_us, exposed_us) -> Collective:
    return Collective(
        name=name,
        collective="allreduce",
        dtype="float32",
        in_elements=1_000_000,
        out_elements=1_000_000,
        group=None,
        group_size=2,
        calls=4,
        total_us=total_us,
        exposed_us=exposed_us,
        overlapped_us=total_us - exposed_us,
        bytes=16_000_000,
        gb_per_s=12.5,
    )


def timeline(names=("gemm", "data", "forward"), device="0", stream="7") -> Timeline:
    return Timeline(
        start_us=0.0,
        end_us=200 * MS,
        names=list(names),
        lanes=[
            Lane(
                device=device,
                stream=stream,
                start_us=[40 * MS, 140 * MS],
                duration_us=[50 * MS, 55 * MS],
                busy_us=[50 * MS, 40 * MS],
                kind=["compute", "communication"],
                longest=[0, 0],
            )
        ],
        idle=[
            IdleLane(
                device=device,
                start_us=[0.0, 90 * MS],
                duration_us=[40 * MS, 50 * MS],
                cause=["data_loading", "unknown"],
                activity=[1, 1],
            )
        ],
        host=HostLane(
            start_us=[0.0, 40 * MS], duration_us=[40 * MS, 160 * MS], cause=["data_loading", "launch"], activity=[1, 2]
        ),
    )


def memory(module="layer4", operator="aten::conv2d") -> TraceMemory:
    return TraceMemory(
        peak_allocated_bytes={"0": 3 << 30},
        peak_reserved_bytes={"0": 4 << 30},
        cpu_growth_bytes=None,
        peaks={
            "0": MemoryPeak(
                time_us=60 * MS,
                allocated_bytes=3 << 30,
                unallocated_bytes=1 << 30,
                step=0,
                phase="backward",
                operator=operator,
                module=module,
            )
        },
        curves=[
            MemoryCurve(
                device="0",
                time_us=[0.0, 60 * MS, 120 * MS],
                allocated_bytes=[1 << 30, 3 << 30, 2 << 30],
                reserved_bytes=[4 << 30] * 3,
                since_start=False,
            )
        ],
    )


def window(**parts) -> Window:
    """Two complete steps and one that is not, on one device."""
    whole = {
        "rank": 0,
        "trace": "a.json",
        "events": 1,
        "duration_us": 210 * MS,
        "steps": [step(0), step(1), step(2, complete=False)],
        "devices": [device()],
        "memory": memory(),
        "quality": [],
        "operators": [operator("aten::mm", 30 * MS, 80 * MS), operator("aten::add", 50 * MS, 2 * MS)],
        "kernels": [kernel("gemm", 80 * MS), kernel("add", 2 * MS), kernel("(others)", 5 * MS)],
        "modules": [module("layer4", 1 * MS), module("layer4.1.conv1", 6 * MS, backward_us=2 * MS), module("fc", 3.0)],
        "collectives": [collective("nccl", 40 * MS, 30 * MS), collective("nccl", 4 * MS, 0.0)],
        "timeline": timeline(),
    }
    return Window(**{**whole, **parts})


def traces(*windows) -> Analysis:
    return Analysis(run=None, loop=None, windows=list(windows))


def run(steps=60, *, workers=0, stride=1, data_ms=40, slow_first_ms=0, spans=("data", "callbacks/Mine.on_fit")):
    """A run of 100 ms steps in epochs of 20; step 30 validates, step 45 saves a checkpoint."""
    numbers = [stride * place for place in range(steps)]
    phases = {phase: [0] * steps for phase in PHASES}
    phases["data"] = [data_ms * 1_000_000] * steps
    phases["forward"] = [60_000_000] * steps
    if steps > 45:
        phases["validation"][30] = phases["checkpoint"][45] = 50_000_000
    phases["forward"][0] += slow_first_ms * 1_000_000
    durations = [sum(parts) for parts in zip(*phases.values(), strict=True)]
    totals = StepTotals(
        steps=steps, duration_ns=sum(durations), phases_ns={phase: sum(spent) for phase, spent in phases.items()}
    )
    nothing = StepTotals(steps=0, duration_ns=0, phases_ns=dict.fromkeys(PHASES, 0))
    record = LoopRecord(
        plain=totals,
        traced=nothing,
        incomplete_steps=0,
        outside_ns=0,
        profiler_ns=0,
        series=StepSeries(
            stride=stride,
            number=numbers,
            epoch=[number // 20 for number in numbers],
            duration_ns=durations,
            phases_ns=phases,
            complete=[True] * steps,
            traced=[False] * steps,
        ),
        spans=[SpanTotal(name=name, phase="data", calls=steps, plain_ns=10**9, traced_ns=0) for name in spans],
        epoch_starts=[EpochStart(epoch=0, iterator_ns=0, first_fetch_ns=0)],
        cpu_ns=sum(durations) // 2,
        fetch_cpu_ratio=0.5,
    )
    facts = msgspec.structs.replace(
        run_info(devices=[], memory=MemoryPeaks()),
        loop=record,
        loaders=[LoaderFacts(stage="fit", loader_class="DataLoader", num_workers=workers)],
    )
    return Analysis(run=facts, loop=measure_loop(record), windows=[])


def bars(figure, *, vertical=False, axis="y") -> dict[str, list[float]]:
    """Lengths of all bars by the name of their trace."""
    return {
        trace.name: list(trace.y if vertical else trace.x)
        for trace in figure.data
        if trace.type == "bar" and (trace.yaxis or "y") == axis
    }


def column_sums(lengths: dict[str, list[float]]) -> list[float]:
    return [sum(parts) for parts in zip(*lengths.values(), strict=True)]


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def everything(analysis: Analysis) -> dict[str, object]:
    """All figures that there are, by name."""
    drawn = {}
    for name in EVERY:
        try:
            drawn[name] = getattr(Figures(analysis), name)()
        except NothingToShow:
            continue
    return drawn


# What every figure has


def a_bit_of_everything() -> Analysis:
    loop = run()
    return Analysis(run=loop.run, loop=loop.loop, windows=[window(), window(rank=1)])


def test_a_rich_record_has_all_figures():
    assert list(everything(a_bit_of_everything())) == EVERY


@pytest.mark.parametrize("name", [*EVERY, "before_after"])
def test_every_figure_says_what_it_shows_and_how_to_read_it(name):
    analysis = a_bit_of_everything()
    figure = before_after(analysis, analysis) if name == "before_after" else getattr(Figures(analysis), name)()
    layout = figure.to_plotly_json()["layout"]
    assert 10 < len(layout["title"]["text"]) < 60
    assert len(layout["meta"]["aid"]) > 20
    assert 150 < layout["height"] < 1000
    assert "color" not in layout.get("font", {})
    look = layout["template"]["layout"]
    assert look["paper_bgcolor"] == look["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert "color" not in look["font"]
    if name not in ("modules", "ranks"):
        titles = [axis["title"]["text"] for key, axis in layout.items() if key[1:5] == "axis" and "title" in axis]
        assert titles
        assert any("(" in title or title == "num_workers" for title in titles)
    json.loads(figure.to_json(engine="json"))


def test_importing_is_cheap():
    code = "import sys, lightning_perf.report.figures; print({'plotly', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stderr


# Steps


def test_phases_add_up_to_the_mean_step():
    analysis = run()
    figure = Figures(analysis).phases()
    assert sum(lengths[0] for lengths in bars(figure).values()) == pytest.approx(analysis.loop.step_time_us.mean / MS)
    assert figure.layout.xaxis.title.text == "time per step (ms)"
    assert named(figure, "data").marker.color == PHASE_PAINT["data"].color


def test_phases_of_a_trace_are_the_mean_of_its_complete_steps():
    figure = Figures(traces(window(steps=[step(0), step(1, scale=3.0), step(2, complete=False)]))).phases()
    assert bars(figure) == {"data": [80.0], "forward": [50.0], "backward": [60.0], "other": [10.0]}


def test_phases_without_labels_are_data_loading_and_the_rest():
    figure = Figures(traces(window(steps=[step(0, phases=False)]))).phases()
    assert bars(figure) == {"data": [40.0], "rest of the step": [60.0]}


def test_steps_add_up_above_and_below():
    figure = Figures(traces(window())).steps()
    assert column_sums(bars(figure, vertical=True)) == [100.0] * 3
    assert bars(figure, vertical=True, axis="y2") == {"device busy": [55.0] * 3, "device idle": [45.0] * 3}
    assert list(named(figure, "data").customdata) == [0, 1, 2]
    assert list(named(figure, "data").marker.pattern.shape) == ["", "", "/"]


def test_steps_without_device_or_labels():
    figure = Figures(traces(window(steps=[step(7, phases=False)], devices=[]))).steps()
    assert bars(figure, vertical=True) == {"data": [40.0], "rest of the step": [60.0]}
    assert bars(figure, axis="y2") == {}


def test_before_and_after():
    figure = before_after(traces(window()), traces(window(steps=[step(0, scale=0.5)])))
    assert column_sums(bars(figure)) == [100.0, 50.0]
    assert figure.layout.title.text == "Before and after: the mean step is 2.00 times as fast"


# Devices


def test_a_device_is_busy_and_idle_all_the_time():
    figure = Figures(traces(window())).device()
    spent = {trace.name: trace.customdata[0] for trace in figure.data if trace.type == "bar"}
    assert sum(spent.values()) == pytest.approx(200 * MS)
    assert sum(spent[name] for name in ("data loading", "launch", "unknown")) == pytest.approx(90 * MS)
    assert sum(spent[name] for name in ("compute", "communication", "copies")) == pytest.approx(110 * MS)
    assert spent["compute"] / spent["communication"] == pytest.approx(90 / 20)
    assert column_sums(bars(figure)) == [pytest.approx(100.0)]
    assert named(figure, "data loading").marker.color == CAUSE_PAINT["data_loading"].color
    assert named(figure, "data loading").marker.pattern.shape == "/"


def test_a_device_without_a_window_is_idle_for_no_known_cause():
    figure = Figures(traces(window(devices=[device(window=False)]))).device()
    spent = {trace.name: trace.customdata[0] for trace in figure.data if trace.type == "bar"}
    assert spent == {"compute": 90 * MS, "communication": 20 * MS, "copies": 10 * MS, "idle": 90 * MS}


def test_collectives_are_exposed_or_overlapped():
    figure = Figures(traces(window())).communication()
    assert bars(figure) == {"exposed": [30.0, 0.0], "overlapped": [10.0, 4.0]}
    assert figure.layout.annotations[0].text == "allreduce of 1,000,000 float32"


def test_the_timeline_has_each_block_once():
    figure = Figures(traces(window())).gaps()
    drawn = [trace for trace in figure.data if trace.type == "bar"]
    blocks = {
        (row, base, base + x) for trace in drawn for row, base, x in zip(trace.y, trace.base, trace.x, strict=True)
    }
    assert blocks == {(0, 40, 90), (0, 140, 195), (1, 0, 40), (1, 90, 140), (2, 0, 40), (2, 40, 200)}
    assert [note.text for note in figure.layout.annotations] == [
        "device 0, stream 7",
        "device 0: idle, by cause",
        "host: the thread that runs the loop",
    ]
    assert list(named(figure, "data loading").y) == [1, 2]
    assert "working 40.000 ms (73 %)" in named(figure, "communication").hovertext[0]
    assert figure.layout.dragmode == "zoom"
    assert figure.layout.yaxis.fixedrange
    assert list(figure.layout.xaxis.range) == [0, 200]


def test_without_a_device_the_host_computes():
    whole = timeline()
    host = msgspec.structs.replace(whole.host, cause=["launch" for _ in whole.host.cause])
    alone = msgspec.structs.replace(whole, lanes=[], idle=[], host=host)
    figure = Figures(traces(window(timeline=alone, devices=[]))).gaps()
    drawn = named(figure, "operators")
    assert drawn.marker.color == WORK_PAINT["compute"].color
    assert all(text.startswith("<b>host: operators</b>") for text in drawn.hovertext)
    assert figure.layout.title.text == "The host over time"


def test_the_busiest_streams_stay():
    whole = timeline()
    lanes = [
        msgspec.structs.replace(whole.lanes[0], stream=str(number), busy_us=[float(number), 0.0])
        for number in range(20)
    ]
    figure = Figures(traces(window(timeline=msgspec.structs.replace(whole, lanes=lanes)))).gaps()
    names = [note.text for note in figure.layout.annotations if "stream" in note.text]
    assert names == [f"device 0, stream {number}" for number in range(4, 20)]
    assert "4 quieter streams" in figure.layout.meta["aid"]


# Costs


def test_operators_by_their_own_device_time():
    figure = Figures(traces(window())).operators()
    assert bars(figure) == {"device": [80.0, 2.0], "host": [30.0, 50.0]}


def test_operators_without_a_device_by_host_time():
    rows = [operator("aten::mm", 2 * MS), operator("aten::add", 5 * MS), operator("(others)", 9 * MS)]
    figure = Figures(traces(window(operators=rows))).operators()
    assert bars(figure) == {"host": [5.0, 2.0]}
    assert [note.text for note in figure.layout.annotations] == ["aten::add", "aten::mm"]


def test_kernels_whose_short_names_are_equal_keep_rows_of_their_own():
    name = "void kernel<" + "x" * 400 + "{}" + "y" * 400 + ">"
    rows = [kernel(name.format(number), 10.0 + number) for number in range(20)]
    figure = Figures(traces(window(kernels=rows))).kernels()
    assert bars(figure)["device"] == [10.0 + number for number in range(19, 4, -1)]
    assert list(figure.data[0].y) == list(range(15))
    assert len({note.text for note in figure.layout.annotations}) == 1


def test_kernels_that_communicate_have_their_colour():
    rows = [kernel("gemm", 2.0), kernel("ncclDevKernel_AllReduce_Sum_f32", 1.0)]
    figure = Figures(traces(window(kernels=rows))).kernels()
    assert list(figure.data[0].marker.color) == [WORK_PAINT["compute"].color, WORK_PAINT["communication"].color]
    assert "Pink" in figure.layout.meta["aid"]
    assert "Pink" not in Figures(traces(window())).kernels().layout.meta["aid"]


def test_modules_lie_inside_each_other():
    figure = Figures(traces(window())).modules()
    (tree,) = figure.data
    rows = dict(zip(tree.ids, zip(tree.labels, tree.parents, tree.values, tree.text, strict=True), strict=True))
    place = {label: one for one, (label, *_) in rows.items()}
    assert {label: rows[place[label]][2] for label in place} == {
        "fc": 3.0,
        "layer4": 1 * MS,
        "1": 0.0,
        "conv1": 8 * MS,
    }
    assert rows[place["conv1"]][1] == place["1"]
    assert rows[place["1"]][1] == place["layer4"]
    assert rows[place["layer4"]][1] == rows[place["fc"]][1] == ""
    assert rows[place["layer4"]][3] == "9.00 ms"
    assert tree.branchvalues == "remainder"


def test_modules_of_frames_lie_in_their_class():
    rows = [module(name, 5.0, source="frame") for name in ("Conv2d_0", "Conv2d_1", "Net", "my_net_x")]
    (tree,) = Figures(traces(window(modules=rows))).modules().data
    assert dict(zip(tree.labels, tree.parents, strict=True)) == {
        "Conv2d": "",
        "Conv2d_0": tree.ids[0],
        "Conv2d_1": tree.ids[0],
        "Net": "",
        "my_net_x": "",
    }
    assert sum(tree.values) == 20.0


# Memory


def test_memory_is_drawn_with_its_peak():
    figure = Figures(traces(window())).memory()
    assert list(named(figure, "device 0: allocated").y) == [1.0, 3.0, 2.0]
    assert list(named(figure, "device 0: reserved").y) == [4.0] * 3
    assert figure.layout.yaxis.title.text == "memory (GiB)"
    (peak,) = figure.layout.annotations
    assert (peak.x, peak.y) == (60, 3)
    assert peak.text == "peak 3.00 GiB<br>step 0, backward<br>layer4<br>aten::conv2d"


@pytest.mark.parametrize(
    ("measured", "reason"),
    [(None, "profile_memory=True"), (msgspec.structs.replace(memory(), curves=[]), "not stored")],
)
def test_memory_without_a_curve(measured, reason):
    with pytest.raises(NothingToShow, match=reason):
        Figures(traces(window(memory=measured))).memory()


# The whole run


def test_each_step_of_a_short_run_is_a_dot():
    figure = Figures(run()).loop()
    assert list(named(figure, "step").x) == list(range(60))
    assert sum(named(figure, "waits for data").y) == pytest.approx(60 * 40)
    assert list(named(figure, "with validation").x) == [30]
    assert list(named(figure, "with checkpoint").x) == [45]
    assert [x for x in named(figure, "epoch starts").x if x is not None] == [19.5, 19.5, 39.5, 39.5]
    assert list(named(figure, "recorded").x)[:3] == [13.5, 13.5, 19.5]


def test_a_slow_first_step_does_not_flatten_the_others():
    figure = Figures(run(slow_first_ms=10_000)).loop()
    assert figure.layout.yaxis.range[1] < 250
    assert list(named(figure, "slower").x) == [0]
    assert figure.layout.annotations[0].text == "first step 10.1 s"
    assert "10.100 s" in named(figure, "slower").hovertext[0]


@pytest.mark.parametrize("stride", [1, 16])
def test_a_long_run_is_thinned_and_keeps_what_matters(stride):
    figure = Figures(run(8000, stride=stride, slow_first_ms=300)).loop()
    assert sum(len(trace.x) for trace in figure.data if trace.name != "epoch starts") <= 2000
    assert named(figure, "slower").x[0] == 0
    assert list(named(figure, "with validation").x) == [30 * stride]
    assert set(named(figure, "median").y) == {100.0}
    assert set(named(figure, "waits for data").y) == {40.0}


def test_hooks_have_their_phase():
    analysis = run()
    hooks = dict(sorted(analysis.loop.hooks_us.items()))
    figure = Figures(analysis).hooks()
    assert bars(figure) == {"data": [spent / MS for spent in hooks.values()]}  # as the clock says, not the name
    assert [note.text for note in figure.layout.annotations] == ["data", "callbacks/Mine.on_fit"]


def test_workers_curve_of_a_loader_without_workers():
    figure = Figures(run()).data()
    measured, predicted = named(figure, "measured"), named(figure, "predicted")
    assert (list(measured.x), list(measured.y)) == ([0], [pytest.approx(run().loop.step_time_us.mean / MS, rel=0.02)])
    assert predicted.x[0] == 1
    assert all(after <= before for before, after in zip(predicted.y, predicted.y[1:], strict=False))
    assert max(predicted.y) <= measured.y[0]


@pytest.mark.parametrize("data_ms", [20, 40, 300])
def test_workers_curve_is_what_the_advice_promises(data_ms):
    analysis = advised(run(data_ms=data_ms))
    (advice,) = [one for one in analysis.findings if one.rule == "data.sync_loader"]
    workers = int(re.search(r"num_workers=(\d+)", advice.action)[1])
    figure = Figures(analysis).data()
    promised = (advice.step_us - advice.saving_us_per_step) / MS
    assert named(figure, "predicted").y[workers - 1] == pytest.approx(promised)
    band = named(figure, "range").y
    longest, shortest = band[workers - 1], band[-workers]
    low, high = advice.saving_range_us
    assert shortest == pytest.approx((advice.step_us - high) / MS)
    assert longest == pytest.approx((advice.step_us - low) / MS)


def test_workers_curve_is_within_the_advice_for_more_workers():
    analysis = advised(run(workers=2))
    (advice,) = [one for one in analysis.findings if one.rule == "data.too_few_workers"]
    workers = int(re.search(r"num_workers=(\d+)", advice.action)[1])
    low, high = advice.saving_range_us
    predicted_us = MS * named(Figures(analysis).data(), "predicted").y[workers - 1]
    assert advice.step_us - high - 1 <= predicted_us <= advice.step_us - low + 1


def test_workers_curve_passes_through_what_was_measured():
    figure = Figures(run(workers=3)).data()
    measured, predicted = named(figure, "measured"), named(figure, "predicted")
    assert list(measured.x) == [3]
    assert predicted.y[2] == pytest.approx(measured.y[0])
    assert predicted.y[0] == pytest.approx(3 * measured.y[0])


def test_workers_that_keep_up_show_how_long_steps_wait():
    figure = Figures(run(workers=3, data_ms=1)).data()
    assert bars(figure, vertical=True) == {"waits for data": [1.0] * 60}


def test_a_trace_shows_how_long_its_steps_wait():
    figure = Figures(traces(window())).data()
    assert bars(figure, vertical=True) == {"waits for data": [40.0, 40.0]}
    assert figure.layout.title.text == "Wait for data in each step, 40 % of the time"


# Ranks


def test_ranks_side_by_side_with_the_slowest_marked():
    first = window(rank=1, steps=[step(0), step(1)])
    second = window(rank=1, steps=[step(5, scale=2.0)])
    other = window(rank=0, steps=[step(1, scale=1.5), step(5), step(6, complete=False)])
    figure = Figures(traces(first, other, second)).ranks()
    cells, slowest = figure.data
    assert [list(row) for row in cells.z] == [[None, 150.0, 100.0], [100.0, 100.0, 200.0]]
    assert list(figure.layout.xaxis.ticktext) == ["0", "1", "5"]
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1"]
    assert list(zip(slowest.x, slowest.y, strict=True)) == [(1, 0), (2, 1)]


# Nothing to show


@pytest.mark.parametrize("name", EVERY)
def test_without_anything_each_figure_says_why(name):
    with pytest.raises(NothingToShow, match=r"\.$"):
        getattr(Figures(traces()), name)()


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_trace_has_no_figures(name):
    empty = window(
        steps=[],
        devices=[],
        memory=None,
        operators=[],
        kernels=[],
        modules=[],
        collectives=[],
        timeline=None,
        rank=None,
    )
    with pytest.raises(NothingToShow):
        getattr(Figures(traces(empty)), name)()


def test_a_window_that_is_not_there():
    with pytest.raises(NothingToShow, match="window=2: there is no such window; expected 0 to 1"):
        Figures(traces(window(), window())).steps(2)


def test_a_window_by_its_place():
    figures = Figures(traces(window(steps=[step(3)]), window(steps=[step(4)])))
    assert list(figures.steps(0).layout.xaxis.ticktext) == ["3"]
    assert list(figures.steps().layout.xaxis.ticktext) == ["4"]


# Names

NAMES = {
    "<b>bold</b>": "&lt;b&gt;bold&lt;/b&gt;",
    "a & b &lt; c": "a &amp; b &amp;lt; c",
    "$x$ %{x}": "&#36;x&#36; &#37;{x}",
    "line\nnext\x00\x1b[31m\u202e": "line next  [31m ",
    "lone \ud800": "lone  ",
    'say "hi"': 'say "hi"',
}


@pytest.mark.parametrize(("name", "shown"), NAMES.items())
def test_names_are_text(name, shown):
    assert plain(name) == wrapped(name) == tick_name(name) == shown


def test_long_names_are_cut_before_they_are_escaped():
    assert plain("<" * 1000, 10) == "&lt;" * 9 + "…"
    assert tick_name("a" * 100 + "z" * 100) == "a" * 26 + "…" + "z" * 27
    lines = wrapped("&" * 10_000).split("<br>")
    assert len(lines) == 5
    assert set(lines[:-1]) == {"&amp;" * 60}


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.000 µs"), (177_592.4, "177.592 ms"), (1.5e6, "1.500 s"), (-2.0, "-2.000 µs")]
)
def test_exact_times(value, text):
    assert exact_time(value) == text


@pytest.mark.parametrize(("value", "text"), [(512, "512 B"), (3 << 29, "1.500 GiB")])
def test_exact_sizes(value, text):
    assert exact_size(value) == text


# Real traces

REAL = sorted(path.name for path in TRACES.glob("*.pt.trace.json.gz"))
real = pytest.mark.skipif(not REAL, reason=f"{TRACES} is not there: real traces are not part of the project")


@real
@pytest.mark.parametrize("name", REAL)
def test_real_traces(name):
    analysis = analyze(TRACES / name)
    (measured,) = analysis.windows
    drawn = everything(analysis)
    assert {"operators"} <= set(drawn) or not measured.operators
    assert ("kernels" in drawn) == bool(measured.kernels)
    assert ("device" in drawn) == bool(measured.devices)
    assert ("steps" in drawn) == bool(measured.steps)
    assert ("gaps" in drawn) == (measured.timeline is not None)
    if "steps" in drawn:
        whole = column_sums(bars(drawn["steps"], vertical=True))
        largest = max(one.duration_us for one in measured.steps)
        factor = largest / max(whole)
        assert [one * factor for one in whole] == pytest.approx([one.duration_us for one in measured.steps])
    if "device" in drawn:
        parts: defaultdict[str, list[float]] = defaultdict(list)
        for trace in drawn["device"].data:
            if trace.type == "bar":
                parts["busy" if trace.name in ("compute", "communication", "copies") else "idle"].append(
                    trace.customdata
                )
        windows = [one.window for one in measured.devices]
        for place, one in enumerate(windows):
            if one is not None:
                assert sum(row[place] for row in parts["idle"]) == pytest.approx(one.idle_us, abs=0.1)
                assert sum(row[place] for row in parts["busy"]) == pytest.approx(one.busy_us, abs=0.1)
    for figure in drawn.values():
        assert len(figure.to_json(engine="json")) < 1 << 20
