"""Every planted cause is found to the nanosecond, in programs that hypothesis writes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved, assert_drawn, ns
from tests.measure.simulator import COMPUTE, COPY, Machine
from tests.traces import BACKWARD, MAIN

short = st.integers(1, 4_000)
long = st.integers(1, 60_000)
latency = st.integers(0, 12_000)

kernels = st.tuples(
    st.just("kernel"), short, latency, st.integers(0, 60_000), st.sampled_from([COMPUTE, COPY]), st.just(0)
)
held_kernels = st.tuples(st.just("kernel"), short, latency, long, st.just(COMPUTE), st.integers(0, 60_000))
plain_work = st.one_of(
    kernels,
    kernels,
    held_kernels,
    st.tuples(st.just("python"), long),
    st.tuples(st.just("operator"), long),
    st.tuples(st.just("item"), latency),
    st.tuples(st.just("synchronise")),
    st.tuples(st.just("pinned_copy"), latency, long),
    st.tuples(st.just("blocking_copy"), latency, long),
    st.tuples(st.just("allocate"), long),
    st.tuples(st.just("load_and_launch"), long, long),
    st.tuples(st.just("collective"), latency, long),
    st.tuples(st.just("collect_garbage"), long),
    st.tuples(st.just("overhead"), long),
    st.tuples(st.just("graph"), latency, st.lists(st.tuples(st.integers(0, 30_000), long), min_size=1, max_size=3)),
    st.tuples(st.just("pageable_copy"), st.integers(31_000, 90_000), long),
)
programs = st.lists(plain_work, max_size=5)
ranges = st.one_of(
    plain_work,
    st.tuples(
        st.just("inside"),
        st.sampled_from(
            ["data", "transfer", "forward", "optimizer", "callback", "logging", "checkpoint", "validation"]
        ),
        programs,
    ),
    st.tuples(st.just("inside"), st.just("compile"), programs),
    st.tuples(
        st.just("inside"),
        st.just("validation"),
        st.lists(
            st.one_of(plain_work, st.tuples(st.just("inside"), st.sampled_from(["data", "logging"]), programs)),
            max_size=4,
        ),
    ),
    st.tuples(st.just("backward"), programs),
    st.tuples(
        st.just("inside"),
        st.just("optimizer"),
        st.lists(
            st.one_of(
                plain_work,
                st.tuples(st.just("inside"), st.sampled_from(["forward", "data", "zero_grad"]), programs),
                st.tuples(st.just("backward"), programs),
                st.tuples(st.just("backward"), programs),
            ),
            max_size=6,
        ),
    ),
)
first = ("inside", "forward", [("kernel", 1_000, 2_000, 3_000)])
steps = st.lists(ranges, max_size=5).map(lambda program: ("step", [first, *program]))
whole = st.lists(st.one_of(steps, steps, st.tuples(st.just("between_steps"), long)), max_size=4).map(
    lambda middle: [("step", [first]), *middle, ("step", [first])]
)
labels = st.sampled_from(["ours", "lightning", "plain"])


def simulate(kind, program, autograd=BACKWARD):
    machine = Machine(kind, autograd)
    machine.run(program)
    return machine


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")

    def measure(trace):
        read = read_trace(trace.write(folder))
        window = measure_trace(read)
        assert_conserved(window)
        assert_drawn(read, window)
        return window.devices[0].window

    return measure


def found(window) -> Counter:
    return Counter({(share.cause, share.activity): ns(share.idle_us) for share in window.idle_shares})


@settings(max_examples=150, deadline=None)
@given(kind=labels, program=whole, autograd=st.sampled_from([BACKWARD, BACKWARD, MAIN]))
def test_every_planted_cause_is_found(measured, kind, program, autograd):
    machine = simulate(kind, program, autograd)
    window = measured(machine.trace)
    assert ns(window.duration_us) == machine.window()[1] - machine.window()[0]
    assert found(window) == machine.truth()


@settings(max_examples=40, deadline=None)
@given(kind=labels, program=whole, seed=st.integers())
def test_the_order_in_the_file_does_not_matter(measured, kind, program, seed):
    trace = simulate(kind, program).trace
    expected = found(measured(trace))
    random.Random(seed).shuffle(trace.events)
    assert found(measured(trace)) == expected


@settings(max_examples=40, deadline=None)
@given(kind=labels, program=whole, shift=st.integers(1, 10**9))
def test_the_time_of_day_does_not_matter(measured, kind, program, shift):
    trace = simulate(kind, program).trace
    expected = found(measured(trace))
    for event in trace.events:
        event["ts"] += shift
    assert found(measured(trace)) == expected


@settings(max_examples=40, deadline=None)
@given(kind=labels, program=whole, others=st.lists(st.tuples(st.integers(0, 200_000), long), max_size=5))
def test_a_thread_that_drives_no_device_does_not_matter(measured, kind, program, others):
    trace = simulate(kind, program).trace
    expected = found(measured(trace))
    for start, length in others:
        trace.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start, start + length, tid=99)
        trace.op("aten::stack", start, start + length, tid=99)
        trace.range("cudaHostAlloc", start, start + length, cat="cuda_runtime", tid=99)
    assert found(measured(trace)) == expected


@settings(max_examples=40, deadline=None)
@given(kind=labels, program=whole, share=st.floats(0.01, 0.99))
def test_an_operation_in_two_parts_that_touch_adds_no_idle_time(measured, kind, program, share):
    trace = simulate(kind, program).trace
    expected = found(measured(trace))
    for event in [one for one in trace.events if one["cat"] == "kernel" and one["dur"] > 1]:
        first_part = max(1, int(event["dur"] * share))
        trace.events.append(
            {**event, "ts": event["ts"] + first_part, "dur": event["dur"] - first_part, "args": dict(event["args"])}
        )
        event["dur"] = first_part
    assert found(measured(trace)) == expected


@pytest.mark.parametrize(("fetch", "exposed"), [(20_000_000, 0), (23_999_001, 0), (26_499_001, 2_500_000)])
def test_only_the_part_of_a_fetch_that_the_device_waits_for_is_its_fault(measured, fetch, exposed):
    # The kernel is launched at 1,000 and begins at 3,001; the fetch begins at 4,000.
    busy = ("inside", "forward", [("kernel", 1_000, 2_000, 24_000_000)])
    machine = simulate("ours", [("step", [busy, ("inside", "data", [("python", fetch)]), first])])
    window = measured(machine.trace)
    assert found(window) == machine.truth()
    assert found(window)["data_loading", "data"] == exposed
