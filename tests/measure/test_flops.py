"""FLOPs of one call: real operators against torch.utils.flop_counter, and inputs written out by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import Inputs
from lightning_perf.measure.arithmetic import arithmetic_calls
from lightning_perf.measure.flops import Flops, convolution_outputs, dtype_of, flops_of
from lightning_perf.measure.launches import launch_rows


def rand(*sizes, dtype=torch.float32, grad=False):
    return torch.rand(*sizes, dtype=dtype, requires_grad=grad)


def convolved(module, *sizes, grad=True):
    module(rand(*sizes, grad=grad)).sum().backward()


def frozen(module, *sizes):
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    convolved(module, *sizes)


def under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        convolved(torch.nn.Conv2d(4, 8, 3), 2, 4, 9, 9)
        torch.mm(rand(3, 4), rand(4, 5))
        torch.nn.Linear(4, 5)(rand(3, 4))


def transformer():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    layer(rand(2, 5, 16, grad=True), src_mask=torch.zeros(5, 5)).sum().backward()


REAL = {
    "mm": lambda: torch.mm(rand(3, 4), rand(4, 5)),
    "mm into a tensor": lambda: torch.mm(rand(3, 4), rand(4, 5), out=torch.empty(3, 5)),
    "mm of nothing": lambda: torch.mm(rand(3, 0), rand(0, 5)),
    "mm and its gradients": lambda: torch.mm(rand(3, 4, grad=True), rand(4, 5, grad=True)).sum().backward(),
    "addmm": lambda: torch.addmm(rand(5), rand(3, 4), rand(4, 5), beta=2),
    "bmm": lambda: torch.bmm(rand(7, 3, 4), rand(7, 4, 5)),
    "baddbmm": lambda: torch.baddbmm(rand(7, 3, 5), rand(7, 3, 4), rand(7, 4, 5)),
    "matmul broadcasts": lambda: rand(2, 7, 3, 4) @ rand(4, 5),
    "einsum": lambda: torch.einsum("bij,bjk->bik", rand(2, 3, 4), rand(2, 4, 5)),
    "linear": lambda: convolved(torch.nn.Linear(6, 7), 2, 3, 6),
    "double": lambda: torch.mm(rand(3, 4, dtype=torch.float64), rand(4, 5, dtype=torch.float64)),
    "conv1d": lambda: convolved(torch.nn.Conv1d(4, 6, 5, stride=2), 2, 4, 21),
    "conv2d": lambda: convolved(torch.nn.Conv2d(3, 8, 3), 2, 3, 12, 10),
    "conv2d, all settings": lambda: convolved(
        torch.nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(1, 4), dilation=(3, 2)), 2, 4, 17, 19
    ),
    "conv2d, one image": lambda: convolved(torch.nn.Conv2d(4, 8, 3, padding="same"), 4, 9, 9),
    "conv2d, first layer": lambda: convolved(torch.nn.Conv2d(3, 8, 3), 2, 3, 12, 10, grad=False),
    "conv2d, frozen": lambda: frozen(torch.nn.Conv2d(3, 8, 3), 2, 3, 12, 10),
    "conv2d, frozen, with groups": lambda: frozen(torch.nn.Conv2d(6, 9, 3, groups=3), 2, 6, 9, 9),
    "conv2d, dilated slowly": lambda: torch.nn.functional.conv2d(
        rand(1, 2, 9, 9, dtype=torch.float64), rand(3, 2, 3, 3, dtype=torch.float64), dilation=2
    ),
    "conv2d, forward, depthwise": lambda: torch.nn.functional.conv2d(rand(2, 6, 9, 9), rand(6, 1, 3, 3), groups=6),
    "conv3d": lambda: convolved(torch.nn.Conv3d(2, 3, 3, padding=1), 1, 2, 5, 6, 7),
    "transposed": lambda: convolved(torch.nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), 2, 4, 5, 6),
    "transposed, forward, with groups": lambda: torch.nn.functional.conv_transpose2d(
        rand(2, 4, 5, 5), rand(4, 3, 3, 3), groups=2
    ),
    "as many channels, strided": lambda: convolved(torch.nn.Conv2d(4, 4, 3, stride=2), 2, 4, 12, 10),
    "autocast": under_autocast,
    "attention by products": lambda: scaled_dot_product_attention(
        rand(2, 3, 5, 8), rand(2, 3, 7, 8), rand(2, 3, 7, 8), attn_mask=rand(5, 7, grad=True)
    ),
    "transformer": transformer,
}


def recorded(run, folder):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recording:
        run()
    recording.export_chrome_trace(str(folder / "trace.json"))
    trace = read_trace(folder / "trace.json")
    return trace, arithmetic_calls(trace, launch_rows(trace))


def total(calls):
    return calls.flops(calls.rows >= 0)


def counted_by_torch(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", REAL)
def test_equals_torch(tmp_path, case):
    _, calls = recorded(REAL[case], tmp_path)
    assert calls.known().all()
    assert total(calls) == counted_by_torch(REAL[case])


@pytest.mark.parametrize("backward_like", [False, True], ids=["plain", "transposed"])
def test_gradient_of_a_grouped_weight(tmp_path, backward_like):
    """As much as the forward pass; torch's formula counted it once per group (pytorch #183405)."""
    groups = 3
    kind = torch.nn.ConvTranspose2d if backward_like else torch.nn.Conv2d

    def run():
        convolved(kind(6, 9, 3, groups=groups), 2, 6, 9, 9)

    _, calls = recorded(run, tmp_path)
    forward = counted_by_torch(lambda: kind(6, 9, 3, groups=groups)(rand(2, 6, 9, 9)))
    assert total(calls) == 3 * forward
    assert counted_by_torch(run) in (3 * forward, (2 + groups) * forward)


@pytest.mark.parametrize("heads", [4, 2], ids=["", "fewer key heads"])
def test_attention_of_the_cpu(tmp_path, heads):
    """torch has no formula for it: compared with that of the same attention on a device."""
    query, key = (2, 4, 5, 8), (2, heads, 7, 8)

    def run():
        tensors = (rand(*sizes, grad=True) for sizes in (query, key, key))
        scaled_dot_product_attention(*tensors, enable_gqa=heads < 4).sum().backward()

    trace, calls = recorded(run, tmp_path)
    names = {trace.names[trace.name_id[row]] for row in calls.rows.tolist()}
    assert names == {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
    assert total(calls) == attention_of_torch(query, key, key) + attention_of_torch(query, query, key, key)


def attention_of_torch(*sizes):
    from torch.utils.flop_counter import flop_registry

    kind = torch.ops.aten._scaled_dot_product_flash_attention
    kind = kind if len(sizes) == 3 else torch.ops.aten._scaled_dot_product_flash_attention_backward
    return flop_registry[kind](*(torch.empty(size, device="meta") for size in sizes))


def test_autocast_computes_in_the_inner_type(tmp_path):
    _, calls = recorded(under_autocast, tmp_path)
    assert calls.dtypes() == ["bfloat16"]


def inputs(shapes, values=(), types=()):
    return Inputs(*(json.dumps(list(part)) if part else "" for part in (shapes, types, values)))


NOTHING = convolution_outputs([])
X, W, OUT = [2, 4, 9, 9], [8, 4, 3, 3], [2, 8, 7, 7]
ONE = 2 * 2 * 8 * 4 * 9 * 49
PLAIN = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
BACKWARD = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
Q, K = [2, 5, 4, 8], [2, 7, 4, 8]
ATTENTION = 2 * 2 * 4 * 5 * 7

# Operators of devices, which a CPU does not run, and inputs that do not tell.
BY_HAND = {
    "with an activation": ("aten::_addmm_activation", inputs([[5], [3, 4], [4, 5]]), Flops(120)),
    "scaled mm": ("aten::_scaled_mm", inputs([[3, 4], [4, 5], [], []]), Flops(120)),
    "matrices that do not fit": ("aten::mm", inputs([[3, 4], [5, 4]]), None),
    "batches that do not fit": ("aten::bmm", inputs([[2, 3, 4], [3, 4, 5]]), None),
    "no shapes": ("aten::mm", inputs([]), None),
    "shapes of lists": ("aten::mm", inputs([[[3, 4]], [[4, 5]]]), None),
    "shapes that are no JSON": ("aten::mm", Inputs("[[3, 4], [4", "", ""), None),
    "an operator without a definition": ("aten::_grouped_mm", inputs([[3, 4], [2, 4, 5], [2]]), None),
    "general": ("aten::convolution", inputs([X, W, [8]], PLAIN), Flops(ONE)),
    "one number for all dimensions": (
        "aten::convolution",
        inputs([X, W, [8]], [*PLAIN[:3], "[1]", "[0]", "[1]", *PLAIN[6:]]),
        Flops(ONE),
    ),
    "cudnn": ("aten::cudnn_convolution", inputs([X, W], ["", "", "[0, 0]", "[1, 1]", "[1, 1]"]), Flops(ONE)),
    "miopen": ("aten::miopen_convolution", inputs([X, W, []], ["", "", "", "[0]", "[1]", "[1]"]), Flops(ONE)),
    "with relu": ("aten::cudnn_convolution_relu", inputs([X, W, [8]], ["", "", "", "[1]", "[0]", "[1]"]), Flops(ONE)),
    "a stride of 0": ("aten::convolution", inputs([X, W, [8]], [*PLAIN[:3], "[0, 0]", *PLAIN[4:]]), None),
    "without values": ("aten::convolution", inputs([X, W, [8]]), None),
    "transposed by its name": ("aten::cudnn_convolution_transpose", inputs([OUT, W]), Flops(ONE)),
    "backward": ("aten::convolution_backward", inputs([OUT, X, W], [*BACKWARD, "[True, True, False]"]), Flops(ONE, 2)),
    "backward, one gradient": (
        "aten::convolution_backward",
        inputs([OUT, X, W], [*BACKWARD, "[False, True, True]"]),
        Flops(ONE, 1),
    ),
    "backward without values": ("aten::convolution_backward", inputs([OUT, X, W]), Flops(ONE, None)),
    "backward of a transposed one without values": (
        "aten::convolution_backward",
        inputs([X, OUT, W]),
        Flops(ONE, None),
    ),
    "backward of what does not fit": ("aten::convolution_backward", inputs([OUT, X, [7, 4, 3, 3]]), None),
    "old backward": ("aten::cudnn_convolution_backward", inputs([X, OUT, W]), Flops(ONE, None)),
    "flash attention": ("aten::_flash_attention_forward", inputs([Q, K, K, [], []]), Flops(ATTENTION * 16)),
    "flash attention, backward": (
        "aten::_flash_attention_backward",
        inputs([Q, Q, K, K, Q, [2, 4, 5], [], []]),
        Flops(ATTENTION * 40),
    ),
    "efficient attention": ("aten::_efficient_attention_forward", inputs([Q, K, K, [5, 7]]), Flops(ATTENTION * 16)),
    "attention of packed sequences": ("aten::_flash_attention_forward", inputs([Q[1:], K[1:], K[1:], [3], [3]]), None),
    "attention of packed sequences in a batch": (
        "aten::_efficient_attention_forward",
        inputs([Q, K, K, [], [3]]),
        None,
    ),
    "attention that does not fit": (
        "aten::_scaled_dot_product_cudnn_attention",
        inputs([[2, 4, 5, 8], [2, 4, 7, 9], [2, 4, 7, 9]]),
        None,
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case):
    name, recorded_inputs, expected = BY_HAND[case]
    assert flops_of(name, recorded_inputs, NOTHING) == expected


def test_the_backward_pass_tells_the_output_of_the_forward_pass():
    forward, backward = inputs([X, W, [8]]), inputs([OUT, X, W])
    outputs = convolution_outputs([("aten::convolution_backward", backward), ("aten::mm", forward)])
    assert flops_of("aten::convolution", forward, outputs) == Flops(ONE)
    other = ("aten::cudnn_convolution_backward", inputs([X, [2, 8, 4, 4], W]))
    ambiguous = convolution_outputs([("aten::convolution_backward", backward), other])
    assert flops_of("aten::convolution", forward, ambiguous) is None


@pytest.mark.parametrize(
    ("types", "dtype"),
    [
        (["float", "float"], "float32"),
        (["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar"], "bfloat16"),
        (["c10::Half"], "float16"),
        (["double"], "float64"),
        (["c10::Float8_e4m3fn", "c10::Float8_e5m2", "float"], "float8"),
        (["GenericList", "float"], "float32"),
        (["signedchar", "signedchar"], None),
        ([], None),
    ],
)
def test_types(types, dtype):
    assert dtype_of(json.dumps(types)) == dtype
