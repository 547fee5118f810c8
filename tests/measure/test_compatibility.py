"""What other tools print, from our interval functions and their rules: same events, other windows and names.

Rules as read in their sources: HTA 0.5.0 (breakdown_analysis.py), TraceLens at 171dd747 (gpu_event_analyser.py),
torch-tb-profiler 0.4.3 (event_parser.py, overall_parser.py). Their figures are in ``../shared/peers.json``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.decode.trace import LAST_DEVICE_OPERATION, Category, Trace
from lightning_perf.measure.intervals import Intervals, clip, gaps, intersect, subtract, union
from lightning_perf.measure.launches import NO_LAUNCH, launch_rows
from lightning_perf.measure.steps import HostStep, host_steps

SHARED = Path(__file__).parents[2] / "../shared"
PEERS = json.loads((SHARED / "peers.json").read_text()) if (SHARED / "peers.json").exists() else {}
pytestmark = pytest.mark.skipif(not PEERS, reason="real traces and their peers' figures are not part of the project")


def figures(tool: str) -> list[str]:
    return [name for name, value in PEERS.get(tool, {}).items() if isinstance(value, dict)]


def covered(trace: Trace, rows: np.ndarray) -> Intervals:
    return union(trace.start_ns[rows], trace.end_ns[rows])


def matching(trace: Trace, pattern: str, flags: int = 0) -> np.ndarray:
    found = np.array([re.search(pattern, name, flags) is not None for name in trace.names])
    return found[trace.name_id]


# TraceLens: from the first to the last device operation, memset is computation.


@pytest.mark.parametrize("name", figures("tracelens"))
def test_tracelens_timeline(name):
    trace = read_trace(SHARED / "traces" / name)
    rows = trace.category <= LAST_DEVICE_OPERATION
    communicates = rows & matching(trace, r"rccl|nccl|cross_device_reduce", re.IGNORECASE)
    copies = rows & (trace.category == Category.MEMCPY)
    communication, copying = covered(trace, communicates), covered(trace, copies & ~communicates)
    computation = covered(trace, rows & ~communicates & ~copies)
    start, end = int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())
    idle = gaps(covered(trace, rows), start, end).total
    exposed = subtract(communication, computation)
    exposed_copies = subtract(subtract(copying, computation), communication)
    span = end - start
    assert idle + computation.total + exposed.total + exposed_copies.total == span

    ours = {
        "idle_us": round(idle / 1000),
        "idle_pct": round(100 * idle / span, 2),
        "computation_pct": round(100 * computation.total / span, 2),
        "exposed_comm_pct": round(100 * exposed.total / span, 2),
        "exposed_memcpy_pct": round(100 * exposed_copies.total / span, 2),
    }
    expected = PEERS["tracelens"][name]
    assert {key: ours[key] for key in expected} == pytest.approx(expected, abs=0.011)


# HTA: whole microseconds, without the last step.


@pytest.mark.parametrize("name", figures("hta"))
def test_hta_idle_time(name):
    trace = read_trace(SHARED / "traces" / name)
    launches = launch_rows(trace)
    last = host_steps(trace, launches)[-1]
    rows = np.flatnonzero((trace.category <= LAST_DEVICE_OPERATION) & (launches != NO_LAUNCH))
    rows = rows[trace.start_ns[launches[rows]] < last.start_ns]
    zero_ns = trace.start_unix_ns % 1000  # microseconds are rounded inwards since the trace's own zero
    start = -(-(trace.start_ns[rows] + zero_ns) // 1000)
    end = (trace.end_ns[rows] + zero_ns) // 1000
    communicates = matching(trace, r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")[rows]
    computes = ~matching(trace, r"(^nccl)|(Memcpy)|(Memset)|(dma)|(^.*Sync)|(^hip)|(^hccl)")[rows]
    busy = union(start, end)
    span = int(end.max() - start.min())
    idle = gaps(busy, int(start.min()), int(end.max())).total
    compute = union(start[computes], end[computes])
    communication = union(start[communicates], end[communicates])
    ours = {
        "idle_us": idle,
        "idle_pct": round(100 * idle / span, 2),
        "compute_us": compute.total,
        "non_compute_us": span - compute.total - idle,
    }
    if communication.total:
        ours["comm_comp_overlap_pct"] = round(100 * intersect(communication, compute).total / communication.total, 2)
    expected = PEERS["hta"][name]
    assert {key: ours[key] for key in expected} == pytest.approx(expected, abs=0.011)


# torch-tb-profiler: device-adjusted steps, time goes to the first role that something has.

COMMUNICATION_OPS = r"^(nccl|gloo):(broadcast|reduce|all_reduce|all_gather|reduce_scatter)$"
LOADER = r"^enumerate\(DataLoader\)#.*\.__next__$|^enumerate\(DataPipe\)#"


@dataclass
class Adjusted:
    start: int
    end: int


def adjusted_steps(trace: Trace, steps: list[HostStep], launches: np.ndarray) -> list[Adjusted]:
    """Steps that end when the device has done what their runtime calls launched. Driver calls are not looked at."""
    rows = np.flatnonzero(trace.category <= LAST_DEVICE_OPERATION)
    calls = launches[rows]
    known = (calls != NO_LAUNCH) & (trace.category[calls] == Category.RUNTIME)
    call_start, call_end = np.where(known, trace.start_ns[calls], -1), trace.end_ns[calls]
    outside = np.ones(rows.size, dtype=bool)
    work = []
    for step in steps:
        mine = (call_start >= step.start_ns) & (call_end <= step.end_ns)
        outside &= ~mine
        work.append(rows[mine])
    previous = steps[0].start_ns
    if work[0].size:
        before = trace.end_ns[rows[outside]]
        previous = max(previous, int(before[before < trace.start_ns[work[0]].min()].max(initial=previous)))
    adjusted = []
    for step, mine in zip(steps, work, strict=True):
        start = max(previous, step.start_ns)
        end = max(step.end_ns, int(trace.end_ns[mine].max()) if mine.size else start)
        adjusted.append(Adjusted(start, end))
        previous = end
    return adjusted


def roles(trace: Trace) -> dict[str, Intervals]:
    """Ranges of every role in the order in which they take time. The host's calls of collectives communicate, too."""
    calls = matching(trace, COMMUNICATION_OPS) & np.isin(trace.category, [Category.CPU_OP, Category.ANNOTATION])
    communicating = trace.external_id[calls]
    kernels = trace.category == Category.KERNEL
    communicates = kernels & np.isin(trace.external_id, communicating[communicating > 0])
    ranges = np.isin(
        trace.category, [Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.DEVICE_ANNOTATION]
    ) & ~matching(trace, r"^ProfilerStep")
    loading = matching(trace, LOADER) & ranges
    return {
        "kernel_pct": covered(trace, kernels & ~communicates),
        "memcpy_pct": covered(trace, trace.category == Category.MEMCPY),
        "memset_pct": covered(trace, trace.category == Category.MEMSET),
        "communication_pct": covered(trace, communicates | calls),
        "runtime_pct": covered(trace, trace.category == Category.RUNTIME),
        "dataloader_pct": covered(trace, loading),
        "cpu_exec_pct": covered(trace, ranges & ~loading & ~calls),
    }


@pytest.mark.parametrize("name", figures("torch_tb_profiler"))
def test_tb_profiler_steps(name):
    trace = read_trace(SHARED / "traces" / name)
    launches = launch_rows(trace)
    steps = adjusted_steps(trace, host_steps(trace, launches), launches)
    left = union(np.array([step.start for step in steps]), np.array([step.end for step in steps]))
    whole = left.total
    ours = {"step_us": round(whole / len(steps) / 1000)}
    for role, ranges in roles(trace).items():
        ours[role] = round(100 * intersect(ranges, left).total / whole, 2)
        left = subtract(left, ranges)
    ours["other_pct"] = round(100 * left.total / whole, 2)
    kernels = clip(covered(trace, trace.category == Category.KERNEL), steps[0].start, steps[-1].end)
    ours["gpu_utilization"] = round(kernels.total / (steps[-1].end - steps[0].start), 4)
    expected = {key: value for key, value in PEERS["torch_tb_profiler"][name].items() if key in ours}
    assert {key: ours[key] for key in expected} == pytest.approx(expected, abs=0.011)
