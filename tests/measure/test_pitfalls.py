"""Traces that are easy to misread, each with the figures that are right. Times in nanoseconds.

Where a trace with the case stands elsewhere already, the table says where; "of a run" is what no trace can show.

== ======================================================== ==========================================================
 1 a fetch that the device never waits for costs nothing    test_a_fetch_costs_what_the_device_waits_for
 2 a copy's call waits for work that was queued before it   test_a_copys_call_is_taken_apart; test_causes: "a copy
                                                            that is being staged"
 3 polling does not block; the profiler synchronises last   test_causes: "polling does not block",
                                                            "the profiler's own last synchronise"
 4 a full queue holds the host up in launch calls           test_a_full_queue_is_no_slow_launching
 5 the optimizer's step runs forward and backward           test_forward_and_backward_inside_the_optimizers_step,
                                                            test_window: PHASE_CASES; without labels: test_closures
 6 the device has copies of the host's ranges               test_the_devices_copies_of_ranges_count_for_nothing,
                                                            test_window: "a device's copy of a step is no step"
 7 a first step unlike the others, a last one without batch test_quality: "a slow first step", "a last step without a
                                                            batch"; test_window: "an incomplete step is left out"
 8 the profiler takes time of its own                       test_the_profilers_own_time; of a run: test_clock:
                                                            test_steps_under_the_profiler_are_kept_apart
 9 kernels that were not warmed up take longer              test_kernels_that_were_not_warmed_up; of a run:
                                                            capture/test_window: test_a_run_obeys_the_schedule
10 the profiler loses kernels and launches, clocks differ   test_kernels_that_were_lost; test_quality: "a lost launch",
                                                            "clocks that disagree", ...; test_damage:
                                                            "a start at zero among times since 1970"
11 graphs whose kernels the trace lacks, or that share a    test_causes: "a graph that the trace does not show, ...",
   launch                                                   "kernels of a graph share their launch"; test_quality:
                                                            "a graph without kernels"
12 other threads launch, wait and allocate; external ids    test_the_thread_that_pins_memory_is_no_cause,
   of old traces say nothing                                test_old_external_ids_link_nothing; test_causes:
                                                            "the backward pass launches from its own thread"
13 worker processes are in no trace                         of a run: facts of the loaders, test_callback: check_facts
14 the workers' start has no range of torch's               test_making_the_iterator_is_data_loading; of a run:
                                                            test_phases:
                                                            test_starting_workers_is_paid_where_it_happens
15 work goes on beyond the host's step                      test_window: WINDOW_CASES
16 rounded times, floats of too few digits, units           test_every_nanosecond_counts; test_reader:
                                                            test_generations, test_every_digit_counts
17 a stream is idle while another one works                 test_window: "the union over streams counts once"
18 one process drives several devices                       test_each_device_has_a_window_of_its_own
19 ranks' clocks have nothing in common                     of several traces, and each is measured alone:
                                                            test_pipeline: test_several_paths
20 a collective that nothing hides may just be waiting      test_waiting_in_a_collective_is_busy_time
21 one cause removed brings up the next                     test_idle_time_has_one_cause_and_keeps_its_activity
22 a large share of little time                             of advice, not of a trace: causes are times, test_causes
23 faster kernels do not help a host that cannot follow     test_faster_kernels_are_only_more_idle_time
24 a setting has side effects                               of a run: its facts, test_callback: check_facts
25 garbage collection hides in what it interrupts           test_garbage_collection_goes_before_what_it_interrupts
26 validation inside training                               test_validation_is_no_training; test_window:
                                                            VALIDATION_CASES; of a run: test_callback:
                                                            test_validation_inside_a_fit_is_a_phase_of_the_fit
27 steps of a shared machine differ anyhow                  of a run; test_quality: "... as others are later: jitter"
28 properties of devices that are wrong                     test_properties_that_are_wrong_change_nothing
29 somebody else's profiler runs already                    of a run: test_callback:
                                                            test_another_running_profiler_is_left_alone
30 names in stacks that break the JSON                      test_a_stack_that_broke_the_json; test_damage: "a quote
                                                            and a comma in a name", "a Windows path"
== ======================================================== ==========================================================
"""

from __future__ import annotations

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.analysis import DeviceWindow, Window
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved, ns
from tests.traces import BACKWARD, MAIN, TraceBuilder, write

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
AUTOGRAD = "autograd::engine::evaluate_function: MmBackward0"
US = 1000


@pytest.fixture
def measured(tmp_path):
    def measure(trace: TraceBuilder) -> Window:
        window = measure_trace(trace.trace(tmp_path))
        assert_conserved(window)
        return window

    return measure


def only(window: Window) -> DeviceWindow:
    (device,) = window.devices
    assert device.window is not None
    return device.window


def times(device: DeviceWindow) -> tuple[int, int, int]:
    """Duration, busy and idle time of a device's window."""
    return ns(device.duration_us), ns(device.busy_us), ns(device.idle_us)


def causes(device: DeviceWindow) -> dict[str, int]:
    return {cause: ns(spent) for cause, spent in device.idle_causes_us.items()}


def shares(device: DeviceWindow) -> dict[tuple[str, str], int]:
    return {(share.cause, share.activity): ns(share.idle_us) for share in device.idle_shares}


def call(trace: TraceBuilder, name: str, correlation: int, start: int, end: int, tid: int = MAIN) -> TraceBuilder:
    return trace.range(name, start, end, cat="cuda_runtime", tid=tid, correlation=correlation)


def launched(
    trace: TraceBuilder, correlation: int, launch: int, start: int, end: int, tid: int = MAIN, **kernel
) -> TraceBuilder:
    """A kernel and the call of 10 ns that launched it."""
    return trace.launch(correlation, launch, launch + 10, tid=tid).kernel(start, end, correlation=correlation, **kernel)


def quality(window: Window) -> dict[str, int]:
    return {note.code: note.count for note in window.quality}


def test_a_fetch_costs_what_the_device_waits_for(measured):
    """The fetch takes 20 ms, during 17.5 of which the device has work."""
    trace = TraceBuilder().step(1, 0, 30_000 * US).launch(1, 0, 10 * US)
    trace.kernel(100 * US, 24_100 * US, correlation=1).range(LOADER, 6_600 * US, 26_600 * US)
    trace.launch(2, 26_600 * US, 26_610 * US).kernel(26_620 * US, 30_000 * US, correlation=2)
    window = measured(trace)
    assert window.steps[0].data_loading_us == 20_000
    assert times(only(window)) == (30_000 * US, 27_380 * US, 2_620 * US)
    assert causes(only(window)) == {"data_loading": 2_500 * US, "launch": (100 + 20) * US}


def test_a_copys_call_is_taken_apart(measured):
    """8.6 ms: for 5.2 the device still works, for 0.5 it idles while the copy is staged, for 2.9 the copy runs."""
    trace = TraceBuilder().step(1, 0, 10_000 * US).launch(1, 0, US).kernel(100 * US, 5_800 * US, correlation=1)
    call(trace, "cudaMemcpyAsync", 2, 600 * US, 9_200 * US)
    pageable = {"name": "Memcpy HtoD (Pageable -> Device)", "cat": "gpu_memcpy", "bytes": 5_800_000}
    trace.kernel(6_300 * US, 9_200 * US, correlation=2, **pageable)
    trace.launch(3, 9_500 * US, 9_501 * US).kernel(9_520 * US, 10_000 * US, correlation=3)
    window = measured(trace)
    assert times(only(window)) == (10_000 * US, (5_700 + 2_900 + 480) * US, (100 + 500 + 320) * US)
    assert shares(only(window)) == {
        ("launch", "host"): 100 * US,
        ("transfer", "transfer"): 500 * US,
        ("transfer", "host"): 320 * US,  # refilling the queue, which the call drained
    }
    assert [(copy.memory, copy.total_us, copy.gb_per_s) for copy in window.copies] == [("pageable", 2_900, 2.0)]


def test_a_full_queue_is_no_slow_launching(measured):
    """Once 1024 operations wait, a call that launches one more returns when the next of them begins."""
    trace = TraceBuilder().launch(1, 0, US).kernel(10 * US, 10_000 * US, correlation=1, name="first")
    for number in range(1, 1025):
        trace.launch(number + 1, 2 * number * US, (2 * number + 1) * US)
    begins = [(10_001 + 101 * number) * US for number in range(1030)]
    trace.launch(1026, 2_050 * US, begins[0] + US)
    for number in range(1, 6):
        trace.launch(1026 + number, begins[number - 1] + 3 * US, begins[number] + US)
    for number, start in enumerate(begins, start=1):
        name = "waited" if number < 1025 else "blocked"
        trace.kernel(start, start + 100 * US, correlation=number + 1, name=name)
    window = measured(trace.step(1, 0, 114_030 * US))
    assert times(only(window)) == (114_030 * US, (9_990 + 1030 * 100) * US, (10 + 1030) * US)
    assert causes(only(window)) == {"launch": 10 * US, "device_gap": 1030 * US}
    depths = {kernel.name: kernel.queue_depth for kernel in window.kernels}
    # The first begins at 10: until then it is one of those that wait.
    assert depths == {
        "first": 0,
        "waited": pytest.approx((sum(range(1, 6)) + sum(range(5, 1024))) / 1024),
        "blocked": 1024,
    }


LABELS = {
    "this package's": ("perf/optimizer", "perf/forward", "perf/backward"),
    "Lightning's": (
        "Optimizer.step#Adam.step",
        "[pl][profile][Strategy]DDPStrategy.training_step",
        "[pl][profile][Strategy]DDPStrategy.backward",
    ),
}


@pytest.mark.parametrize("labels", LABELS)
def test_forward_and_backward_inside_the_optimizers_step(measured, labels):
    optimizer, forward, backward = LABELS[labels]
    trace = TraceBuilder().step(1, 0, 1000).range(optimizer, 0, 1000).range(forward, 100, 400)
    trace.range(backward, 400, 700).op(AUTOGRAD, 410, 690, tid=BACKWARD)
    launched(trace, 1, 300, 320, 400)
    launched(trace, 2, 600, 620, 700, tid=BACKWARD)
    launched(trace, 3, 900, 920, 1000)
    window = measured(trace)
    assert shares(only(window)) == {
        ("optimizer", "optimizer"): 100 + 200,
        ("python", "forward"): 200,
        ("launch", "forward"): 20,
        ("python", "backward"): 10,
        ("launch", "backward"): 190 + 20,
        ("launch", "optimizer"): 20,
    }
    phases = {phase: ns(spent) for phase, spent in window.steps[0].phases_us.items()}
    assert phases == ({"optimizer": 400, "forward": 300, "backward": 300} if optimizer.startswith("perf/") else {})


def test_the_devices_copies_of_ranges_count_for_nothing(measured):
    def recorded() -> TraceBuilder:
        trace = TraceBuilder().step(1, 0, 1000).range("perf/forward", 0, 600).op("aten::mm", 0, 500)
        return launched(trace, 1, 400, 450, 900)

    copies = recorded()
    for name in (
        "ProfilerStep#1",
        "ProfilerStep#2",
        LOADER,
        "perf/callbacks/EMA.on_train_batch_end",
        "nccl:all_reduce",
    ):
        copies.complete(name, 450, 1_900, cat="gpu_user_annotation", pid=0, tid=7)
    window = measured(copies)
    assert times(only(window)) == (1000, 450, 550)
    assert causes(only(window)) == {"launch": 450, "step_edge": 100}
    (device,) = window.devices
    assert (device.operations, device.span_us, device.communication_us) == (1, 0.45, 0.0)
    expected = measured(recorded())
    assert (window.steps, window.devices, window.kernels) == (expected.steps, expected.devices, expected.kernels)


def test_the_profilers_own_time(measured):
    trace = launched(TraceBuilder().step(1, 0, 2_000), 1, 0, 20, 200).range("Buffer Flush", 300, 700, cat="overhead")
    window = measured(launched(trace, 2, 1_000, 1_020, 2_000))
    assert causes(only(window)) == {"launch": 20 + 20, "python": 100 + 300, "profiler": 400}


def test_kernels_that_were_not_warmed_up(measured):
    """The first step loads its kernel, which then is slower than the same one later."""
    trace = TraceBuilder().step(1, 0, 5_000).launch(1, 800, 2_810).kernel(3_000, 5_000, correlation=1)
    trace.range("Lazy Function Loading", 810, 2_800, cat="overhead")
    for number in (2, 3, 4):
        zero = 1_000 * number + 3_000
        launched(trace.step(number, zero, zero + 1_000), number, zero + 800, zero + 900, zero + 1_000)
    window = measured(trace)
    assert quality(window) == {"first_step_outlier": 1}
    (kernel,) = window.kernels
    assert (kernel.calls, kernel.max_us, kernel.min_us) == (4, 2.0, 0.1)
    assert causes(only(window)) == {"python": 4 * 800, "module_load": 1_990, "launch": 10 + 200 + 3 * 100}


def test_kernels_that_were_lost(measured):
    """The first step's launches are there, one of its two kernels is not."""
    trace = TraceBuilder()
    for number in range(3):
        zero = 1_000 * number
        trace.step(number, zero, zero + 1_000).op("aten::mm", zero, zero + 300)
        launched(trace, 2 * number + 1, zero + 100, zero + 200, zero + 300)
        launched(trace, 2 * number + 2, zero + 210, zero + 300, zero + 900)
    assert quality(measured(trace)) == {}
    trace.events = [event for event in trace.events if not (event["cat"] == "kernel" and event["ts"] == 200)]
    assert quality(measured(trace)) == {"launches_without_kernel": 1}


def test_few_lost_kernels_are_no_note(measured):
    trace = TraceBuilder()
    for number in range(1, 21):
        launched(trace, number, 100 * number, 100 * number + 20, 100 * number + 90)
    trace.events.pop()
    assert quality(measured(trace)) == {"no_steps": 1}
    trace.events.pop()
    trace.launch(20, 2_000, 2_010).launch(21, 2_020, 2_030)
    assert quality(measured(trace)) == {"no_steps": 1, "launches_without_kernel": 2}


def test_the_thread_that_pins_memory_is_no_cause(measured):
    pinning, whole = 99, (150, 990)
    trace = launched(TraceBuilder().step(1, 0, 2_000), 1, 0, 20, 200)
    call(trace.op("aten::pin_memory", *whole, tid=pinning), "cudaHostAlloc", 0, *whole, tid=pinning)
    call(trace, "cudaEventSynchronize", 0, 20, 140, tid=pinning)
    window = measured(launched(trace, 2, 1_000, 1_020, 2_000))
    assert causes(only(window)) == {"launch": 20 + 20, "python": 800}


def test_old_external_ids_link_nothing(measured):
    """Traces of 2022 repeat the correlation where the operator's number should be: each names the wrong operator."""
    trace = TraceBuilder().step(1, 0, 1000)
    trace.range("aten::mm", 0, 100, cat="cpu_op", **{"External id": 2})
    trace.range("aten::add", 100, 200, cat="cpu_op", **{"External id": 1})
    for number in (1, 2):
        at = 100 * number - 50
        external = {"External id": number}
        trace.range("cudaLaunchKernel", at, at + 10, cat="cuda_runtime", correlation=number, **external)
        trace.kernel(300 * number, 300 * number + 70 * number, correlation=number, **external)
    found = {row.name: (row.launches, row.self_device_us) for row in measured(trace).operators}
    assert found == {"aten::mm": (1, 0.07), "aten::add": (1, 0.14)}


STARTS = {
    "this package's label": ("perf/data/iterator", "user_annotation", 700),
    "a Python frame": ("torch/utils/data/dataloader.py(493): __iter__", "python_function", 0),
}


@pytest.mark.parametrize("case", STARTS)
def test_making_the_iterator_is_data_loading(measured, case):
    """Torch marks only ``__next__``, here from 900 to 950."""
    name, cat, loading = STARTS[case]
    trace = launched(TraceBuilder().step(1, 0, 2_000), 1, 0, 20, 200)
    trace.range(name, 200, 900, cat=cat).range(WORKERS_LOADER, 900, 950)
    window = measured(launched(trace, 2, 1_000, 1_020, 2_000))
    assert causes(only(window)) == {"launch": 20 + 20, "data_loading": 700 + 50, "python": 50}
    assert ns(window.steps[0].data_loading_us) == loading + 50


@pytest.mark.parametrize("unit", ["ms", "ns"])
@pytest.mark.parametrize("generation", ["epoch_ns", "base"])
def test_every_nanosecond_counts(measured, generation, unit):
    """A hundred kernels of 999 ns, 65 ns apart; the unit is that of a viewer's ruler, not of the times."""
    trace = TraceBuilder(generation).op("aten::mm", 7, 8)
    trace.metadata["displayTimeUnit"] = unit
    for number in range(100):
        trace.kernel(1_064 * number + 1, 1_064 * number + 1_000)
    (device,) = measured(trace).devices
    assert (ns(device.span_us), ns(device.busy_us), ns(device.idle_us), device.gaps) == (106_335, 99_900, 6_435, 99)


def test_each_device_has_a_window_of_its_own(measured):
    """One step, whose work on the second device goes on after it."""
    trace = TraceBuilder().step(1, 0, 1_000)
    launched(trace, 1, 10, 30, 200)
    launched(trace, 2, 40, 60, 1_500, device=1)
    launched(trace, 3, 900, 920, 990)
    window = measured(trace)
    first, second = (device.window for device in window.devices)
    assert times(first) == (1_000, 170 + 70, 760)
    assert causes(first) == {"python": 10 + 700, "launch": 20 + 20, "step_edge": 10}
    assert times(second) == (1_500, 1_440, 60)
    assert causes(second) == {"python": 10 + 20, "launch": 10 + 20}
    assert window.steps[0].device_busy_us == {"0": 0.24, "1": 0.94}


def test_waiting_in_a_collective_is_busy_time(measured):
    """Nine of ten microseconds nothing but a collective runs: this rank cannot tell whether it moves data or waits."""
    trace = launched(TraceBuilder().step(1, 0, 10_500), 1, 0, 20, 1_000)
    launched(trace, 2, 30, 1_000, 10_000, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=9)
    call(trace, "cudaStreamSynchronize", 0, 50, 10_050)
    window = measured(launched(trace, 3, 10_100, 10_120, 10_500))
    (device,) = window.devices
    assert (ns(device.busy_us), ns(device.communication_us), ns(device.exposed_communication_us)) == (
        980 + 9_000 + 380,
        9_000,
        9_000,
    )
    assert [(ns(row.exposed_us), ns(row.overlapped_us)) for row in window.collectives] == [(9_000, 0)]
    assert causes(only(window)) == {"launch": 20, "sync": 50 + 50 + 20}


@pytest.mark.parametrize("synchronised", [True, False])
def test_idle_time_has_one_cause_and_keeps_its_activity(measured, synchronised):
    """A call drains the queue, then the optimizer launches one kernel at a time: a remedy for either would do."""
    trace = launched(TraceBuilder().step(1, 0, 9_000), 1, 0, 100, 5_100)
    if synchronised:
        call(trace, "cudaStreamSynchronize", 0, 100, 5_110)
    trace.range("perf/forward", 0, 90).range("perf/optimizer", 5_110, 9_000)
    launched(trace, 2, 6_000, 6_020, 6_100)
    launched(trace, 3, 7_000, 7_020, 9_000)
    found = shares(only(measured(trace)))
    assert found.pop(("launch", "forward")) == 100
    slow = {("optimizer", "optimizer"): 890 + 900, ("launch", "optimizer"): 20 + 20}
    drained = {("sync", "optimizer"): 890 + 20 + 900 + 20}
    assert found == ({("sync", "host"): 10} | drained if synchronised else {("python", "host"): 10} | slow)


@pytest.mark.parametrize(("kernel_us", "shorter", "launch_us", "edge_us"), [(4, 0, 159, 5), (2, 10, 177, 7)])
def test_faster_kernels_are_only_more_idle_time(measured, kernel_us, shorter, launch_us, edge_us):
    """The host dispatches an operator in 20 us and takes 4 to the next: half the kernel's time changes no step."""
    trace = TraceBuilder().step(1, 0, 240 * US)
    for number in range(10):
        zero = 24 * number * US
        trace.op("aten::mm", zero, zero + 20 * US).launch(number + 1, zero + 10 * US, zero + 14 * US)
        trace.kernel(zero + 15 * US, zero + (15 + kernel_us) * US, correlation=number + 1)
    window = measured(trace)
    assert times(only(window)) == (240 * US, 10 * kernel_us * US, (240 - 10 * kernel_us) * US)
    assert causes(only(window)) == {"launch": launch_us * US, "python": 9 * 4 * US, "step_edge": edge_us * US}
    (kernel,) = window.kernels
    assert (kernel.queue_depth, kernel.launch_latency_us, kernel.shorter_than_launch) == (0, 1.0, shorter)


@pytest.mark.parametrize(
    ("name", "cat", "collecting"),
    [("perf/other/gc", "user_annotation", 300), ("Python GC", "python_function", 300), ("f.py(1): f", "cpu_op", 0)],
)
def test_garbage_collection_goes_before_what_it_interrupts(measured, name, cat, collecting):
    trace = launched(TraceBuilder().step(1, 0, 2_000), 1, 0, 20, 200)
    trace.range("perf/forward", 0, 90).range("perf/data", 200, 1_000).range(name, 400, 700, cat=cat)
    found = causes(only(measured(launched(trace, 2, 1_000, 1_020, 2_000))))
    assert (found.pop("gc", 0), found) == (collecting, {"launch": 20 + 20, "data_loading": 800 - collecting})


def test_validation_is_no_training(measured):
    """The first step ends with a validation of 500; the second one holds nothing else."""
    trace = TraceBuilder().step(1, 0, 1_000).range("perf/forward", 0, 100).range("perf/validation", 400, 900)
    launched(trace, 1, 0, 20, 200)
    launched(trace, 2, 800, 820, 850)
    trace.step(2, 1_000, 2_000).range("perf/validation", 1_000, 1_900)
    window = measured(launched(trace, 3, 1_100, 1_120, 1_900))
    assert [(step.number, step.complete) for step in window.steps] == [(1, True), (2, False)]
    assert [{phase: ns(spent) for phase, spent in step.phases_us.items()} for step in window.steps] == [
        {"forward": 100, "validation": 500, "other": 400},
        {"validation": 900, "other": 100},
    ]
    assert (only(window).steps, *times(only(window))) == (1, 1_000, 180 + 30, 790)
    assert causes(only(window)) == {"launch": 20 + 20, "python": 200 + 100, "validation": 400 + 50}


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"numSms": 132, "maxThreadsPerMultiprocessor": 2048},
        {"maxThreadsPerMultiprocessor": 132},
        {"numSms": 1, "maxThreadsPerMultiprocessor": "?", "warpSize": -1},
    ],
)
def test_properties_that_are_wrong_change_nothing(measured, properties):
    """How a kernel uses a device stands in the kernel's own arguments."""
    trace = TraceBuilder().step(1, 0, 1000)
    trace.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", **properties}]
    launched(trace, 1, 0, 200, 700, **{"blocks per SM": 0.5, "est. achieved occupancy %": 40})
    window = measured(trace)
    (found,) = window.efficiency
    assert (found.sm_efficiency, found.occupancy, found.peak_flops["bfloat16"]) == (0.25, 0.4, 989.5e12)
    assert window.devices[0].name == "NVIDIA H200"


def test_a_stack_that_broke_the_json(measured, tmp_path):
    """A file's name with quotes, written as it is: one note more, and the figures of the sound file."""
    trace = launched(TraceBuilder().step(1, 0, 1_000), 1, 0, 20, 200)
    trace.range('my "new" net.py(3): forward', 250, 700, cat="python_function")
    trace.range("perf/callbacks/EMA.on_train_batch_end", 300, 600).range("perf/forward", 0, 90)
    expected = measured(launched(trace, 2, 800, 820, 1_000))
    assert causes(only(expected)) == {"launch": 20 + 20, "python": 100 + 200, "callbacks": 300}
    broken = write(tmp_path, trace.text().replace('\\"new\\"', '"new"'))
    found = measure_trace(read_trace(broken))
    assert quality(found) == quality(expected) | {"repaired_text": 1}
    assert (found.steps, found.devices) == (expected.steps, expected.devices)
