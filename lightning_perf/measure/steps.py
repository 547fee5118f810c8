"""Steps of a trace: where they lie on the host, and whether they hold a batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Category, Int64s, Trace
from lightning_perf.measure.intervals import Intervals, clip, subtract, union
from lightning_perf.measure.labels import Kind, is_fit, kind_of_label
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.names import CUT_LABEL, LABEL_PREFIX, phase_of_label

_STEP: Final = re.compile(r"^ProfilerStep\s*#\s*(\d{1,18})$")
_LOADER_PREFIXES: Final = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
_LIGHTNING_PREFIX: Final = "[pl]"

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HostStep:
    """One ``ProfilerStep#<number>`` of the host, and the thread that carries it."""

    number: int
    start_ns: int
    end_ns: int
    process: int
    thread: int
    complete: bool


def named(trace: Trace, wanted: Callable[[str], object]) -> Booleans:
    """Which events are ranges of the host whose name is wanted.

    Ranges are annotations, and operators in traces before torch 1.9; never the device's copies of them.
    """
    of_name = np.array([bool(wanted(name)) for name in trace.names], dtype=np.bool_)
    ranges: Booleans = (trace.category == Category.ANNOTATION) | (trace.category == Category.CPU_OP)
    return ranges & of_name[trace.name_id]


def is_label(name: str) -> bool:
    """Whether a range's name is one that this package's callback writes."""
    return name.startswith(LABEL_PREFIX)


def is_data(name: str) -> bool:
    """Whether a range's name marks the fetch of a batch: torch's own, or ours."""
    return name.startswith(_LOADER_PREFIXES) or phase_of_label(name) == "data"


def data_loading(trace: Trace) -> Intervals:
    """When any thread of the host was fetching a batch: not one to validate with, for all of that is validation."""
    validation = {Kind.VALIDATION, Kind.VALIDATION_DATA} if is_fit(trace.names) else {Kind.VALIDATION}
    return subtract(_covered(trace, is_data), _covered(trace, lambda name: kind_of_label(name) in validation))


def _covered(trace: Trace, wanted: Callable[[str], object]) -> Intervals:
    """When any range of the host was open whose name is wanted."""
    rows = named(trace, wanted)
    return union(trace.start_ns[rows], trace.end_ns[rows])


def host_steps(trace: Trace, launches: Int64s) -> list[HostStep]:
    """The trace's steps by their start. A number that occurs more than once keeps its longest range.

    Args:
        trace: the trace.
        launches: its :func:`launch_rows`.
    """
    rows: dict[int, int] = {}
    for row in np.flatnonzero(named(trace, _STEP.match)).tolist():
        number = _number(trace, row)
        if number not in rows or trace.duration_ns[row] > trace.duration_ns[rows[number]]:
            rows[number] = row
    ordered = sorted(rows.values())  # rows are sorted by start
    complete = _complete(trace, ordered, launches)
    return [
        HostStep(
            number=_number(trace, row),
            start_ns=int(trace.start_ns[row]),
            end_ns=int(trace.start_ns[row] + trace.duration_ns[row]),
            process=int(trace.process[row]),
            thread=int(trace.thread[row]),
            complete=whole,
        )
        for row, whole in zip(ordered, complete, strict=True)
    ]


def _number(trace: Trace, row: int) -> int:
    match = _STEP.match(trace.names[trace.name_id[row]])
    assert match is not None  # noqa: S101 - the row was chosen by this expression
    return int(match.group(1))


def _complete(trace: Trace, rows: list[int], launches: Int64s) -> list[bool]:
    """Whether each step holds a batch.

    A trace of ours says so: a step with a batch has a forward, and one that recording cut off has a mark. In other
    traces only the last steps are doubted, which torch opens before the loop finds that there is no batch left:
    nothing begins in them but the loader and Lightning's own bookkeeping (PyTorchProfiler's ``[pl]`` ranges), and
    they launch no device work.
    """
    if np.any(named(trace, is_label)):
        forwards = trace.start_ns[named(trace, lambda name: phase_of_label(name) == "forward")]
        cuts = trace.start_ns[named(trace, lambda name: name == CUT_LABEL)]
        return [_holds(forwards, trace, row) and not _holds(cuts, trace, row) for row in rows]
    work = trace.start_ns[named(trace, lambda name: not (_STEP.match(name) or name.startswith(_LIGHTNING_PREFIX)))]
    work = work[~_inside(work, _covered(trace, is_data))]
    calls = np.sort(trace.start_ns[launches[launches != NO_LAUNCH]])
    complete = [True] * len(rows)
    for index in reversed(range(len(rows))):
        if _holds(work, trace, rows[index]) or _holds(calls, trace, rows[index]):
            break
        complete[index] = False
    return complete


def _holds(times: Int64s, trace: Trace, row: int) -> bool:
    """Whether any of the sorted times lies in the event's range."""
    start = int(trace.start_ns[row])
    first = int(np.searchsorted(times, start, side="left"))
    return first < times.size and int(times[first]) < start + int(trace.duration_ns[row])


def _inside(times: Int64s, ranges: Intervals) -> Booleans:
    """Which times lie in the set."""
    if len(ranges) == 0:
        return np.zeros(times.size, dtype=np.bool_)
    place = np.searchsorted(ranges.starts, times, side="right") - 1
    return (place >= 0) & (times < ranges.ends[np.maximum(place, 0)])


def inside_ns(ranges: Intervals, step: HostStep) -> int:
    """How much of a step a set covers."""
    return clip(ranges, step.start_ns, step.end_ns).total
