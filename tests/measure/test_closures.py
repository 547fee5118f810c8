"""What an optimizer's step runs, in traces without labels. Times in nanoseconds.

In every case the step takes 1000, nothing is launched until 980, and the device has been idle for as long.
"""

from __future__ import annotations

import pytest

from lightning_perf.measure.window import measure_trace
from tests.measure.laws import assert_conserved, ns
from tests.traces import BACKWARD, MAIN, TraceBuilder

AUTOGRAD = "autograd::engine::evaluate_function: MmBackward0"
Range = tuple[int, int]


def recorded(
    *steps: Range, operators: tuple[Range, ...] = (), autograd: tuple[Range, ...] = (), tid: int = BACKWARD
) -> TraceBuilder:
    """Ranges of the optimizer, operators of the main thread, and events of autograd on a thread."""
    trace = TraceBuilder().step(1, 0, 1_000)
    for start, end in steps:
        trace.range("Optimizer.step#SGD.step", start, end)
    for start, end in operators:
        trace.op("aten::mm", start, end)
    for start, end in autograd:
        trace.op(AUTOGRAD, start, end, tid=tid)
    return trace


ONE = {"operators": ((200, 300), (750, 850)), "autograd": ((400, 600), (650, 700))}
"""A forward pass, two operators of the backward pass, and the update."""
TWO = {"operators": ((200, 250), (450, 500), (850, 880)), "autograd": ((300, 400), (600, 700))}
"""Two passes, and the update."""
CASES = {
    "autograd has its own thread, with a GPU": (
        recorded((100, 900), **ONE),
        {
            ("python", "forward"): 100 + 100,
            ("launch", "forward"): 100,
            ("python", "backward"): 300,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "autograd runs where it is called, on a CPU": (
        recorded((100, 900), **ONE, tid=MAIN).op("MmBackward0", 410, 590).op("aten::mm", 420, 580),
        {
            ("python", "forward"): 100 + 100,
            ("launch", "forward"): 100,
            ("launch", "backward"): 200 + 50,
            ("python", "backward"): 50,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "the gradients of two batches are added up in the closure": (
        recorded((100, 900), **TWO),
        {
            ("python", "forward"): (100 + 50) + (50 + 100),
            ("launch", "forward"): 50 + 50,
            ("python", "backward"): 100 + 100,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "the batch before was added up outside of the optimizer's step, as Lightning does": (
        recorded((400, 900), **TWO),
        {
            ("python", "host"): 300 - 50,
            ("launch", "host"): 50,
            ("python", "backward"): 100,
            ("python", "forward"): 50 + 100,
            ("launch", "forward"): 50,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "LBFGS calls the closure three times, and computes in between": (
        recorded(
            (100, 900),
            operators=((150, 200), (350, 360), (370, 380), (390, 400), (550, 560), (850, 860)),
            autograd=((220, 250), (260, 300), (450, 500), (600, 700)),
        ),
        {
            ("python", "forward"): (50 + 20) + (50 + 10 + 10 + 50) + (50 + 40),
            ("launch", "forward"): 50 + 30 + 10,
            ("python", "backward"): 80 + 50 + 100,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "two optimizers, each with a closure": (
        recorded((100, 440), (440, 900), **TWO),
        {
            ("python", "forward"): (100 + 50) + (10 + 100),
            ("launch", "forward"): 50 + 50,
            ("python", "backward"): 100 + 100,
            ("optimizer", "optimizer"): 40 + 200,
        },
    ),
    "two optimizers, one without a closure": (
        recorded((100, 420), (450, 550), operators=((200, 250), (460, 480)), autograd=((300, 400),)),
        {
            ("python", "host"): 30 + 350,
            ("python", "forward"): 100 + 50,
            ("launch", "forward"): 50,
            ("python", "backward"): 100,
            ("optimizer", "optimizer"): 20 + 100,
        },
    ),
    "gradients are set to zero in the closure": (
        recorded((100, 900), **ONE)
        .range("Optimizer.zero_grad#SGD.zero_grad", 310, 350)
        .op("aten::zero_", 320, 330)
        .range("Optimizer.zero_grad#SGD.zero_grad", 860, 870),
        {
            ("python", "forward"): 100 + 100 - 40,
            ("launch", "forward"): 100,
            ("python", "backward"): 300,
            ("optimizer", "optimizer"): 40 + 200,
        },
    ),
    "a batch is fetched, and copied, in the closure": (
        recorded((100, 900), **ONE)
        .range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 120, 180)
        .range("nccl:all_reduce", 610, 640)
        .range("aten::pin_memory", 310, 350, cat="cpu_op"),
        {
            ("data_loading", "data"): 60,
            ("python", "forward"): 100 + 100 - 60 - 40,
            ("transfer", "forward"): 40,
            ("launch", "forward"): 100,
            ("python", "backward"): 300 - 30,
            ("communication_host", "backward"): 30,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "without a closure": (
        recorded((700, 900), **ONE),
        {
            ("python", "host"): 600 - 100,
            ("launch", "host"): 100,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "an optimizer around another one, which gets the closure": (
        recorded((50, 950), (100, 900), **ONE),
        {
            ("python", "host"): -50 - 50,
            ("python", "forward"): 100 + 100,
            ("launch", "forward"): 100,
            ("python", "backward"): 300,
            ("optimizer", "optimizer"): 50 + 200 + 50,
        },
    ),
    "an optimizer around another one, which just updates": (
        recorded((100, 900), (720, 760), (410, 550), **TWO),
        {
            ("python", "forward"): (100 + 50) + (10 + 50),
            ("launch", "forward"): 50,
            ("python", "backward"): 100 + 100,
            ("optimizer", "optimizer"): 140 + 200,
        },
    ),
    # After the inner update, only the next backward pass tells that the outer closure goes on.
    "an optimizer around another one, and both get a closure": (
        recorded(
            (100, 900),
            (410, 550),
            operators=((200, 250), (420, 440), (570, 580), (850, 880)),
            autograd=((300, 400), (450, 500), (600, 700)),
        ),
        {
            ("python", "forward"): (100 + 50) + 10 + (10 + 10),
            ("launch", "forward"): 50 + 20,
            ("python", "backward"): 100 + 50 + 100,
            ("optimizer", "optimizer"): 50 + 50 + 200,
        },
    ),
    "an operator of autograd that outlasts the step, into the next one": (
        recorded((100, 300), (300, 900), autograd=((150, 600), (500, 700))),
        {
            ("python", "forward"): 50 + 200,
            ("python", "backward"): 150 + 200,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "an operator of autograd that outlasts the step, and others inside it": (
        recorded((100, 900), operators=((200, 300),), autograd=((400, 950), (410, 420), (500, 800))),
        {
            ("python", "forward"): 200,
            ("launch", "forward"): 100,
            ("python", "backward"): 500,
        },
    ),
    "DistributedDataParallel marks the forward pass, but not the loss": (
        recorded((100, 900), **ONE).range("DistributedDataParallel.forward", 190, 310),
        {
            ("python", "forward"): 100 + 100,
            ("launch", "forward"): 100,
            ("python", "backward"): 300,
            ("optimizer", "optimizer"): 200,
        },
    ),
    "another process's autograd": (
        recorded((100, 900)).complete(AUTOGRAD, 400, 500, cat="cpu_op", pid=99, tid=99),
        {("optimizer", "optimizer"): 800},
    ),
    "an operator of autograd that took no time": (
        recorded((100, 900), autograd=((500, 500),)),
        {("optimizer", "optimizer"): 800},
    ),
}
LABELS = {
    "this package's": ("perf/forward/net", "perf/backward"),
    "Lightning's": ("[pl][profile][Strategy]DDPStrategy.training_step", "[pl][profile][Strategy]DDPStrategy.backward"),
    "TorchRec's": ("## forward ##", "## backward ##"),
}


@pytest.fixture
def explained(tmp_path):
    def explain(trace: TraceBuilder) -> dict[tuple[str, str], int]:
        window = measure_trace(trace.launch(1, 980, 990).kernel(1_000, 1_100, correlation=1).trace(tmp_path))
        assert_conserved(window)
        return {(share.cause, share.activity): ns(share.idle_us) for share in window.devices[0].window.idle_shares}

    return explain


def around(shares: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """With what surrounds the optimizer's steps: 100 before them, 80 after them, and a launch."""
    outside = {("python", "host"): 180, ("launch", "host"): 20}
    return {key: shares.get(key, 0) + outside.get(key, 0) for key in shares.keys() | outside.keys()}


@pytest.mark.parametrize("case", CASES)
def test_closures(explained, case):
    trace, expected = CASES[case]
    assert explained(trace) == around(expected)


@pytest.mark.parametrize("labels", LABELS)
def test_labels_are_believed(explained, labels):
    forward, backward = LABELS[labels]
    trace = recorded((100, 900), **ONE).range(forward, 190, 310).range(backward, 390, 710)
    assert explained(trace) == around(
        {
            ("python", "forward"): 20,
            ("launch", "forward"): 100,
            ("python", "backward"): 320,
            ("optimizer", "optimizer"): 90 + 80 + 190,
        }
    )
