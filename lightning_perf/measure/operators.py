"""Operators and modules: host time by nesting, device time by what they launched."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Category, Int64s, Trace
from lightning_perf.measure.analysis import Module, ModuleSource, Operator
from lightning_perf.measure.arithmetic import ArithmeticCalls
from lightning_perf.measure.backward import Backward, backward_work, backward_work_around
from lightning_perf.measure.call_sites import call_sites
from lightning_perf.measure.tally import OTHERS, DeviceCalls, tally
from lightning_perf.names import label

NO_OPERATOR: Final = "(no operator)"
"""Name of the row for device work that no operator launched, or whose launch is not in the trace."""

_MODULE_LABEL: Final = label("forward") + "/"
_MODULE_FRAME: Final = "nn.Module: "

# Ranges, not operators. Traces of torch before 1.9 do not tell them apart.
_RANGE: Final = re.compile(r"ProfilerStep\s*#|enumerate\(Data|Optimizer\.(?:step|zero_grad)#|\[pl\]|perf/")


def measure_operators(
    trace: Trace,
    calls: DeviceCalls,
    backward: Backward,
    *,
    by_shape: bool,
    limit: int | None,
    arithmetic: ArithmeticCalls | None = None,
    by_call_site: bool = False,
) -> list[Operator]:
    """Operators by name, and by input shapes and call site if wanted, the most expensive (host and device) first.

    Operators of the backward pass are rows of their own, as torch names them (``autograd::engine::...``). Self times
    add up to the union of operators of each thread, and ``self_device_us`` to the duration of all device operations.

    Args:
        trace: the trace; to group by shapes, it must have been read with them.
        calls: its :func:`~lightning_perf.measure.tally.device_calls`.
        backward: its :func:`~lightning_perf.measure.backward.match_backward`.
        by_shape: one row for each combination of input shapes.
        limit: operators to keep; the others are summed in a row :data:`~lightning_perf.measure.tally.OTHERS`.
        arithmetic: its :func:`~lightning_perf.measure.arithmetic.arithmetic_calls`; without it no row has ``flops``.
        by_call_site: one row for each function of the user's code that called the operator.
    """
    rows = operator_rows(trace)
    shapes, shape_of = _shapes(trace)
    keys = trace.name_id[rows].astype(np.int64) * len(shapes)
    keys += shape_of[trace.input_id[rows]] if by_shape else 0
    sites, site_of = call_sites(trace, backward, rows) if by_call_site else ([None], np.zeros_like(rows))
    keys = keys * len(sites) + site_of
    work_ns, known = _device_work(trace)
    later = backward_work(trace, backward, calls) if len(backward) else None
    flops = {} if arithmetic is None else arithmetic.flops_by(keys[np.searchsorted(rows, arithmetic.rows)])
    found = []
    for sums in tally(trace, rows, keys, calls, limit, later):
        name, shape, site = _unpacked(sums.key, len(shapes), len(sites))
        work_ns -= sums.self_device_ns
        found.append(
            Operator(
                name=OTHERS if name is None else trace.names[name],
                shapes=shapes[shape] if by_shape and shape is not None else None,
                call_site=None if site is None else sites[site],
                calls=sums.calls,
                self_us=sums.self_ns / 1000,
                total_us=sums.total_ns / 1000,
                launches=sums.launches if known else None,
                self_device_us=sums.self_device_ns / 1000 if known else None,
                device_us=sums.device_ns / 1000 if known else None,
                backward_us=sums.backward_ns / 1000 if later else None,
                backward_device_us=sums.backward_device_ns / 1000 if later and known else None,
                flops=_taken(flops, sums.key),
            )
        )
    return [*found, _without_operator(work_ns)] if work_ns else found


def _without_operator(work_ns: int) -> Operator:
    """The row of device work that no operator launched."""
    return Operator(
        name=NO_OPERATOR,
        calls=0,
        self_us=0.0,
        total_us=0.0,
        launches=None,
        self_device_us=work_ns / 1000,
        device_us=work_ns / 1000,
    )


def _taken(flops: dict[int, int], key: int | None) -> int | None:
    """What a row computes; the last row, without a key, has what is left."""
    if key is not None:
        return flops.pop(key, None)
    return sum(flops.values()) if flops else None


def _unpacked(key: int | None, shapes: int, sites: int) -> tuple[int | None, int | None, int | None]:
    """Name, shapes and call site of a row's key, of so many shapes and sites; the row of the others has none."""
    if key is None:
        return None, None, None
    named, site = divmod(key, sites)
    return (*divmod(named, shapes), site)


def _shapes(trace: Trace) -> tuple[list[str | None], Int64s]:
    """Distinct input shapes, None for none recorded, and the place of each of the trace's inputs; -1 is the last."""
    distinct: dict[str | None, int] = {}
    written = [*(one.shapes or None for one in trace.inputs), None]
    places = [distinct.setdefault(shapes, len(distinct)) for shapes in written]
    return list(distinct), np.array(places, dtype=np.int64)


def measure_modules(trace: Trace, calls: DeviceCalls, backward: Backward, *, limit: int | None) -> list[Module]:
    """Forward calls of modules, from this package's labels and from Python frames, each source for itself.

    What the backward pass took is told apart, by the module in which the operator ran whose gradient it computed.
    Over all modules of a source, ``self_device_us``, ``self_backward_device_us`` and what is outside of all modules
    add up to the duration of all device operations.

    Args:
        trace: the trace.
        calls: its :func:`~lightning_perf.measure.tally.device_calls`.
        backward: its :func:`~lightning_perf.measure.backward.match_backward`.
        limit: modules to keep of each source; the others are summed in one row.
    """
    return [
        *_modules(trace, calls, backward, "label", Category.ANNOTATION, _MODULE_LABEL, limit),
        *_modules(trace, calls, backward, "frame", Category.PYTHON, _MODULE_FRAME, limit),
    ]


def operator_rows(trace: Trace) -> Int64s:
    """Rows of operators, by start."""
    is_range = np.array([_RANGE.match(name) is not None for name in trace.names], dtype=np.bool_)
    return np.flatnonzero((trace.category == Category.CPU_OP) & ~is_range[trace.name_id])


def module_rows(trace: Trace) -> Int64s:
    """Rows of forward calls of modules, by start: this package's labels, or Python frames where there are none."""
    labels = _prefixed(trace, Category.ANNOTATION, _MODULE_LABEL)
    return labels if labels.size else _prefixed(trace, Category.PYTHON, _MODULE_FRAME)


def module_name(name: str) -> str:
    """Name of a module, from the name of its label or frame."""
    return name.removeprefix(_MODULE_LABEL).removeprefix(_MODULE_FRAME)


def _prefixed(trace: Trace, category: Category, prefix: str) -> Int64s:
    named = np.array([name.startswith(prefix) for name in trace.names], dtype=np.bool_)
    return np.flatnonzero((trace.category == category) & named[trace.name_id]) if named.any() else trace.start_ns[:0]


def _modules(
    trace: Trace,
    calls: DeviceCalls,
    backward: Backward,
    source: ModuleSource,
    category: Category,
    prefix: str,
    limit: int | None,
) -> list[Module]:
    rows = _prefixed(trace, category, prefix)
    known = _device_work(trace)[1]
    later = backward_work_around(trace, backward, calls, rows) if len(backward) and rows.size else None
    return [
        Module(
            name=OTHERS if sums.key is None else trace.names[sums.key].removeprefix(prefix),
            source=source,
            calls=sums.calls,
            self_us=sums.self_ns / 1000,
            total_us=sums.total_ns / 1000,
            launches=sums.launches if known else None,
            self_device_us=sums.self_device_ns / 1000 if known else None,
            device_us=sums.device_ns / 1000 if known else None,
            self_backward_us=sums.self_backward_ns / 1000 if later else None,
            backward_us=sums.backward_ns / 1000 if later else None,
            self_backward_device_us=sums.self_backward_device_ns / 1000 if later and known else None,
            backward_device_us=sums.backward_device_ns / 1000 if later and known else None,
        )
        for sums in tally(trace, rows, trace.name_id[rows].astype(np.int64), calls, limit, later)
    ]


def _device_work(trace: Trace) -> tuple[int, bool]:
    """Duration of all device operations, and whether there are any."""
    operations = trace.category <= LAST_DEVICE_OPERATION
    return int(trace.duration_ns[operations].sum()), bool(operations.any())
