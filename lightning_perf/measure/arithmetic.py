"""Which calls of a trace do arithmetic, how much, in which type, and on which device."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Category, Inputs, Int64s, Trace
from lightning_perf.measure.flops import Flops, convolution_outputs, dtype_of, flops_of
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.nesting import NO_RANGE, Nesting, nest

NO_CALL: Final = -1
NO_DEVICE: Final = -1

_FAMILY: Final = re.compile(r"aten::(?:\w*mm|\w*bmm\w*|_addmm_activation|\w*convolution\w*|\w*attention\w*)$")
"""Operators that multiply matrices, and those that hold them. The trace always keeps the inputs of these."""

_ONE_GRADIENT: Final = re.compile(r"aten::\w*convolution\w*_backward_(?:input|weights?)$")
"""One product of a convolution's backward pass, called inside it, in torch until 1.10."""

_BOTH_GRADIENTS: Final = 2

_NOTHING: Final = Inputs("", "", "")


@dataclass(frozen=True, slots=True)
class Kind:
    """Calls of one operator with the same inputs. ``flops`` is None where these do not tell."""

    name_id: int
    input_id: int
    flops: Flops | None
    dtype: str | None


@dataclass(frozen=True, slots=True)
class ArithmeticCalls:
    """Calls that do arithmetic, the outermost where one holds another: each product is counted once.

    ``rows`` are the trace's rows of the calls, ``kind`` their place in ``kinds``, ``products`` how often a call does
    what its kind tells, and ``dtype`` the place in ``kinds`` of one that computes in the same type: with autocast, an
    outer call has other types than the inner one that computes. ``device`` is where their kernels ran,
    :data:`NO_DEVICE` where they launched none; ``call_of`` is the place in ``rows`` of the call that launched an
    event, :data:`NO_CALL` for others.

    Calls of a kind without ``flops`` are of unknown size. ``recorded`` tells whether any call has shapes.
    """

    rows: Int64s
    kind: Int64s
    products: Int64s
    dtype: Int64s
    device: Int64s
    call_of: Int64s
    kinds: tuple[Kind, ...]
    recorded: bool

    def known(self) -> npt.NDArray[np.bool_]:
        """Which calls are of known size."""
        return _of_kinds(self.kinds, lambda kind: kind.flops is not None)[self.kind]

    def dtypes(self) -> list[str | None]:
        """Types in which any call computes."""
        return list(dict.fromkeys(self.kinds[place].dtype for place in np.unique(self.dtype).tolist()))

    def of_dtype(self, dtype: str | None) -> npt.NDArray[np.bool_]:
        """Which calls compute in a type."""
        return _of_kinds(self.kinds, lambda kind: kind.dtype == dtype)[self.dtype]

    def flops(self, chosen: npt.NDArray[np.bool_]) -> int | None:
        """Of some calls together, exactly; None where none of them is of known size."""
        return self.flops_by(chosen.astype(np.int64)).get(1)

    def flops_by(self, keys: Int64s) -> dict[int, int]:
        """Of all calls of known size together, by a key of each call, in Python's integers.

        What a fast device does in seconds does not fit in 64 bits.
        """
        distinct, group = np.unique(keys, return_inverse=True)
        known = np.flatnonzero(self.known())
        found: dict[int, int] = {}
        each, place = np.unique(group.reshape(-1)[known] * len(self.kinds) + self.kind[known], return_inverse=True)
        times = np.bincount(place.reshape(-1), weights=self.products[known], minlength=each.size)
        for one, count in zip(each.tolist(), times.tolist(), strict=True):
            key, kind = divmod(one, len(self.kinds))
            flops = self.kinds[kind].flops
            each_flops = 0 if flops is None else flops.each
            found[int(distinct[key])] = found.get(int(distinct[key]), 0) + each_flops * int(count)
        return found


def arithmetic_calls(trace: Trace, launches: Int64s) -> ArithmeticCalls:
    """The calls of a trace that do arithmetic.

    Args:
        trace: the trace.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
    """
    named = np.array([_FAMILY.match(name) is not None for name in trace.names], dtype=np.bool_)
    every = np.flatnonzero((trace.category == Category.CPU_OP) & named[trace.name_id])
    nesting = nest(trace, every)
    instants = every[trace.duration_ns[every] == 0]
    rows = np.concatenate([nesting.rows, instants])
    parent = np.concatenate([nesting.parent, nesting.innermost(trace, instants)])

    kinds, kind = _kinds(trace, rows)
    known = _of_kinds(kinds, lambda one: one.flops is not None)[kind]
    top = _outermost(parent, known)
    chosen = np.flatnonzero(top == np.arange(rows.size))
    deepest = np.zeros(rows.size + 1, dtype=np.int64)
    deepest[top] = np.arange(rows.size)  # of several, the last: ranges follow what holds them
    place = np.full(rows.size + 1, NO_CALL, dtype=np.int64)
    place[chosen] = np.arange(chosen.size)
    call_of = _call_of(trace, launches, nesting, place[top[: nesting.rows.size]])
    launched = np.flatnonzero(call_of != NO_CALL)
    device = np.full(chosen.size, NO_DEVICE, dtype=np.int64)
    device[call_of[launched]] = trace.device[launched]
    return ArithmeticCalls(
        rows=rows[chosen],
        kind=kind[chosen],
        products=_products(trace, rows, parent, kinds, kind)[chosen],
        dtype=_typed(kinds, kind[chosen], kind[deepest[chosen]]),
        device=device,
        call_of=call_of,
        kinds=kinds,
        recorded=any(trace.inputs[one.input_id].shapes for one in kinds if one.input_id >= 0),
    )


def _kinds(trace: Trace, rows: Int64s) -> tuple[tuple[Kind, ...], Int64s]:
    """The distinct operators and inputs of some calls, and which each call has."""
    width = len(trace.inputs) + 1
    keys, kind = np.unique(trace.name_id[rows].astype(np.int64) * width + trace.input_id[rows] + 1, return_inverse=True)
    written = []
    for name_id, place in (divmod(key, width) for key in keys.tolist()):
        written.append((name_id, place - 1, trace.inputs[place - 1] if place else _NOTHING))
    outputs = convolution_outputs((trace.names[name_id], inputs) for name_id, _, inputs in written)
    kinds = tuple(
        Kind(name_id, input_id, flops_of(trace.names[name_id], inputs, outputs), dtype_of(inputs.types))
        for name_id, input_id, inputs in written
    )
    return kinds, kind.reshape(-1).astype(np.int64)


def _of_kinds(kinds: Sequence[Kind], wanted: Callable[[Kind], bool]) -> npt.NDArray[np.bool_]:
    return np.array([wanted(kind) for kind in kinds], dtype=np.bool_)


def _outermost(parent: Int64s, known: npt.NDArray[np.bool_]) -> Int64s:
    """The call with which each call is counted, by place: the outermost one of known size around it, or it itself.

    What is of unknown size, holds nothing of known size and lies in none counts with the outermost one of its sort.
    What holds something of known size is not counted: -1, the last place.
    """
    place = np.arange(known.size)
    top = np.where(known, place, NO_CALL)
    holds = np.zeros(known.size, dtype=np.bool_)
    below, up = place, parent
    while True:
        inside = up != NO_RANGE
        below, up = below[inside], up[inside]
        if not up.size:
            break
        top[below[known[up]]] = up[known[up]]
        holds[up[known[below]]] = True
        up = parent[up]
    unknown = (top == NO_CALL) & ~holds
    within = unknown & (parent != NO_RANGE) & unknown[parent]
    around = place
    while np.any(within[around]):
        around = np.where(within[around], parent[around], around)
    return np.where(unknown, around, top)


def _products(trace: Trace, rows: Int64s, parent: Int64s, kinds: Sequence[Kind], kind: Int64s) -> Int64s:
    """How often each call does what its kind tells: its gradients, for a backward pass that does not tell which."""
    told = [1 if one.flops is None else one.flops.products for one in kinds]
    products = np.array([NO_CALL if count is None else count for count in told], dtype=np.int64)[kind]
    if None not in told:
        return products
    named = np.array([_ONE_GRADIENT.match(name) is not None for name in trace.names], dtype=np.bool_)
    gradients = parent[named[trace.name_id[rows]] & (parent != NO_RANGE)]
    made = np.bincount(gradients, minlength=rows.size)
    return np.where(products == NO_CALL, np.where(made > 0, made, _BOTH_GRADIENTS), products)


def _typed(kinds: Sequence[Kind], outer: Int64s, inner: Int64s) -> Int64s:
    """The kind that tells in which type a call computes: the innermost one if it does."""
    return np.where(_of_kinds(kinds, lambda kind: kind.dtype is not None)[inner], inner, outer)


def _call_of(trace: Trace, launches: Int64s, nesting: Nesting, place: Int64s) -> Int64s:
    """The counted call that launched each device operation, by the trace's rows."""
    call_of = np.full(len(trace), NO_CALL, dtype=np.int64)
    operations = np.flatnonzero(launches != NO_LAUNCH)
    launched = np.zeros(len(trace), dtype=np.bool_)
    launched[launches[operations]] = True
    calls = np.flatnonzero(launched)
    owner = nesting.innermost(trace, calls)
    owned = owner != NO_RANGE
    by_row = call_of.copy()
    by_row[calls[owned]] = place[owner[owned]]
    call_of[operations] = by_row[launches[operations]]
    return call_of
