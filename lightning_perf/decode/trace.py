"""Trace: one torch.profiler trace as columns. The only thing that leaves ``decode``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]


class Category(IntEnum):
    """What an event is, whatever its vendor and torch version called it.

    The first three are device operations: they keep a device busy. Everything else does not, also not
    ``DEVICE_ANNOTATION`` (the device's copy of a host range) and ``SYNC`` (a wait drawn as an event).
    """

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    DEVICE_ANNOTATION = 3
    SYNC = 4
    CPU_OP = 5
    ANNOTATION = 6
    RUNTIME = 7
    DRIVER = 8
    PYTHON = 9
    OVERHEAD = 10
    OTHER = 11


LAST_DEVICE_OPERATION = Category.MEMSET


@dataclass(frozen=True, slots=True)
class QualityNote:
    """Something wrong with a trace, and what was done about it.

    ``code`` is stable and machine-readable, ``message`` is one sentence for people, ``count`` how often.
    """

    code: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What the trace itself says about a device. None where it says nothing."""

    index: int
    name: str | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Allocator events (``[memory]``), one row each, in time order.

    ``device_type`` is torch's number (0 CPU, 1 CUDA, ...), ``device`` its index (-1 for the CPU). ``total_*``
    are the allocator's totals after the event; for the CPU they count only growth since recording began.
    A missing total is -1. ``process`` and ``thread`` are those of the call, as in :class:`Trace`, and -1 where no
    complete event has the same.
    """

    time_ns: Int64s
    process: Int32s
    thread: Int32s
    device_type: Int32s
    device: Int32s
    bytes: Int64s
    total_allocated_bytes: Int64s
    total_reserved_bytes: Int64s


@dataclass(frozen=True, slots=True)
class CollectiveArgs:
    """What torch wrote into an event about a collective call. None where it says nothing.

    ``name`` is the call's (``allreduce``), ``in_elements`` and ``out_elements`` count this rank's elements of ``dtype``
    (c10's name, such as ``BFloat16``), ``group`` names the process group, ``group_size`` counts its ranks.
    """

    name: str | None
    in_elements: int | None
    out_elements: int | None
    dtype: str | None
    group_size: int | None
    group: str | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """An operator's inputs as the trace writes them, each a JSON list with one entry per input; empty if not recorded.

    ``shapes`` are sizes (``[[64, 3], []]``), ``types`` names of types (``["float", "Scalar"]``), ``values`` those of
    inputs that are no tensors (``["", "[1, 1]"]``), which torch writes since 2.2.
    """

    shapes: str
    types: str
    values: str


@dataclass(frozen=True, slots=True)
class KernelUse:
    """How kernels use the multiprocessors (SMs) of an NVIDIA device: the trace's rows, ascending, and two columns.

    ``blocks_per_sm`` is the number of blocks in the grid over the number of SMs, ``occupancy_percent`` the share of
    warps that could be resident and are, as kineto estimates it from the launch. -1 where the event has none.
    """

    rows: Int64s
    blocks_per_sm: Floats
    occupancy_percent: Floats


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace, one row per complete event (chrome phase ``X``), sorted by start, longest first on ties.

    Times are integer nanoseconds since ``start_unix_ns`` (the trace's first complete event; 0 where the trace
    does not say what its zero is). ``name_id`` indexes ``names``. ``process`` and ``thread`` index ``processes``
    and ``threads`` (the trace's own ids as text). ``device``, ``stream``, ``correlation``, ``external_id`` and
    ``bytes`` are -1 where the event has none; ``device`` is set for device operations only. An operator of the forward
    pass has the ``sequence`` number of the gradient's node that it makes, if any, and ``forward_thread`` 0; that node's
    operators in the backward pass have the same number and the forward pass's thread, as torch counts them. -1 is none.
    ``input_id`` indexes ``inputs``; it is -1 for events whose inputs were not recorded or not asked for (those that
    tell of arithmetic and of messages are always kept). ``collectives`` holds the arguments of the events that tell of
    a collective, by row, and ``kernel_use`` those of the kernels that tell of multiprocessors.
    """

    path: str
    names: tuple[str, ...]
    processes: tuple[str, ...]
    threads: tuple[str, ...]
    name_id: Int32s
    category: Int8s
    start_ns: Int64s
    duration_ns: Int64s
    process: Int32s
    thread: Int32s
    device: Int32s
    stream: Int64s
    correlation: Int64s
    external_id: Int64s
    bytes: Int64s
    memory: MemoryEvents
    start_unix_ns: int
    rank: int | None
    world_size: int | None
    devices: tuple[DeviceProperties, ...]
    quality: tuple[QualityNote, ...]
    sequence: Int64s
    forward_thread: Int64s
    inputs: tuple[Inputs, ...]
    input_id: Int32s
    collectives: Mapping[int, CollectiveArgs]
    kernel_use: KernelUse

    def __len__(self) -> int:
        return int(self.start_ns.size)

    @property
    def end_ns(self) -> Int64s:
        """End of every event."""
        return self.start_ns + self.duration_ns
