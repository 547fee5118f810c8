"""Steps, devices, phases and memory of small traces, figures written out beside them. Times in nanoseconds."""

from __future__ import annotations

import random

import pytest

from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved
from tests.traces import BACKWARD, TraceBuilder, training

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.fixture
def measured(tmp_path):
    def measure(trace: TraceBuilder):
        window = measure_trace(trace.trace(tmp_path))
        assert_conserved(window)
        return window

    return measure


def only_device(window):
    (device,) = window.devices
    return device


@pytest.mark.parametrize("generation", ["epoch_us", "epoch_ns", "base"])
def test_everything_of_one_training(measured, generation):
    window = measured(training(generation))

    assert (window.rank, window.events, window.duration_us, window.memory) == (3, 15, 2100.0, None)
    assert [(step.number, step.start_us, step.duration_us, step.complete) for step in window.steps] == [
        (4, 0.0, 1000.0, True),
        (5, 1000.0, 1000.0, True),
        (6, 2000.0, 10.0, False),
    ]
    assert [step.data_loading_us for step in window.steps] == [200.0, 200.0, 0.0]
    assert [step.device_busy_us for step in window.steps] == [{"0": 300.0}, {"0": 400.0}, {"0": 10.0}]
    assert [step.phases_us for step in window.steps] == [{}, {}, {}]

    device = only_device(window)
    assert (device.index, device.name, device.operations) == ("0", "NVIDIA A100", 4)
    assert (device.span_us, device.busy_us, device.idle_us, device.gaps) == (1770.0, 800.0, 970.0, 3)
    assert (device.compute_us, device.communication_us, device.exposed_communication_us) == (400.0, 400.0, 400.0)
    # The window begins with step 4 and ends when the work ends that step 5 launched, after the step itself.
    assert device.window is not None
    assert (device.window.steps, device.window.duration_us, device.window.busy_us) == (2, 2100.0, 800.0)
    assert (device.window.gaps, device.window.largest_gap_us) == (4, 370.0)


DEVICE_CASES = {
    "touching operations leave no gap": (
        [("gemm", 0, 10), ("gemm", 10, 20)],
        {"busy": 20, "idle": 0, "gaps": 0, "compute": 20, "communication": 0, "exposed": 0, "copy": 0},
    ),
    "the union over streams counts once": (
        [("gemm", 0, 10), ("gemm", 5, 12), ("gemm", 6, 7), ("gemm", 20, 30)],
        {"busy": 22, "idle": 8, "gaps": 1, "compute": 22, "communication": 0, "exposed": 0, "copy": 0},
    ),
    "an operation of no time ends one gap and begins another": (
        [("gemm", 0, 10), ("gemm", 15, 15), ("gemm", 15, 15), ("gemm", 20, 30), ("gemm", 30, 30), ("gemm", 0, 0)],
        {"busy": 20, "idle": 10, "gaps": 2, "compute": 20, "communication": 0, "exposed": 0, "copy": 0},
    ),
    "exposed communication is what nothing else hides": (
        [("ncclDevKernel_AllReduce", 0, 100), ("gemm", 10, 30), ("copy", 40, 50), ("RCCL_x", 90, 120)],
        {"busy": 120, "idle": 0, "gaps": 0, "compute": 20, "communication": 120, "exposed": 90, "copy": 10},
    ),
    "collectives of every vendor": (
        [("hccl:all", 0, 1), ("oneCCL_x", 2, 3), ("void cross_device_reduce_1stage<>", 4, 5), ("RcclX", 6, 7)],
        {"busy": 4, "idle": 3, "gaps": 3, "compute": 0, "communication": 4, "exposed": 4, "copy": 0},
    ),
    "a memset is neither computing nor copying": (
        [("set", 0, 10), ("copy", 5, 20), ("gemm", 18, 25)],
        {"busy": 25, "idle": 0, "gaps": 0, "compute": 7, "communication": 0, "exposed": 0, "copy": 15},
    ),
}


@pytest.mark.parametrize("case", DEVICE_CASES)
def test_device(measured, case):
    operations, expected = DEVICE_CASES[case]
    cats = {"copy": "gpu_memcpy", "set": "gpu_memset"}
    trace = TraceBuilder()
    for stream, (name, start, end) in enumerate(operations):
        trace.kernel(start, end, name=name, cat=cats.get(name, "kernel"), stream=stream)
    device = only_device(measured(trace))
    figures = {
        "busy": device.busy_us,
        "idle": device.idle_us,
        "compute": device.compute_us,
        "communication": device.communication_us,
        "exposed": device.exposed_communication_us,
        "copy": device.copy_us,
    }
    assert {key: round(value * 1000) for key, value in figures.items()} | {"gaps": device.gaps} == expected


def test_devices_are_measured_apart(measured):
    trace = TraceBuilder().kernel(0, 10, device=1).kernel(5, 20, device=0).kernel(30, 40, device=1)
    window = measured(trace)
    assert [(device.index, device.operations, device.idle_us) for device in window.devices] == [
        ("0", 1, 0.0),
        ("1", 2, 0.02),
    ]


WINDOW_CASES = {
    # name: (what is recorded, (steps, start of the window relative to the trace's first event, duration, busy))
    "work that the last step launched belongs to it": (
        TraceBuilder().step(1, 0, 100).op("a", 0, 9).launch(1, 50, 60).kernel(90, 150, correlation=1),
        (1, 150, 60),
    ),
    "launched by another thread, or by the driver": (
        TraceBuilder()
        .step(1, 0, 100)
        .op("a", 0, 9)
        .launch(1, 50, 60, tid=BACKWARD, cat="cuda_driver")
        .kernel(90, 150, correlation=1),
        (1, 150, 60),
    ),
    "work launched before the steps delays their beginning": (
        TraceBuilder()
        .launch(1, 0, 5)
        .step(1, 100, 200)
        .op("a", 100, 109)
        .kernel(10, 130, correlation=1)
        .launch(2, 120, 125)
        .kernel(140, 150, correlation=2),
        (1, 70, 10),
    ),
    "work that no step launched does not prolong the window": (
        TraceBuilder().step(1, 0, 100).op("a", 0, 9).launch(1, 10, 20).kernel(30, 40, correlation=1).kernel(300, 400),
        (1, 100, 10),
    ),
    "an incomplete step is left out": (
        TraceBuilder().step(1, 0, 100).op("a", 0, 9).step(2, 100, 500).range(LOADER, 110, 400).kernel(10, 20),
        (1, 100, 10),
    ),
    "without steps it is the host's time": (
        TraceBuilder().op("a", 100, 300).kernel(50, 150).kernel(200, 400),
        (0, 200, 150),
    ),
    "without a host it is the device's span": (TraceBuilder().kernel(50, 150).kernel(200, 400), (0, 350, 300)),
}


@pytest.mark.parametrize("case", WINDOW_CASES)
def test_window_of_device_adjusted_steps(measured, case):
    trace, (steps, duration, busy) = WINDOW_CASES[case]
    window = only_device(measured(trace)).window
    assert (window.steps, round(window.duration_us * 1000), round(window.busy_us * 1000)) == (steps, duration, busy)


STEP_CASES = {
    "a device's copy of a step is no step": (
        TraceBuilder()
        .step(7, 0, 100)
        .op("a", 0, 9)
        .complete("ProfilerStep#7", 20, 300, cat="gpu_user_annotation", pid=0, tid=7)
        .complete("ProfilerStep#8", 300, 310, cat="gpu_user_annotation", pid=0, tid=7),
        [(7, 0, 100, True)],
    ),
    "torch before 1.9 wrote steps as operators": (
        TraceBuilder().range("ProfilerStep#3", 5, 100, cat="Operator").op("a", 6, 9),
        [(3, 0, 95, True)],
    ),
    "spaces around the number sign": (
        TraceBuilder().range("ProfilerStep # 3", 0, 100).op("a", 6, 9),
        [(3, 0, 100, True)],
    ),
    "other names are no steps": (
        TraceBuilder().range("MyProfilerStep#3", 0, 100).range("ProfilerStep#3 x", 0, 100).range("ProfilerStep#", 0, 1),
        [],
    ),
    "a number that occurs twice keeps its longest range": (
        TraceBuilder().range("ProfilerStep#3", 10, 90, cat="cpu_op").step(3, 0, 100).op("a", 6, 9),
        [(3, 0, 100, True)],
    ),
    "an operator of the loader makes no batch": (
        TraceBuilder()
        .step(1, 0, 100)
        .op("a", 0, 9)
        .step(2, 100, 200)
        .range(LOADER, 110, 190)
        .op("aten::empty", 120, 130),
        [(1, 0, 100, True), (2, 100, 100, False)],
    ),
    "a launch makes a batch": (
        TraceBuilder().step(1, 0, 100).launch(1, 10, 20).kernel(30, 40, correlation=1),
        [(1, 0, 100, True)],
    ),
    "only trailing steps are doubted": (
        TraceBuilder().step(1, 0, 100).step(2, 100, 200).op("a", 110, 120).step(3, 200, 210).step(4, 210, 220),
        [(1, 0, 100, True), (2, 100, 100, True), (3, 200, 10, False), (4, 210, 10, False)],
    ),
    "Lightning's own ranges make no batch": (
        TraceBuilder()
        .step(1, 0, 100)
        .op("a", 0, 9)
        .step(2, 100, 200)
        .range("[pl][profile][_TrainingEpochLoop].train_dataloader_next", 110, 190),
        [(1, 0, 100, True), (2, 100, 100, False)],
    ),
    "in our own traces a forward makes a batch, operators do not": (
        TraceBuilder()
        .step(1, 0, 100)
        .range("perf/forward/net.0", 20, 40)
        .step(2, 100, 200)
        .op("aten::add", 120, 130)
        .range("perf/data", 100, 150),
        [(1, 0, 100, True), (2, 100, 100, False)],
    ),
}


@pytest.mark.parametrize("case", STEP_CASES)
def test_steps(measured, case):
    trace, expected = STEP_CASES[case]
    steps = measured(trace).steps
    assert [
        (step.number, round(step.start_us * 1000), round(step.duration_us * 1000), step.complete) for step in steps
    ] == expected


DATA_CASES = {
    "a union, not a sum": ([(LOADER, 10, 30), ("enumerate(DataPipe)#Shuffler", 20, 40)], 30),
    "clipped to the step": ([(LOADER, -50, 30), (LOADER, 90, 150)], 40),
    "our own label": ([("perf/data", 0, 20), ("perf/data/iterator", 5, 8), ("perf/datax", 50, 60)], 20),
    "only the loader's ranges": ([("enumerate(Something)#x", 0, 20), ("DataLoader", 0, 90)], 0),
}


@pytest.mark.parametrize("case", DATA_CASES)
def test_data_loading(measured, case):
    ranges, expected = DATA_CASES[case]
    trace = TraceBuilder().step(1, 0, 100).range("perf/forward", 80, 85)
    for name, start, end in ranges:
        trace.range(name, start, end)
    (step,) = measured(trace).steps
    assert round(step.data_loading_us * 1000) == expected


PHASE_CASES = {
    "the innermost label wins": (
        [("optimizer", 10, 90), ("forward", 20, 40), ("backward", 40, 80), ("callbacks/X.on_y", 50, 60)],
        {"other": 20, "optimizer": 20, "forward": 20, "backward": 30, "callbacks": 10},
    ),
    "time between labels is other": ([("data", 0, 10), ("forward", 30, 100)], {"data": 10, "other": 20, "forward": 70}),
    "labels of one phase inside each other count once": (
        [("forward", 0, 100), ("forward/a", 0, 60), ("forward/a.b", 0, 50)],
        {"forward": 100},
    ),
    "clipped to the step": ([("data", -50, 10), ("checkpoint", 95, 300)], {"data": 10, "other": 85, "checkpoint": 5}),
    "a phase that is not known is other": ([("forward", 0, 100), ("nonsense", 20, 30)], {"forward": 90, "other": 10}),
    "labels that only partly overlap": (
        [("forward", 0, 50), ("backward", 40, 80)],
        {"forward": 40, "backward": 40, "other": 20},
    ),
    "a short label that ends after the one around it": (
        [("forward", 0, 50), ("backward", 10, 60), ("data", 20, 30)],
        {"forward": 10, "backward": 40, "data": 10, "other": 40},
    ),
}


PROFILER = "[pl][profile]"
VALIDATION_CASES = {
    # name: (ranges, the step's data loading, idle time for it, idle time for validation, of that for its data)
    "this package's labels": (
        [("perf/data", 0, 100), (LOADER, 10, 90), ("perf/validation", 200, 800), ("perf/validation/data", 300, 400)],
        (100, 100, 600, 100),
    ),
    "a loader's range that no label of this package encloses": (
        [(LOADER, 10, 90), ("perf/validation", 200, 800)],
        (80, 80, 600, 80),
    ),
    "Lightning's": (
        [
            (f"{PROFILER}[_TrainingEpochLoop].train_dataloader_next", 0, 100),
            (LOADER, 10, 90),
            (f"{PROFILER}[_EvaluationLoop].val_next", 305, 395),
        ],
        (80, 100, 90, 90),
    ),
    "Lightning's, where validating is the run itself": (
        [(LOADER, 10, 90), (f"{PROFILER}[_EvaluationLoop].val_next", 305, 395)],
        (80 + 80, 80 + 90, 0, 0),
    ),
    "Lightning's, with a name that sounds like training": (
        [
            (f"{PROFILER}[_EvaluationLoop].val_next", 305, 395),
            (f"{PROFILER}[Callback]Best{{'monitor': 'a.training_step'}}.on_validation_end", 900, 910),
        ],
        (80, 90, 10, 0),
    ),
    "no labels": ([(LOADER, 10, 90)], (80 + 80, 80 + 80, 0, 0)),
}


@pytest.mark.parametrize("case", VALIDATION_CASES)
def test_a_batch_to_validate_with_is_validation(measured, case):
    """The device is idle until 1000; from 310 to 390 the loader of a validation works."""
    ranges, expected = VALIDATION_CASES[case]
    trace = TraceBuilder().step(1, 0, 1_000).range(LOADER, 310, 390).op("aten::pin_memory", 320, 330)
    for name, start, end in [*ranges, *([("perf/forward", 900, 910)] if "perf/" in str(ranges) else [])]:
        trace.range(name, start, end)
    window = measured(trace.launch(1, 980, 990).kernel(1_000, 1_100, correlation=1))
    (step,) = window.steps
    device = only_device(window).window
    data = sum(share.idle_us for share in device.idle_shares if (share.cause, share.activity) == ("validation", "data"))
    causes = device.idle_causes_us
    figures = (step.data_loading_us, causes.get("data_loading", 0), causes.get("validation", 0), data)
    assert tuple(round(figure * 1000) for figure in figures) == expected
    assert step.phases_us.get("validation", 0) in (0, causes.get("validation"))


@pytest.mark.parametrize("case", PHASE_CASES)
def test_phases(measured, case):
    labels, expected = PHASE_CASES[case]
    trace = TraceBuilder().step(1, 0, 100)
    for name, start, end in labels:
        trace.range(f"perf/{name}", start, end)
    trace.range("perf/validation", 0, 100, tid=BACKWARD)  # another thread's labels are no part of the step
    trace.complete("perf/forward", 0, 100, cat="gpu_user_annotation", pid=0, tid=7)
    (step,) = measured(trace).steps
    assert {phase: round(spent * 1000) for phase, spent in step.phases_us.items()} == expected


def test_a_step_without_labels_is_other_in_a_trace_that_has_some(measured):
    trace = TraceBuilder().step(1, 0, 100).range("perf/forward", 0, 100).step(2, 100, 130)
    assert [step.phases_us for step in measured(trace).steps] == [{"forward": 0.1}, {"other": 0.03}]


MEMORY_CASES = {
    "peaks of the totals, per device": (
        TraceBuilder()
        .op("a", 0, 10)
        .memory(1, 512, allocated=512, reserved=2048)
        .memory(2, 512, allocated=1024, reserved=2048)
        .memory(3, -512, allocated=512, reserved=2048)
        .memory(4, 8, device=1, allocated=8, reserved=64)
        .memory(5, 100, device_type=0, device=-1, allocated=100, reserved=0)
        .memory(6, -40, device_type=0, device=-1, allocated=60, reserved=0),
        ({"0": 1024, "1": 8}, {"0": 2048, "1": 64}, 100),
    ),
    "torch before 1.12 wrote no totals": (
        TraceBuilder()
        .op("a", 0, 10)
        .memory(3, 512)
        .memory(2, -30, device_type=0, device=-1)
        .memory(1, 100, device_type=0, device=-1)
        .memory(4, 60, device_type=0, device=-1),
        ({}, {}, 130),
    ),
    "only freed": (TraceBuilder().op("a", 0, 1).memory(1, -30, device_type=0, device=-1, allocated=-30), ({}, {}, 0)),
    "no CPU events": (TraceBuilder().op("a", 0, 1).memory(1, 5, allocated=5, reserved=9), ({"0": 5}, {"0": 9}, None)),
}


@pytest.mark.parametrize("case", MEMORY_CASES)
def test_memory(measured, case):
    trace, expected = MEMORY_CASES[case]
    memory = measured(trace).memory
    assert memory is not None
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.cpu_growth_bytes) == expected


def test_the_order_in_the_file_does_not_matter(measured):
    trace = training()
    expected = measured(trace)
    random.Random(7).shuffle(trace.events)
    assert measured(trace) == expected


def test_splitting_an_operation_adds_no_idle_time(measured):
    whole = only_device(measured(TraceBuilder().kernel(0, 100).kernel(150, 160)))
    halves = only_device(measured(TraceBuilder().kernel(0, 40).kernel(40, 100).kernel(150, 160)))
    assert (halves.idle_us, halves.gaps, halves.busy_us) == (whole.idle_us, whole.gaps, whole.busy_us)


def test_a_host_thread_more_changes_no_device(measured):
    expected = measured(training()).devices
    assert measured(training().op("aten::sort", 300_000, 900_000, tid=99)).devices == expected


def test_a_trace_without_devices_says_so(measured):
    window = measured(TraceBuilder().step(1, 0, 100).op("a", 0, 9))
    assert window.devices == []
    assert window.steps[0].device_busy_us == {}
    assert [note.code for note in window.quality] == ["no_device_operations", "few_steps"]
