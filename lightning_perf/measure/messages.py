"""What a collective sends, by the shapes of its range: torch before 2.1 writes no arguments of collectives.

ProcessGroupNCCL opens a range ``nccl:<call>`` around the launch, with the input tensors as its inputs
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ``initWork``). The output's size is that of the operator around it
for the calls on flat tensors, whose first two arguments are the output and the input.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Category, CollectiveArgs, Inputs, Int64s, Trace
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.nesting import NO_RANGE, Nesting, nest

_RANGE: Final = re.compile(r"(?:nccl|rccl|hccl|xccl):(?P<call>\w+)")
_FLAT: Final = frozenset({"c10d::alltoall_base_", "c10d::_allgather_base_", "c10d::_reduce_scatter_base_"})
"""Operators whose arguments begin with the output's and the input's tensor (torch/csrc/distributed/c10d/Ops.cpp)."""

_TYPES: Final[dict[str, str]] = {
    "float": "Float", "double": "Double", "c10::Half": "Half", "c10::BFloat16": "BFloat16", "bool": "Bool",
    "int": "Int", "long": "Long", "longint": "Long", "short": "Short", "shortint": "Short", "signedchar": "Char",
    "unsignedchar": "Byte", "c10::complex<float>": "ComplexFloat", "c10::complex<double>": "ComplexDouble",
    "c10::Float8_e5m2": "Float8_e5m2", "c10::Float8_e4m3fn": "Float8_e4m3fn",
}  # fmt: skip
"""c10's names of types, by those of C++ that traces have for a tensor's type, which are read without spaces."""


_MOST_ELEMENTS: Final = 2**56
"""More, in any type, are no bytes that fit 64 bits."""


def message_of_range(trace: Trace, calls: Int64s) -> list[CollectiveArgs | None]:
    """What each collective sends, by the range around its launch; None where there is none that tells.

    A range with several of the launches does not tell how much each of them sends.

    Args:
        trace: the trace.
        calls: rows of the calls that launched collectives, or :data:`~lightning_perf.measure.launches.NO_LAUNCH`.
    """
    named = np.array([_RANGE.match(name) is not None or name in _FLAT for name in trace.names], dtype=np.bool_)
    host = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    ranges = np.flatnonzero(host & named[trace.name_id] & (trace.input_id >= 0))
    if not ranges.size:
        return [None] * calls.size
    nesting = nest(trace, ranges)
    around = nesting.innermost(trace, np.maximum(calls, 0))
    around[calls == NO_LAUNCH] = NO_RANGE
    places = around.tolist()
    launches = Counter(places)
    return [None if launches[place] > 1 or place == NO_RANGE else _message(trace, nesting, place) for place in places]


def _message(trace: Trace, nesting: Nesting, place: int) -> CollectiveArgs | None:
    row, outer = int(nesting.rows[place]), int(nesting.parent[place])
    match = _RANGE.match(trace.names[trace.name_id[row]])
    tensors = _tensors(trace.inputs[trace.input_id[row]])
    types = {dtype for dtype, _ in tensors}
    if match is None or len(types) != 1:
        return None
    elements = sum(count for _, count in tensors)
    out = None if outer == NO_RANGE else _output(trace, int(nesting.rows[outer]), elements)
    return CollectiveArgs(
        name=match["call"],
        in_elements=elements,
        out_elements=out,
        dtype=types.pop(),
        group_size=None,
        group=None,
    )


def _output(trace: Trace, row: int, elements: int) -> int | None:
    """Elements of the output of an operator on flat tensors, if its input has so many."""
    if trace.names[trace.name_id[row]] not in _FLAT:
        return None
    tensors = _tensors(trace.inputs[trace.input_id[row]])
    return tensors[0][1] if len(tensors) == 2 and tensors[1][1] == elements else None


def _tensors(inputs: Inputs) -> list[tuple[str, int]]:
    """Type and number of elements of each input that is a tensor; none if one of them cannot be read."""
    try:
        shapes, types = json.loads(inputs.shapes), json.loads(inputs.types)
        return [(_TYPES[name], _elements(shape)) for shape, name in zip(shapes, types, strict=True) if name in _TYPES]
    except (ValueError, TypeError):
        return []


def _elements(shape: object) -> int:
    """Number of elements of a tensor.

    Raises:
        ValueError: this is no tensor's shape.
    """
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(shape)
    elements = math.prod(shape)
    if elements > _MOST_ELEMENTS:
        raise ValueError(shape)
    return elements
