"""How well kernels used a device: multiprocessors at work, warps on them, tensor cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Category, Floats, Int64s, Trace
from lightning_perf.measure.analysis import Efficiency
from lightning_perf.measure.devices import DeviceWork, window_bounds
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
_PLAIN: Final = re.compile(r"simt|ffma", re.IGNORECASE)
"""Kernels of the same families that say that they use the ordinary units."""


def uses_tensor_cores(kernel: str) -> bool:
    """Whether the name of an NVIDIA kernel tells that it uses tensor cores.

    Kernels that Triton compiled have names of their own and count as not using them.
    """
    return _TENSOR_CORES.search(kernel) is not None and _PLAIN.search(kernel) is None


def measure_efficiency(
    trace: Trace, work: Sequence[DeviceWork], steps: Sequence[HostStep], launches: Int64s
) -> list[Efficiency]:
    """Efficiency of every device that runs kernels, over its window of device-adjusted complete steps.

    The definitions are those of torch-tb-profiler (gpu_metrics_parser.py, tensor_cores_parser.py).

    Args:
        trace: the trace.
        work: its :func:`~lightning_perf.measure.devices.device_work`.
        steps: its :func:`~lightning_perf.measure.steps.host_steps`.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
    """
    named = np.array([uses_tensor_cores(name) for name in trace.names], dtype=np.bool_)
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
        found.append(
            Efficiency(
                device=str(device.index),
                sm_efficiency=_at_work(starts[told], ends[told], blocks, end_ns - start_ns),
                occupancy=_mean_occupancy(ends[told] - starts[told], occupancy),
                tensor_core_ratio=on_tensor_cores_ns / kernel_ns if told.size and kernel_ns else None,
                peak_flops={} if name is None else peaks_of(name),
            )
        )
    return found


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
