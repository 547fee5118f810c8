"""Kernels by name, with how they were launched, and copies by kind."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.decode.trace import Category, Int64s, Trace
from lightning_perf.measure.analysis import Copy, HostMemory, Kernel
from lightning_perf.measure.launches import NO_LAUNCH
from lightning_perf.measure.tally import OTHERS, ranked

_GRAPH_LAUNCH: Final = re.compile(r"(?:cuda|hip|cu)GraphLaunch")
_COPY: Final = re.compile(r"Memcpy (?P<kind>\w+)|(?P<set>Memset)", re.IGNORECASE)
_HOST_MEMORY: Final[tuple[tuple[str, HostMemory], ...]] = (("pinned", "pinned"), ("pageable", "pageable"))

Floats = npt.NDArray[np.float64]


def is_graph_launch(name: str) -> bool:
    """Whether a runtime or driver call launches a whole CUDA or HIP graph."""
    return _GRAPH_LAUNCH.match(name) is not None


def measure_kernels(trace: Trace, launches: Int64s, *, busy_ns: int, limit: int | None) -> list[Kernel]:
    """Kernels by name on all devices, those that took the most time first.

    Args:
        trace: the trace.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
        busy_ns: busy time of all devices together.
        limit: names to keep; the others are summed in a row :data:`~lightning_perf.measure.tally.OTHERS`.
    """
    kernels = np.flatnonzero(trace.category == Category.KERNEL)
    if kernels.size == 0:
        return []
    names, group = np.unique(trace.name_id[kernels], return_inverse=True)
    order = ranked(np.bincount(group, weights=trace.duration_ns[kernels]).astype(np.int64))
    rank = np.argsort(order)[group]  # rows of the table, from the top
    shown = names.size if limit is None else min(limit, names.size)
    rank = np.minimum(rank, shown)
    sums = _Sums(rank)

    launched = launches[kernels] != NO_LAUNCH
    call = np.where(launched, launches[kernels], 0)
    start_ns, duration_ns = trace.start_ns[kernels], trace.duration_ns[kernels]
    latency_ns = start_ns - trace.end_ns[call]
    graph = np.array([is_graph_launch(name) for name in trace.names], dtype=np.bool_)
    queued = _queued(trace, launches)[kernels]
    columns = zip(
        sums.count(),
        sums.of(duration_ns),
        sums.least(duration_ns),
        sums.most(duration_ns),
        sums.count(launched),
        sums.of(np.where(launched, np.maximum(latency_ns, 0), 0)),
        sums.count(launched & (start_ns < trace.start_ns[call])),
        sums.count(launched & (duration_ns < trace.duration_ns[call])),
        sums.count(launched & graph[trace.name_id[call]]),
        sums.of(np.where(launched, queued, 0)),
        strict=True,
    )
    titles = [trace.names[name] for name in names[order[:shown]].tolist()] + [OTHERS]
    return [
        Kernel(
            name=title,
            calls=calls,
            total_us=total / 1000,
            mean_us=total / calls / 1000,
            min_us=least / 1000,
            max_us=most / 1000,
            busy_ratio=total / busy_ns if busy_ns else None,
            launched=known,
            launch_latency_us=latency / known / 1000 if known else None,
            negative_latencies=negative,
            shorter_than_launch=shorter,
            graph_calls=graphed,
            queue_depth=depth / known if known else None,
        )
        for title, (calls, total, least, most, known, latency, negative, shorter, graphed, depth) in zip(
            titles, columns, strict=False
        )
    ]


def _queued(trace: Trace, launches: Int64s) -> Int64s:
    """How many operations were launched earlier on the same stream and had not begun when one was launched.

    Returns:
        One number per event of the trace; 0 for those without a launch.
    """
    depth = np.zeros(len(trace), dtype=np.int64)
    operations = np.flatnonzero(launches != NO_LAUNCH)
    names, stream = np.unique(trace.stream[operations], return_inverse=True)
    queue = trace.device[operations] * np.int64(names.size) + stream
    for each in np.unique(queue).tolist():
        rows = operations[queue == each]
        launched_ns = trace.start_ns[launches[rows]]
        earlier = np.searchsorted(np.sort(launched_ns), launched_ns, side="left")
        begun = np.searchsorted(trace.start_ns[rows], launched_ns, side="left")
        depth[rows] = np.maximum(earlier - begun, 0)
    return depth


def measure_copies(trace: Trace) -> list[Copy]:
    """Copies by kind and host memory, and memory sets, those that took the most time first.

    Bytes and bandwidth are those of the copies whose size the trace tells.
    """
    rows = np.flatnonzero((trace.category == Category.MEMCPY) | (trace.category == Category.MEMSET))
    kinds = {
        name: _kind(trace.names[name], Category(category))
        for name, category in set(zip(trace.name_id[rows].tolist(), trace.category[rows].tolist(), strict=True))
    }
    found = []
    for kind, memory in dict.fromkeys(kinds.values()):
        mine = rows[np.isin(trace.name_id[rows], [name for name, of in kinds.items() if of == (kind, memory)])]
        sized = mine[trace.bytes[mine] >= 0]
        size, sized_ns = int(trace.bytes[sized].sum()), int(trace.duration_ns[sized].sum())
        found.append(
            Copy(
                kind=kind,
                memory=memory,
                calls=int(mine.size),
                total_us=int(trace.duration_ns[mine].sum()) / 1000,
                bytes=size if sized.size else None,
                gb_per_s=size / sized_ns if sized_ns else None,
            )
        )
    return sorted(found, key=lambda copy: -copy.total_us)


def _kind(name: str, category: Category) -> tuple[str, HostMemory | None]:
    """Kind of a copy and the kind of host memory, as its name tells: ``Memcpy HtoD (Pinned -> Device)``."""
    match = _COPY.match(name)
    kind = "Memset" if category == Category.MEMSET else name if match is None else match["kind"] or name
    memory = next((memory for word, memory in _HOST_MEMORY if word in name.lower()), None)
    return kind, memory


class _Sums:
    """Figures of events by group; every group has at least one."""

    def __init__(self, group: Int64s) -> None:
        self._group = group
        self._size = int(group.max()) + 1
        self._order = np.argsort(group, kind="stable")
        self._firsts = np.searchsorted(group[self._order], np.arange(self._size))

    def count(self, wanted: npt.NDArray[np.bool_] | None = None) -> list[int]:
        group = self._group if wanted is None else self._group[wanted]
        counts: list[int] = np.bincount(group, minlength=self._size).tolist()
        return counts

    def of(self, values: Int64s) -> list[int]:
        sums: list[int] = np.add.reduceat(values[self._order], self._firsts).tolist()
        return sums

    def least(self, values: Int64s) -> list[int]:
        least: list[int] = np.minimum.reduceat(values[self._order], self._firsts).tolist()
        return least

    def most(self, values: Int64s) -> list[int]:
        most: list[int] = np.maximum.reduceat(values[self._order], self._firsts).tolist()
        return most
