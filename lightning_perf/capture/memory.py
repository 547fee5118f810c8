"""Accelerators and peaks of memory, as the allocator and the system know them. Nothing is reset, nothing waits."""

from __future__ import annotations

import sys
from typing import Protocol, cast

import torch

from lightning_perf.runinfo import DeviceFacts, MemoryPeaks


class _Properties(Protocol):
    name: str
    total_memory: int


class _Accelerator(Protocol):
    """The part of ``torch.cuda`` that ``torch.xpu`` and other back ends offer as well."""

    def is_initialized(self) -> bool: ...
    def device_count(self) -> int: ...
    def memory_stats(self, device: int) -> dict[str, int]: ...
    def get_device_properties(self, device: int) -> _Properties: ...


def memory_peaks() -> MemoryPeaks:
    """Peak resident size of this process, and the allocator's peaks on each accelerator that it used.

    Peaks count from the start of the process, or from when the user last reset them.
    """
    stats = _allocator_stats()
    return MemoryPeaks(
        rss_bytes=peak_resident_bytes(),
        allocated_bytes={str(index): figures["allocated_bytes.all.peak"] for index, figures in stats.items()},
        reserved_bytes={str(index): figures["reserved_bytes.all.peak"] for index, figures in stats.items()},
        retries={str(index): figures.get("num_alloc_retries", 0) for index, figures in stats.items()},
        out_of_memory={str(index): figures.get("num_ooms", 0) for index, figures in stats.items()},
    )


def devices() -> list[DeviceFacts]:
    """The accelerators on which this process has allocated memory."""
    module = _accelerator()
    if module is None:
        return []
    found = []
    for index in _allocator_stats():
        properties = module.get_device_properties(index)
        found.append(DeviceFacts(index=index, name=properties.name, memory_bytes=properties.total_memory))
    return found


def peak_resident_bytes() -> int | None:
    """Largest resident size of this process so far, or None where the system does not keep it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage(2): kibibytes on Linux, bytes on macOS.
    return peak if sys.platform == "darwin" else peak * 1024


def _allocator_stats() -> dict[int, dict[str, int]]:
    """Allocator statistics of every device with an allocation. Asking creates no context on the others."""
    module = _accelerator()
    if module is None:
        return {}
    stats = {index: module.memory_stats(index) for index in range(module.device_count())}
    return {index: figures for index, figures in stats.items() if figures.get("reserved_bytes.all.peak")}


def _accelerator() -> _Accelerator | None:
    """Module of the accelerator in use, or None: CPU only, not started yet, or (MPS) without an allocator's peaks."""
    if not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    module = getattr(torch, accelerator.type, None) if accelerator is not None else None
    if not hasattr(module, "memory_stats") or not hasattr(module, "is_initialized"):
        return None
    usable = cast("_Accelerator", module)
    return usable if usable.is_initialized() else None
