"""Arithmetic of small traces: what is counted once, where it ran, how fast that was. Times in nanoseconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.analysis import Arithmetic, Efficiency, Operator
from lightning_perf.measure.arithmetic import NO_CALL, arithmetic_calls
from lightning_perf.measure.launches import launch_rows
from lightning_perf.measure.window import measure_trace
from tests.traces import BACKWARD, TraceBuilder

TRACES = Path(__file__).parents[2] / "../shared/traces"

X, W, OUT = [2, 4, 9, 9], [8, 4, 3, 3], [2, 8, 7, 7]
CONVOLUTION = 2 * 2 * 8 * 4 * 9 * 49
VALUES = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
MM = 2 * 3 * 4 * 5
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}


def op(trace, name, start, end, shapes=None, *, dtype="float", values=None, tid=1):
    args = {} if shapes is None else {"Input Dims": shapes, "Input type": [dtype if one else "" for one in shapes]}
    args |= {} if values is None else {"Concrete Inputs": values}
    return trace.range(name, start, end, cat="cpu_op", tid=tid, **args)


def mm(trace, start, end, **options):
    return op(trace, "aten::mm", start, end, [[3, 4], [4, 5]], **options)


def on(trace, *devices):
    trace.metadata["deviceProperties"] = list(devices)
    return trace


def launched(trace, correlation, start, *, at, duration=100, tid=1, **kernel):
    trace.launch(correlation, start, start + 1, tid=tid)
    return trace.kernel(at, at + duration, correlation=correlation, **kernel)


def counted(trace, folder):
    """Names and FLOPs of the calls that are counted, in the trace's order."""
    read = trace.trace(folder)
    calls = arithmetic_calls(read, launch_rows(read))
    found = []
    for place in calls.rows.argsort().tolist():
        row = int(calls.rows[place])
        name = read.names[read.name_id[row]].removeprefix("aten::")
        found.append((name, calls.flops(calls.rows == row)))
    return found


def convolution(trace, start, end, *, values=VALUES):
    op(trace, "aten::conv2d", start, end, [X, W, [8]])
    op(trace, "aten::convolution", start + 1, end - 1, [X, W, [8]], values=values)
    op(trace, "aten::_convolution", start + 2, end - 2, [X, W, [8]], values=values)
    return op(trace, "aten::cudnn_convolution", start + 3, end - 3, [X, W])


def old_backward(trace, start, end, *gradients):
    """As torch 1.8 recorded it: no values, each gradient an operator inside."""
    op(trace, "aten::cudnn_convolution_backward", start, end, [X, OUT, W])
    for place, gradient in enumerate(gradients):
        name = f"aten::cudnn_convolution_backward_{gradient}"
        op(trace, name, start + 1 + 10 * place, start + 9 + 10 * place, [[], OUT, W])
    return trace


NESTED = {
    "the outermost": (convolution(TraceBuilder(), 0, 100), [("convolution", CONVOLUTION)]),
    "the outermost that tells": (
        mm(op(TraceBuilder(), "aten::_native_multi_head_attention", 0, 100), 10, 20),
        [("mm", MM)],
    ),
    "all inside what does not tell": (
        mm(mm(op(TraceBuilder(), "aten::scaled_dot_product_attention", 0, 100, [[1]]), 10, 20), 30, 40),
        [("mm", MM), ("mm", MM)],
    ),
    "unknown is one call": (convolution(TraceBuilder(), 0, 100, values=None), [("convolution", None)]),
    "unknown beside known in one call": (
        op(mm(op(TraceBuilder(), "aten::_some_attention", 0, 100, [[1]]), 10, 20), "aten::_grouped_mm", 30, 40, [[1]]),
        [("mm", MM), ("_grouped_mm", None)],
    ),
    "known around unknown": (
        op(mm(TraceBuilder(), 0, 100), "aten::_sparse_mm", 10, 20, [[1]]),
        [("mm", MM)],
    ),
    "another thread": (mm(mm(TraceBuilder(), 0, 100), 10, 20, tid=BACKWARD), [("mm", MM), ("mm", MM)]),
    "an instant": (mm(TraceBuilder(), 5, 5), [("mm", MM)]),
    "an instant inside": (mm(mm(TraceBuilder(), 0, 10), 5, 5), [("mm", MM)]),
    "no inputs": (op(TraceBuilder(), "aten::mm", 0, 10), [("mm", None)]),
    "old gradients, both": (
        old_backward(TraceBuilder(), 0, 100, "input", "weight"),
        [("cudnn_convolution_backward", 2 * CONVOLUTION)],
    ),
    "old gradients, one": (
        old_backward(TraceBuilder(), 0, 100, "weight"),
        [("cudnn_convolution_backward", CONVOLUTION)],
    ),
    "old gradients, not told": (
        old_backward(TraceBuilder(), 0, 100),
        [("cudnn_convolution_backward", 2 * CONVOLUTION)],
    ),
    "the backward pass tells of the forward pass": (
        old_backward(convolution(TraceBuilder(), 0, 100, values=None), 200, 300, "input"),
        [("convolution", CONVOLUTION), ("cudnn_convolution_backward", CONVOLUTION)],
    ),
    "a range of that name": (TraceBuilder().op("aten::add", 0, 9).range("aten::mm", 10, 20), []),
}


@pytest.mark.parametrize("case", NESTED)
def test_what_is_counted(tmp_path, case):
    trace, expected = NESTED[case]
    assert counted(trace, tmp_path) == expected


def test_which_call_launched_what(tmp_path):
    trace = TraceBuilder()
    convolution(trace, 0, 100)
    launched(trace, 1, 50, at=1000)  # deep inside
    launched(trace, 2, 150, at=2000)  # in none
    mm(trace, 200, 250)
    launched(trace, 3, 210, at=3000, device=1)
    convolution(trace, 300, 400, values=None)
    read = launched(trace, 4, 350, at=4000).trace(tmp_path)
    calls = arithmetic_calls(read, launch_rows(read))
    kernels = (read.category == 0).nonzero()[0]
    owners = [None if place == NO_CALL else read.start_ns[calls.rows[place]] for place in calls.call_of[kernels]]
    assert owners == [1, None, 200, 301]
    assert calls.device.tolist() == [0, 1, 0]


def test_more_than_64_bits(tmp_path):
    trace = TraceBuilder()
    side = 2_000_000
    for start in range(0, 1000, 100):
        op(trace, "aten::mm", start, start + 10, [[side, side], [side, side]])
    read = trace.trace(tmp_path)
    calls = arithmetic_calls(read, launch_rows(read))
    assert calls.flops(calls.rows >= 0) == 10 * 2 * side**3 > 2**63


def arithmetic(trace, folder, device="0"):
    window = measure_trace(trace.trace(folder))
    return next(one.arithmetic for one in window.efficiency if one.device == device)


def two_steps(**kernel):
    """Steps from 0 to 1,000 and 1,000 to 2,000 with a product in each, and one before, each on a kernel of 100."""
    trace = on(TraceBuilder().step(1, 0, 1000).step(2, 1000, 2000), H100)
    for number, start in ((1, -100), (2, 100), (3, 1100)):
        mm(trace, start, start + 50, **kernel)
        launched(trace, number, start + 10, at=start + 20)
    return trace


def test_over_the_window(tmp_path):
    assert arithmetic(two_steps(), tmp_path) == Arithmetic(
        flops=2 * MM,
        flops_per_step=MM,
        achieved_flops_per_s=pytest.approx(2 * MM / 1980e-9),  # the work of before ends at 20
        mfu=pytest.approx(2 * MM / 1980e-9 / 67e12),
        flops_dtype="float32",
        uncounted_calls=0,
    )


@pytest.mark.parametrize(
    ("written", "dtype", "peak"),
    [
        ("float", "float32", 67e12),
        ("c10::BFloat16", "bfloat16", 989.5e12),
        ("c10::Half", "float16", 989.5e12),
        ("c10::Float8_e4m3fn", "float8", 1979e12),
        ("double", "float64", None),
        ("int", None, None),
    ],
)
def test_utilisation_by_type(tmp_path, written, dtype, peak):
    found = arithmetic(two_steps(dtype=written), tmp_path)
    assert found.flops_dtype == dtype
    assert found.mfu == (None if peak is None else pytest.approx(found.achieved_flops_per_s / peak))


def test_the_type_that_computes_most(tmp_path):
    trace = two_steps()
    op(trace, "aten::mm", 1200, 1300, [[30, 4], [4, 5]], dtype="c10::Half")
    assert arithmetic(launched(trace, 9, 1210, at=1220), tmp_path).flops_dtype == "float16"


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", "tf32"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "float32"),
    ],
)
def test_float32_on_tensor_cores(tmp_path, kernel, dtype):
    trace = on(TraceBuilder().step(1, 0, 1000), H100)
    mm(trace, 10, 50)
    launched(trace, 1, 20, at=100, name=kernel, duration=300)
    launched(trace, 2, 30, at=500, name="splitKreduce_kernel", duration=100)
    assert arithmetic(trace, tmp_path).flops_dtype == dtype


def test_every_device_has_its_own(tmp_path):
    trace = on(TraceBuilder().step(1, 0, 1000), H100, {"id": 1, "name": "NVIDIA H100 80GB HBM3"})
    mm(trace, 10, 50)
    launched(trace, 1, 20, at=100)
    op(trace, "aten::mm", 60, 90, [[3, 4], [4, 50]])
    launched(trace, 2, 70, at=200, device=1)
    mm(trace, 92, 98)  # on the host
    found = measure_trace(trace.trace(tmp_path)).efficiency
    assert [(one.device, one.arithmetic.flops) for one in found] == [("0", MM), ("1", 10 * MM)]


def test_without_steps_all_counts(tmp_path):
    trace = on(TraceBuilder(), H100)
    mm(trace, 0, 50)
    mm(trace, 950, 1000)
    found = arithmetic(launched(launched(trace, 1, 10, at=20), 2, 960, at=970), tmp_path)
    assert (found.flops, found.flops_per_step) == (2 * MM, None)
    assert found.achieved_flops_per_s == pytest.approx(2 * MM / 1000e-9)


def test_the_host(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    assert measure_trace(mm(trace, 10, 500).trace(tmp_path)).efficiency == [
        Efficiency(
            device="cpu",
            sm_efficiency=None,
            occupancy=None,
            tensor_core_ratio=None,
            arithmetic=Arithmetic(
                flops=MM,
                flops_per_step=MM,
                achieved_flops_per_s=pytest.approx(MM / 1000e-9),
                mfu=None,
                flops_dtype="float32",
                uncounted_calls=0,
            ),
        )
    ]
    # What it launched on a device that was not recorded is not its own work.
    assert measure_trace(trace.launch(1, 20, 30).trace(tmp_path)).efficiency == []


def without_shapes():
    trace = on(TraceBuilder().step(1, 0, 1000), H100)
    op(trace, "aten::mm", 10, 50)
    return launched(trace, 1, 20, at=100)


def partly_known():
    trace = two_steps()
    op(trace, "aten::_grouped_mm", 200, 300, [[3, 4], [2, 4, 5]])
    return launched(trace, 9, 210, at=220)


NOTES = {
    "all is known": (two_steps(), {}),
    "an unknown device": (on(two_steps(), {"id": 0, "name": "NVIDIA H100 SE"}), {"unknown_device_peak": 1}),
    "a device without a name": (on(two_steps()), {"unknown_device_peak": 1}),
    "no shapes": (without_shapes(), {}),
    "no shapes on an unknown device": (on(without_shapes(), {"id": 0, "name": "NVIDIA H100 SE"}), {}),
    "a call of unknown size": (partly_known(), {"uncounted_flops": 1}),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(tmp_path, case):
    trace, expected = NOTES[case]
    notes = measure_trace(trace.trace(tmp_path)).quality
    assert {
        note.code: note.count for note in notes if note.code in ("unknown_device_peak", "uncounted_flops")
    } == expected


def test_sentences(tmp_path):
    window = measure_trace(on(partly_known(), {"id": 0, "name": "NVIDIA H100 SE"}).trace(tmp_path))
    assert [note.message for note in window.quality if "FLOP" in note.message] == [
        "No peak FLOP/s is known for NVIDIA H100 SE; figures that need it are absent.",
        (
            "The FLOPs of 1 of 4 operators that multiply matrices are unknown (aten::_grouped_mm); "
            "achieved FLOP/s leave them out."
        ),
    ]
    assert window.efficiency[0].arithmetic.uncounted_calls == 1


def test_nothing_is_known(tmp_path):
    assert arithmetic(without_shapes(), tmp_path) is None
    trace = on(TraceBuilder().step(1, 0, 1000), H100)
    op(trace, "aten::_grouped_mm", 10, 50, [[3, 4], [2, 4, 5]])
    assert arithmetic(launched(trace, 1, 20, at=100), tmp_path) == Arithmetic(
        flops=None, flops_per_step=None, achieved_flops_per_s=None, mfu=None, flops_dtype=None, uncounted_calls=1
    )


def by_name(rows):
    found = Counter()
    for row in rows:
        if row.flops is not None:
            found[row.name] += row.flops
    return found


def test_rows_of_operators(tmp_path):
    trace = convolution(TraceBuilder(), 0, 100)
    mm(mm(trace, 200, 250), 300, 350)
    op(trace, "aten::mm", 400, 450, [[3, 4], [4, 50]])
    read = read_trace(trace.write(tmp_path), inputs=True)
    assert {row.name: row.flops for row in measure_trace(read).operators} == {
        "aten::conv2d": None,
        "aten::convolution": CONVOLUTION,
        "aten::_convolution": None,
        "aten::cudnn_convolution": None,
        "aten::mm": 12 * MM,
    }
    shaped = {row.shapes: row.flops for row in measure_trace(read, by_shape=True).operators if row.name == "aten::mm"}
    assert shaped == {"[[3, 4], [4, 5]]": 2 * MM, "[[3, 4], [4, 50]]": 10 * MM}
    (kept, others) = measure_trace(read, limit=1).operators
    assert kept.flops == 12 * MM
    assert others.flops == CONVOLUTION


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.name.split(".")[0])
def test_rows_add_up(path):
    trace = read_trace(path)
    calls = arithmetic_calls(trace, launch_rows(trace))
    rows = measure_trace(trace, limit=None).operators
    assert by_name(rows) == by_name(measure_trace(trace, by_shape=True, limit=None).operators)
    assert sum(by_name(rows).values()) == (calls.flops(calls.rows >= 0) or 0)
    assert sum(row.flops or 0 for row in measure_trace(trace, limit=3).operators) == sum(by_name(rows).values())


# FLOPs of a step: ResNet-50 has 4.09 G multiplications and additions an image (batches of 32, three times that for
# training, but no gradient of the images), ViT-B/16 17.56 G (a batch of 4).
REAL = {
    "v100_resnet50_workers0": (777_570_484_224, 0.279, "float32"),
    "h100_vit": (140_509_200_384, 0.018, "bfloat16"),
    "mi300_owlv2_dataloader": (29_166_401_318_400, 0.020, "bfloat16"),
    "mi300_resnet_training": (140_395_069_440, 0.006, "bfloat16"),
    "a100_ddp_dataloader": (344_701_016_064, 0.029, "tf32"),
}


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there: real traces are not part of the project")
@pytest.mark.parametrize("name", REAL)
def test_real_traces(name):
    (found,) = measure_trace(read_trace(TRACES / f"{name}.pt.trace.json.gz")).efficiency
    flops, mfu, dtype = REAL[name]
    assert found.arithmetic.flops_per_step == flops
    assert found.arithmetic.mfu == pytest.approx(mfu, abs=0.0005)
    assert found.arithmetic.flops_dtype == dtype


def test_analyses_without_it_are_still_read():
    efficiency = {"device": "0", "sm_efficiency": None, "occupancy": None, "tensor_core_ratio": None}
    assert msgspec.convert(efficiency, Efficiency).arithmetic is None
    operator = dict.fromkeys(("launches", "self_device_us", "device_us"))
    assert (
        msgspec.convert({**operator, "name": "a", "calls": 1, "self_us": 1.0, "total_us": 1.0}, Operator).flops is None
    )
