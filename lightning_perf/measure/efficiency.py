"""How well kernels used a device: multiprocessors at work, warps on them, tensor cores, achieved FLOP/s."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf import units
from lightning_perf.decode.trace import Category, Floats, Int64s, Trace
from lightning_perf.measure.analysis import Arithmetic, Efficiency, Quality
from lightning_perf.measure.arithmetic import NO_CALL, ArithmeticCalls
from lightning_perf.measure.devices import DeviceWork, window_bounds
from lightning_perf.measure.host import HOST
from lightning_perf.measure.launches import names_where
from lightning_perf.measure.peaks import peaks_of
from lightning_perf.measure.steps import HostStep

_TENSOR_CORES: Final = re.compile(
    # Volta to Ampere, cuBLAS and cuDNN: the list of NVIDIA's PyProf (pyprof/prof/tc.py), which torch-tb-profiler uses.
    r"h884|s884|h1688|s1688|c1688|hmma|i8816|16816|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1"
    r"|direct_group|xmma_(?:implicit_gemm|sparse_conv|warp_specialized_implicit_gemm|gemm|sparse_gemm)"
    # The shape of the instruction in cuDNN's names, CUTLASS's word for the units, and its older wmma kernels.
    r"|_tensor\d+x\d+x\d+|tensorop_|wmma_|161616gemm"
    # Hopper and Blackwell: cuBLASLt, CUTLASS 3, and the names of the instructions.
    r"|\bnvjet_|cutlass3x_sm(?:9|1[0-9])\d|wgmma|tcgen05"
    # Attention: FlashAttention has no other kernels, PyTorch's CUTLASS ones use them from these architectures on.
    r"|\bflash_(?:fwd|bwd)(?!\w*(?:preprocess|convert|combine|dot_do_o))|fmhaSm(?:8|9|1[0-9])\d"
    r"|fmha_cutlass[FB]_(?:b?f16_\w*sm(?:7|8|9|1[0-9])\d|f32_\w*sm(?:8|9|1[0-9])\d)|_sdpa_sm(?:8|9|1[0-9])\d"
    # TensorRT-LLM's batched products of 4, 8 and 16 bit numbers on Blackwell.
    r"|^bmm_(?:MxE|E4m3|E2m1|Bfloat16|Fp16)"
)
_IN_ALL: Final = (
    "884", "1688", "8816", "16816", "mma", "dgrad_1x1", "first_layer", "conv1x1", "conv2d_c1", "direct_group", "tensor",
    "161616gemm", "nvjet_", "cutlass3x", "tcgen05", "flash_", "fmha", "_sdpa_", "bmm_",
)  # fmt: skip
"""One of these is in all that the pattern finds: most names are long and have none, and the pattern is slow."""
_PLAIN: Final = re.compile(r"simt|ffma", re.IGNORECASE)
"""Kernels of the same families that say that they use the ordinary units."""

CPU: Final = "cpu"
"""The host as a device, in traces without any other."""

_LAUNCH: Final = re.compile(r"Launch")
"""In the names of calls that launch kernels and graphs, whatever the vendor."""

_MOST: Final = 0.5
"""Share of the time of float32's kernels from which on they count as tf32."""

_SHOWN: Final = 3
"""Names in a message."""


def uses_tensor_cores(kernel: str) -> bool:
    """Whether the name of an NVIDIA kernel tells that it uses tensor cores.

    Kernels that Triton compiled have names of their own and count as not using them.
    """
    if not any(part in kernel for part in _IN_ALL):
        return False
    return _TENSOR_CORES.search(kernel) is not None and _PLAIN.search(kernel) is None


def measure_efficiency(
    trace: Trace, work: Sequence[DeviceWork], steps: Sequence[HostStep], launches: Int64s, calls: ArithmeticCalls
) -> list[Efficiency]:
    """Efficiency of every device that runs kernels, over its window of device-adjusted complete steps.

    The definitions are those of torch-tb-profiler (gpu_metrics_parser.py, tensor_cores_parser.py). A trace without
    devices has one entry, for the host, if it tells of arithmetic.

    Args:
        trace: the trace.
        work: its :func:`~lightning_perf.measure.devices.device_work`.
        steps: its :func:`~lightning_perf.measure.steps.host_steps`.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
        calls: its :func:`~lightning_perf.measure.arithmetic.arithmetic_calls`.
    """
    if not work:
        return _host_efficiency(trace, steps, calls)
    named = names_where(trace, np.flatnonzero(trace.category == Category.KERNEL), uses_tensor_cores)
    found = []
    for device in work:
        rows = device.rows[trace.category[device.rows] == Category.KERNEL]
        if rows.size == 0:
            continue
        start_ns, end_ns = window_bounds(trace, device, steps, launches)
        starts, ends = (np.clip(times[rows], start_ns, end_ns) for times in (trace.start_ns, trace.end_ns))
        kernel_ns = int((ends - starts).sum())
        told, place = _told(trace, rows)
        blocks, occupancy = trace.kernel_use.blocks_per_sm[place], trace.kernel_use.occupancy_percent[place]
        on_tensor_cores_ns = int((ends - starts)[named[trace.name_id[rows]]].sum())
        name = device_name(trace, device.index)
        peaks = {} if name is None else peaks_of(name)
        launched = _begun(trace, steps, calls) & (calls.device == device.index)
        found.append(
            Efficiency(
                device=str(device.index),
                sm_efficiency=_at_work(starts[told], ends[told], blocks, end_ns - start_ns),
                occupancy=_mean_occupancy(ends[told] - starts[told], occupancy),
                tensor_core_ratio=on_tensor_cores_ns / kernel_ns if told.size and kernel_ns else None,
                peak_flops=peaks,
                arithmetic=_arithmetic(trace, calls, launched, steps, end_ns - start_ns, peaks, named),
            )
        )
    return found


def arithmetic_quality(trace: Trace, calls: ArithmeticCalls, efficiency: Sequence[Efficiency]) -> list[Quality]:
    """Notes on figures of arithmetic that are absent, or too small; none where the trace recorded no shapes.

    Args:
        trace: the trace.
        calls: its :func:`~lightning_perf.measure.arithmetic.arithmetic_calls`.
        efficiency: its :func:`measure_efficiency`.
    """
    notes = []
    computing = [one for one in efficiency if one.arithmetic is not None and one.arithmetic.flops is not None]
    unknown = [one.device for one in computing if one.device != CPU and not one.peak_flops]
    if unknown:
        named = {_called(trace, index) for index in unknown}
        text = f"No peak FLOP/s is known for {', '.join(sorted(named))}; figures that need it are absent."
        notes.append(Quality(code="unknown_device_peak", message=text, count=len(unknown)))
    uncounted = calls.rows[~calls.known()]
    if calls.recorded and uncounted.size:
        names = sorted({trace.names[name] for name in trace.name_id[uncounted].tolist()})
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        text = (
            f"The FLOPs of {units.count(uncounted.size)} of {units.count(calls.rows.size)} operators that multiply "
            f"matrices are unknown ({shown}); achieved FLOP/s leave them out."
        )
        notes.append(Quality(code="uncounted_flops", message=text, count=int(uncounted.size)))
    return notes


def _called(trace: Trace, index: str) -> str:
    return device_name(trace, int(index)) or f"device {index}, which the trace does not name"


def _host_efficiency(trace: Trace, steps: Sequence[HostStep], calls: ArithmeticCalls) -> list[Efficiency]:
    """Of the host, unless it launched work of which the trace has no record: the arithmetic was not its own then."""
    launching = np.array([_LAUNCH.search(name) is not None for name in trace.names], dtype=np.bool_)[trace.name_id]
    if np.any(launching & ((trace.category == Category.RUNTIME) | (trace.category == Category.DRIVER))):
        return []
    complete = [step for step in steps if step.complete]
    host = np.flatnonzero(np.isin(trace.category, HOST))
    if complete:
        window_ns = complete[-1].end_ns - complete[0].start_ns
    else:
        window_ns = int(trace.end_ns[host].max() - trace.start_ns[host].min()) if host.size else 0
    no_kernels = np.zeros(len(trace.names), dtype=np.bool_)
    arithmetic = _arithmetic(trace, calls, _begun(trace, steps, calls), steps, window_ns, {}, no_kernels)
    if arithmetic is None:
        return []
    return [Efficiency(device=CPU, sm_efficiency=None, occupancy=None, tensor_core_ratio=None, arithmetic=arithmetic)]


def _begun(trace: Trace, steps: Sequence[HostStep], calls: ArithmeticCalls) -> npt.NDArray[np.bool_]:
    """Which calls begin in the complete steps; all where there are none."""
    complete = [step for step in steps if step.complete]
    starts = trace.start_ns[calls.rows]
    if not complete:
        return np.ones(starts.size, dtype=np.bool_)
    inside: npt.NDArray[np.bool_] = (starts >= complete[0].start_ns) & (starts < complete[-1].end_ns)
    return inside


def _arithmetic(
    trace: Trace,
    calls: ArithmeticCalls,
    chosen: npt.NDArray[np.bool_],
    steps: Sequence[HostStep],
    window_ns: int,
    peaks: Mapping[str, float],
    named: npt.NDArray[np.bool_],
) -> Arithmetic | None:
    """What some calls computed in a window; None where there are none, or no shapes were recorded.

    ``named`` tells of every name whether it is that of a kernel on tensor cores.
    """
    if not calls.recorded or not chosen.any():
        return None
    flops = calls.flops(chosen)
    complete = sum(step.complete for step in steps)
    per_s = None if flops is None or window_ns <= 0 else flops / window_ns * 1e9
    by_dtype = {dtype: calls.flops(chosen & calls.of_dtype(dtype)) or 0 for dtype in calls.dtypes()}
    dtype = max(by_dtype, key=lambda one: by_dtype[one]) if flops else None
    if dtype == "float32" and "tf32" in peaks and _on_tensor_cores(trace, calls, chosen & calls.of_dtype(dtype), named):
        dtype = "tf32"
    peak = peaks.get(dtype) if dtype is not None else None
    return Arithmetic(
        flops=flops,
        flops_per_step=flops / complete if flops is not None and complete else None,
        achieved_flops_per_s=per_s,
        mfu=per_s / peak if per_s is not None and peak else None,
        flops_dtype=dtype,
        uncounted_calls=int(np.count_nonzero(chosen & ~calls.known())),
    )


def _on_tensor_cores(
    trace: Trace, calls: ArithmeticCalls, chosen: npt.NDArray[np.bool_], named: npt.NDArray[np.bool_]
) -> bool:
    """Whether the kernels of some calls ran on tensor cores for most of their time."""
    rows = np.flatnonzero((calls.call_of != NO_CALL) & (trace.category == Category.KERNEL))
    rows = rows[chosen[calls.call_of[rows]]]
    on_them = rows[named[trace.name_id[rows]]]
    return int(trace.duration_ns[on_them].sum()) > _MOST * int(trace.duration_ns[rows].sum())


def device_name(trace: Trace, index: int) -> str | None:
    """Name of a device; where the trace numbers its properties in another way (ROCm does), the one name they have."""
    names = {device.index: device.name for device in trace.devices}
    if index in names:
        return names[index]
    return next(iter(names.values())) if len(set(names.values())) == 1 else None


def _told(trace: Trace, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Which of some kernels tell of multiprocessors: their places in ``rows``, and in ``trace.kernel_use``."""
    _, told, place = np.intersect1d(rows, trace.kernel_use.rows, assume_unique=True, return_indices=True)
    return told, place


def _at_work(starts: Int64s, ends: Int64s, blocks_per_sm: Floats, window_ns: int) -> float | None:
    """Mean share of multiprocessors that have a block: of those of all kernels that run at once, 1 at most."""
    used = blocks_per_sm > 0
    if not used.any() or window_ns <= 0:
        return None
    times = np.concatenate([starts[used], ends[used]])
    change = np.concatenate([blocks_per_sm[used], -blocks_per_sm[used]])
    order = np.argsort(times, kind="stable")
    level = np.clip(np.cumsum(change[order])[:-1], 0, 1)
    return float((level * np.diff(times[order])).sum()) / window_ns


def _mean_occupancy(durations: Int64s, occupancy_percent: Floats) -> float | None:
    """Mean over the kernels' time."""
    known = (occupancy_percent >= 0) & (durations > 0)
    if not known.any():
        return None
    return float(np.average(occupancy_percent[known], weights=durations[known])) / 100
