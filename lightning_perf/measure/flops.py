"""Floating point operations of one operator call, from the inputs that a trace recorded.

The definitions are those of ``torch.utils.flop_counter``: a multiplication and an addition are two, biases and
masks are free, and attention counts as two products of dense matrices. They differ in one place: the gradient of a
grouped convolution's weight counts as much as its forward pass, where torch up to 2.14 counts that many times the
number of groups (https://github.com/pytorch/pytorch/pull/183405).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import msgspec

from lightning_perf.decode.trace import Inputs

Sizes = tuple[int, ...]


class Flops(NamedTuple):
    """What one call computes: ``each`` of some products of the same size, so many times.

    ``products`` is None for a convolution's backward pass of which the trace does not tell which gradients it made:
    traces before torch 2.2 have no concrete values.
    """

    each: int
    products: int | None = 1


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output sizes of the convolutions whose backward pass is in the trace, by the sizes of input and weight.

    The gradient that comes in has the size of the output. This is how traces without concrete values tell it.
    """

    sizes: Mapping[tuple[Sizes, Sizes], frozenset[Sizes]]

    def of(self, x: Sizes, weight: Sizes) -> Sizes | None:
        """Size of the output; None where no backward pass tells, or several tell different ones."""
        found = self.sizes.get((x, weight), frozenset())
        return next(iter(found)) if len(found) == 1 else None


class Arguments:
    """The recorded inputs of a call, by position."""

    def __init__(self, inputs: Inputs) -> None:
        self._shapes = _decoded(inputs.shapes)
        self._inputs = inputs

    def sizes(self, place: int) -> Sizes | None:
        """Sizes of a tensor; None for what is none, or not recorded. A tensor without dimensions looks like none."""
        shape = self._shapes[place] if place < len(self._shapes) else None
        return _whole_numbers(shape) or None

    def numbers(self, place: int, dimensions: int) -> Sizes | None:
        """A list of numbers, one per dimension: torch lets one stand for all."""
        numbers = _whole_numbers(self._value(place))
        return numbers * dimensions if numbers is not None and len(numbers) == 1 else numbers

    def flag(self, place: int) -> bool | None:
        """A truth value."""
        return {"True": True, "False": False}.get(self._text(place))

    def flags(self, place: int) -> list[bool] | None:
        """A list of truth values."""
        words = self._text(place).strip("[]").replace(",", " ").split()
        return [word == "True" for word in words] if words and set(words) <= {"True", "False"} else None

    def _value(self, place: int) -> object:
        return _decoded(self._text(place))

    def _text(self, place: int) -> str:
        values = _decoded(self._inputs.values)
        value = values[place] if place < len(values) else ""
        return value if isinstance(value, str) else ""


def flops_of(name: str, inputs: Inputs, outputs: Outputs) -> Flops | None:
    """Floating point operations of a call.

    Args:
        name: the operator, such as ``aten::mm``.
        inputs: its recorded inputs.
        outputs: :func:`convolution_outputs` of the trace.

    Returns:
        None for an operator without a definition here, and where the inputs do not tell.
    """
    definition = _DEFINITIONS.get(name)
    return None if definition is None else definition(Arguments(inputs), outputs)


def convolution_outputs(calls: Iterable[tuple[str, Inputs]]) -> Outputs:
    """What the backward passes of convolutions tell of their forward passes.

    Args:
        calls: names and inputs of operators; other operators are skipped.
    """
    found: dict[tuple[Sizes, Sizes], set[Sizes]] = {}
    for name, inputs in calls:
        backward = _BACKWARD.get(name)
        if backward is None:
            continue
        call = Arguments(inputs)
        output, x, weight = (call.sizes(place) for place in backward.places)
        if output is not None and x is not None and weight is not None:
            found.setdefault((x, weight), set()).add(output)
    return Outputs({key: frozenset(sizes) for key, sizes in found.items()})


_FLOATS: Final = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
}
_FLOAT8: Final = "c10::Float8"


@lru_cache(maxsize=1024)
def dtype_of(types: str) -> str | None:
    """Type in which a call computes, as torch calls it (``bfloat16``; ``float8`` for all of 8 bits).

    It is that of the first floating point tensor: these operators have the matrices, or what is added to them, first.

    Args:
        types: the recorded types of its inputs.
    """
    for written in _decoded(types):
        if isinstance(written, str):
            name = "float8" if written.startswith(_FLOAT8) else _FLOATS.get(written)
            if name is not None:
                return name
    return None


def _decoded(text: str) -> Sequence[object]:
    try:
        value = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []


def _whole_numbers(value: object) -> Sizes | None:
    return tuple(value) if isinstance(value, list) and set(map(type, value)) <= {int} else None


_Definition = Callable[[Arguments, Outputs], Flops | None]


def _product(first: int) -> _Definition:
    """Product of two matrices, or of two batches of them, the first of which is the input at a position."""

    def count(call: Arguments, _outputs: Outputs) -> Flops | None:
        a, b = call.sizes(first), call.sizes(first + 1)
        if a is None or b is None or len(a) not in (2, 3) or len(b) != len(a) or a[:-2] != b[:-2] or a[-1] != b[-2]:
            return None
        return Flops(2 * prod(a) * b[-1])

    return count


@dataclass(frozen=True, slots=True)
class _Forward:
    """Positions of a convolution's arguments; input and weight come first. ``transposed`` is one, or known."""

    stride: int
    padding: int
    dilation: int
    transposed: int | bool = False

    def __call__(self, call: Arguments, outputs: Outputs) -> Flops | None:
        x, weight = call.sizes(0), call.sizes(1)
        if x is None or weight is None:
            return None
        told = self.transposed if isinstance(self.transposed, bool) else call.flag(self.transposed)
        output = outputs.of(x, weight) if told is None else self._output(call, x, weight) or outputs.of(x, weight)
        each = _convolution(x, weight, x if told else output, transposed=told)
        return None if each is None else Flops(each)

    def _output(self, call: Arguments, x: Sizes, weight: Sizes) -> Sizes | None:
        """Size of the output of a convolution that is not transposed (torch.nn.Conv2d's formula)."""
        dimensions = len(x) - 2
        settings = [call.numbers(place, dimensions) for place in (self.stride, self.padding, self.dilation)]
        known = [values for values in settings if values is not None and len(values) == dimensions]
        if len(known) < len(settings) or len(weight) != len(x) or 0 in known[0]:
            return None
        each = zip(x[2:], weight[2:], *known, strict=True)
        sizes = ((size + 2 * pad - dil * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, pad, dil in each)
        return (x[0], weight[0], *sizes)


@dataclass(frozen=True, slots=True)
class _Backward:
    """Positions of the output's gradient, the input and the weight; of ``transposed`` and of the output mask."""

    places: tuple[int, int, int]
    transposed: int | bool = False
    mask: int | None = None

    def __call__(self, call: Arguments, _outputs: Outputs) -> Flops | None:
        output, x, weight = (call.sizes(place) for place in self.places)
        if output is None or x is None or weight is None:
            return None
        told = self.transposed if isinstance(self.transposed, bool) else call.flag(self.transposed)
        each = _convolution(x, weight, output, transposed=told)
        mask = None if self.mask is None else call.flags(self.mask)
        return None if each is None else Flops(each, None if mask is None else sum(mask[:2]))


def _convolution(x: Sizes, weight: Sizes, output: Sizes | None, *, transposed: bool | None) -> int | None:
    """Of a forward pass, or of one of the two gradients: each applies the whole weight at as many positions.

    These are the positions of the output, or of a transposed convolution's input. Where the trace does not tell which
    one it is, the channels do; if there are as many of each, it is the smaller of the two, as a stride makes it.
    """
    if output is None or len(weight) != len(x) or len(output) != len(x) or len(x) < 3:
        return None
    positions = []
    if transposed is not True and weight[0] == output[1]:
        positions.append(prod(output[2:]))
    if transposed is not False and weight[0] == x[1]:
        positions.append(prod(x[2:]))
    return 2 * x[0] * prod(weight) * min(positions) if positions else None


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention whose query, key and value begin at a position: so many products with the key's size and the value's.

    ``sequence`` is the sequence's dimension. ``lengths`` is the position of the lengths of sequences that were packed
    into one, which a trace does not record.
    """

    query: int
    by_key: int
    by_value: int
    sequence: int = -2
    lengths: int | None = None

    def __call__(self, call: Arguments, _outputs: Outputs) -> Flops | None:
        query, key, value = (call.sizes(place) for place in range(self.query, self.query + 3))
        if query is None or key is None or value is None or {len(query), len(key), len(value)} != {4}:
            return None
        if self.lengths is not None and call.sizes(self.lengths) is not None:
            return None
        if query[-1] != key[-1] or key[self.sequence] != value[self.sequence]:
            return None
        depth = self.by_key * query[-1] + self.by_value * value[-1]
        return Flops(2 * prod(query[:-1]) * key[self.sequence] * depth)


_GENERAL: Final = _Forward(stride=3, padding=4, dilation=5, transposed=6)
_WITH_BIAS: Final = _Forward(stride=4, padding=3, dilation=5)
_FUSED: Final = _Forward(stride=3, padding=4, dilation=5)
_FUSED_ADD: Final = _Forward(stride=5, padding=6, dilation=7)
_TRANSPOSED: Final = _Forward(stride=0, padding=0, dilation=0, transposed=True)
_OLD_BACKWARD: Final = _Backward((1, 0, 2))
_OLD_TRANSPOSED_BACKWARD: Final = _Backward((1, 0, 2), transposed=True)

# Signatures: aten/src/ATen/native/native_functions.yaml, of torch 1.8 to 1.10 for the backward passes by library.
_BACKWARD: Final[dict[str, _Backward]] = {
    "aten::convolution_backward": _Backward((0, 1, 2), transposed=7, mask=10),
    "aten::convolution_backward_overrideable": _Backward((0, 1, 2), transposed=6, mask=9),
    "aten::cudnn_convolution_backward": _OLD_BACKWARD,
    "aten::miopen_convolution_backward": _OLD_BACKWARD,
    "aten::miopen_depthwise_convolution_backward": _OLD_BACKWARD,
    "aten::mkldnn_convolution_backward": _OLD_BACKWARD,
    "aten::cudnn_convolution_transpose_backward": _OLD_TRANSPOSED_BACKWARD,
    "aten::miopen_convolution_transpose_backward": _OLD_TRANSPOSED_BACKWARD,
}
_FORWARD: Final[dict[str, _Forward]] = {
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    "aten::cudnn_convolution": _Forward(stride=3, padding=2, dilation=4),
    "aten::miopen_convolution": _WITH_BIAS,
    "aten::miopen_depthwise_convolution": _WITH_BIAS,
    "aten::mkldnn_convolution": _WITH_BIAS,
    "aten::cudnn_convolution_relu": _FUSED,
    "aten::miopen_convolution_relu": _FUSED,
    "aten::cudnn_convolution_add_relu": _FUSED_ADD,
    "aten::miopen_convolution_add_relu": _FUSED_ADD,
    "aten::cudnn_convolution_transpose": _TRANSPOSED,
    "aten::miopen_convolution_transpose": _TRANSPOSED,
}
# Attention forward: scores = query x key, output = scores x value. Backward: the scores again, then the gradients of
# the scores and of the value (two products with the value's size), of query and key (two with the key's).
_ATTENTION: Final[dict[str, _Attention]] = {
    **{
        f"aten::_scaled_dot_product_{kind}{backward}": formula
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
            "fused_attention_overrideable",
        )
        for backward, formula in (
            ("", _Attention(0, by_key=1, by_value=1)),
            ("_backward", _Attention(1, by_key=3, by_value=2)),
        )
    },
    "aten::_flash_attention_forward": _Attention(0, by_key=1, by_value=1, sequence=-3, lengths=3),
    "aten::_efficient_attention_forward": _Attention(0, by_key=1, by_value=1, sequence=-3, lengths=4),
    "aten::_flash_attention_backward": _Attention(1, by_key=3, by_value=2, sequence=-3, lengths=6),
    "aten::_efficient_attention_backward": _Attention(1, by_key=3, by_value=2, sequence=-3, lengths=6),
}
_DEFINITIONS: Final[dict[str, _Definition]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::baddbmm": _product(1),
    "aten::baddbmm_": _product(1),
    "aten::addbmm": _product(1),
    **_FORWARD,
    **_BACKWARD,
    **_ATTENTION,
}
