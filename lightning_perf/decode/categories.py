"""What every vendor and torch version calls an event, mapped to our :class:`Category`.

Names come from libkineto's ActivityType table (compared in lower case) and from the traces that torch wrote
before 1.9 (``Kernel``, ``Memcpy``, ``Memset``, ``Operator``, ``Runtime``). AMD writes ``hip*`` calls under
``cuda_runtime``. An event's category decides what it is, its name never does: MTIA's ``dma_request`` is device
work like its other ``mtia_ccp_events``.
"""

from __future__ import annotations

from typing import Final

from lightning_perf.decode.trace import Category

_CATEGORIES: Final[dict[str, Category]] = {
    "kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "hpu_op": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "cuda_sync": Category.SYNC,
    "xpu_sync": Category.SYNC,
    "mtia_sync": Category.SYNC,
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION,
    "runtime": Category.RUNTIME,
    "driver": Category.DRIVER,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
}


def category_of(name: str) -> Category:
    """Category of an event's ``cat``, in any letter case; OTHER for one that is not known."""
    lowered = name.lower()
    known = _CATEGORIES.get(lowered)
    if known is not None:
        return known
    # cuda_runtime, xpu_runtime, mtia_runtime, glow_runtime, privateuse1_runtime, and whoever comes next.
    if lowered.endswith("_runtime"):
        return Category.RUNTIME
    if lowered.endswith("_driver"):
        return Category.DRIVER
    return Category.OTHER
