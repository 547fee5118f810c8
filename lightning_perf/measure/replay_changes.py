"""Changes to a training as other costs of its window.

What each one assumes, and leaves as it is:

=====================  ================================================================================================
``data_loading``       Batches are there when the loop asks for them: fetching takes the host ``factor`` of its time.
                       Worker processes take nothing from the host's own threads.
``transfer``           Moving a batch takes the host no time, waiting for it and staging included. Copies themselves
                       take as long, on the same stream.
``pinned_copies``      Copies out of pageable memory neither hold the host nor are staged, and run at the bandwidth of
                       the window's own pinned copies; where it has none, they take as long as they do. They stay in
                       the order of their stream.
``sync``               ``.item()``, synchronising calls and blocking copies to the host return at once: what they waited
                       for is used later, or never. The calls and copies themselves stay, and so does the profiler's
                       own synchronisation.
``launch_half``        Python, operators and launch calls outside of special work take ``factor`` (a half) of their
                       time. Latencies of launches stay.
``graph``              These, the optimizer and calls of collectives take no host time, and nothing is launched more
                       than 1 us late: an upper bound of what CUDA graphs can bring.
``optimizer``          Each kind of kernel that the optimizer launches once per parameter is launched once per 100
                       parameters, as foreach implementations do; its host time shrinks as the number of launches does.
                       Kernels take as long together, but those under 5 us pay once per launch what the window's
                       shortest kernel takes.
``callbacks``,         The named activity, or all of the kind, does not happen: no host time, no blocking calls, no
``logging``,           device work. A ``factor`` leaves that share of it: every 10th time is a factor of 0.1.
``checkpoint``,
``validation``
``gc``, ``compile``,   The host spends no time in it (or ``factor`` of it).
``allocation``,
``module_load``
``communication``      Collectives take no time on the device: an upper bound of what overlapping can bring.
``mixed_precision``    Matrix products and convolutions that do not use 16 bit yet are twice as fast, or as much faster
                       as the device's peaks differ if that is less. Casts, and what else changes, are left out.
``tf32``               The same for float32 ones that do not use tensor cores, by the peak of TF32.
=====================  ================================================================================================

What was launched before the window stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Category, Floats, Trace
from lightning_perf.measure.collectives import is_collective
from lightning_perf.measure.efficiency import uses_tensor_cores
from lightning_perf.measure.labels import Kind
from lightning_perf.measure.replay_host import Booleans
from lightning_perf.measure.replay_model import NONE, Costs, Model
from lightning_perf.names import ChangeKind

_DISPATCH: Final = (Kind.NOTHING, Kind.PYTHON, Kind.OPERATOR, Kind.LAUNCH)
_KINDS: Final[Mapping[ChangeKind, tuple[Kind, ...]]] = {
    "data_loading": (Kind.DATA,),
    "transfer": (Kind.TRANSFER,),
    "launch_half": _DISPATCH,
    "graph": (*_DISPATCH, Kind.OPTIMIZER, Kind.COMMUNICATION),
    "callbacks": (Kind.CALLBACKS,),
    "logging": (Kind.LOGGING,),
    "checkpoint": (Kind.CHECKPOINT,),
    "validation": (Kind.VALIDATION, Kind.VALIDATION_DATA),
    "gc": (Kind.GC,),
    "compile": (Kind.COMPILE,),
    "allocation": (Kind.ALLOCATION,),
    "module_load": (Kind.MODULE_LOAD,),
}
"""Host time that changes scale."""
WHOLE: Final[tuple[ChangeKind, ...]] = ("callbacks", "logging", "checkpoint", "validation")
"""Changes after which something does not happen at all."""
_PHASES: Final = frozenset({"", "forward", "backward", "optimizer", "transfer", "data"})
"""Activities that are no one's own."""

_GRAPH_LATENCY_NS: Final = 1_000.0
_PER_LAUNCH: Final = 100
"""Parameters that one launch of a foreach implementation takes: torch's chunks hold 30 to 150."""
_FEWEST: Final = 10
"""Launches of a kernel per step from which on it is one per parameter."""
_SHORT_NS: Final = 5_000.0
_LARGE_BYTES: Final = 1 << 16
"""Copies from this size on tell of bandwidth."""
_TIMES_FASTER: Final = 2.0
"""Numbers of half the size: what memory allows."""

_PINNED: Final = re.compile(r"HtoD.*pinned", re.IGNORECASE).search
_GROUPED: Final = re.compile(r"multi_tensor|foreach|fused", re.IGNORECASE).search
_PRODUCT: Final = re.compile(
    r"gemm|gemv|cutlass|cijk_|nvjet|_conv|conv_|convol|conv\d|scudnn|winograd|[dw]grad|fprop|xmma|igemm|sp3asm"
    r"|batched_.*xdlops|dot_kernel",
    re.IGNORECASE,
)
_OTHER: Final = re.compile(
    r"at::native|nchwto|nhwcto|convert|reduce_kernel|splitkreduce|bn_|triton|\bck::|_ZN2ck", re.IGNORECASE
)
"""Kernels with such words that multiply nothing, or do not tell in which type."""
_NARROW: Final = re.compile(
    r"bf16|bfloat16|f16|fp16|half|hmma|h884|s884|h1688|16816|161616|_h_|fp8|f8|e4m3|e5m2|e2m1|int8|i8816|imma"
    r"|cijk_a[ijkl]+_b[ijkl]+_(?![sdcz])",  # Tensile: the type follows the layouts
    re.IGNORECASE,
)
"""Kernels whose names say that their inputs have 16 bit or less."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``activity`` narrows it to one of the host's activities, such as one callback's hook.

    ``factor`` is the share of its host time that stays; None is what the kind says: half for ``launch_half``, else
    nothing. Changes that are not about host time have none.
    """

    kind: ChangeKind
    activity: str | None = None
    factor: float | None = None

    def __str__(self) -> str:
        """``callbacks:EMA.on_train_batch_end``, ``data_loading*0.25``."""
        name = self.kind if self.activity is None else f"{self.kind}:{self.activity}"
        return name if self.factor is None else f"{name}*{self.factor:g}"

    @property
    def share(self) -> float:
        """The share of host time that stays."""
        if self.factor is not None:
            return self.factor
        return 0.5 if self.kind == "launch_half" else 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What changes need to know of a window beside its model: names, sizes, and the measured device's peaks."""

    trace: Trace
    model: Model
    activities: tuple[str, ...]
    totals: Floats
    peaks: Mapping[str, float]
    _named: dict[Callable[[str], object], Booleans] = field(default_factory=dict)

    def named(self, wanted: Callable[[str], object]) -> Booleans:
        """Which operations have a name that is wanted; names are long and many, and each is read once."""
        if wanted not in self._named:
            ids, place = np.unique(self.trace.name_id[self.model.operations.rows], return_inverse=True)
            found = np.array([bool(wanted(self.trace.names[name])) for name in ids.tolist()], dtype=np.bool_)
            self._named[wanted] = found[place.reshape(-1)]
        return self._named[wanted]


def apply(change: Change, work: Workload, costs: Costs) -> None:
    """Lower costs as a change does; what another change has lowered more stays so.

    Args:
        change: the change.
        work: the window.
        costs: its costs, which are changed.
    """
    if change.kind in _KINDS:
        _scale(change, work, costs)
    if change.kind in _SPECIAL and not change.factor:
        _SPECIAL[change.kind](work, costs)


def own_activities(work: Workload, kind: ChangeKind) -> list[str]:
    """Activities that belong to a kind of change, those that take the host most time first."""
    spent = work.totals[list(_KINDS[kind])].sum(axis=0)
    return [
        work.activities[place]
        for place in np.argsort(-spent, kind="stable").tolist()
        if spent[place] > 0 and work.activities[place] not in _PHASES
    ]


def _scale(change: Change, work: Workload, costs: Costs) -> None:
    """Host time, and with it the blocking calls in it; all that is done and launched there if it does not happen."""
    chosen = np.zeros(costs.factors.shape, dtype=np.bool_)
    names = np.array(work.activities)
    if change.kind in WHOLE:
        own = own_activities(work, change.kind) if change.activity is None else [change.activity]
        chosen[:, np.isin(names, own)] = True
    kinds = list(_KINDS[change.kind])
    chosen[kinds] |= True if change.activity is None else names == change.activity
    chosen &= work.totals > 0
    costs.factors[chosen] = np.minimum(costs.factors[chosen], change.share)
    waits, flat = work.model.waits, chosen.reshape(-1)
    inside = flat[waits.doing]
    costs.own[inside] = np.minimum(costs.own[inside], waits.own[inside] * change.share)
    if change.share == 0:
        costs.waiting[inside] = False
    if change.kind in WHOLE:
        doing = work.model.operations.doing
        launched = flat[doing] & (doing != NONE)
        _shrink(work, costs, launched, change.share)
        if change.share == 0:
            _delete(costs, launched)


def _shrink(work: Workload, costs: Costs, which: Booleans, share: float | Floats) -> None:
    """Operations take a share of their time; those before the window keep theirs."""
    shorter = np.minimum(costs.duration, work.model.operations.duration * share)
    costs.duration[:] = np.where(which & ~work.model.operations.history, shorter, costs.duration)


def _delete(costs: Costs, which: Booleans) -> None:
    """Operations do not happen: what comes after them on their stream follows what came before."""
    costs.duration[which] = 0
    costs.gap[which] = np.minimum(costs.gap[which], 0)
    costs.rest[which] = -np.inf
    costs.deleted[which] = True


def _transfer(work: Workload, costs: Costs) -> None:
    costs.waiting[work.model.waits.transfer] = False
    costs.own[work.model.waits.transfer] = 0
    _unstaged(work, costs)


def _unstaged(work: Workload, costs: Costs) -> None:
    staged = work.model.operations.staged & ~work.model.operations.history
    costs.latency[staged] = np.minimum(costs.latency[staged], work.model.latency)
    costs.gap[staged] = np.minimum(costs.gap[staged], work.model.gap)


def _pinned_copies(work: Workload, costs: Costs) -> None:
    waits, trace, rows = work.model.waits, work.trace, work.model.operations.rows
    costs.waiting[waits.pageable] = False
    costs.own[waits.pageable] = np.minimum(costs.own[waits.pageable], work.model.call)
    _unstaged(work, costs)
    size, duration = trace.bytes[rows], work.model.operations.duration
    pinned = work.named(_PINNED) & (size >= _LARGE_BYTES) & (duration > 0)
    staged = work.model.operations.staged & (size > 0)
    if pinned.any() and staged.any():
        each_ns = duration[pinned].sum() / size[pinned].sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            _shrink(work, costs, staged, np.where(duration > 0, size * each_ns / duration, 1.0))


def _sync(work: Workload, costs: Costs) -> None:
    waits = work.model.waits
    costs.waiting[~(waits.transfer | waits.profilers)] = False


def _graph(work: Workload, costs: Costs) -> None:
    launched = ~work.model.operations.history
    costs.latency[launched] = np.minimum(costs.latency[launched], _GRAPH_LATENCY_NS)


def _communication(work: Workload, costs: Costs) -> None:
    _shrink(work, costs, work.named(is_collective), 0.0)


def _optimizer(work: Workload, costs: Costs) -> None:
    """Keep the first launch of every :data:`_PER_LAUNCH` of a kernel in a step, with what the others did."""
    model, trace = work.model, work.trace
    ops = model.operations
    kind = np.where(ops.doing == NONE, NONE, ops.doing // len(work.activities))
    mine = np.flatnonzero((kind == Kind.OPTIMIZER) & (ops.step != NONE))
    if mine.size == 0:
        return
    key = trace.name_id[ops.rows[mine]].astype(np.int64) * (int(ops.step.max()) + 1) + ops.step[mine]
    order = np.argsort(key, kind="stable")
    mine, key = mine[order], key[order]
    _, first, group, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    looped = (
        (count[group] >= _FEWEST) & ~work.named(_GROUPED)[mine] & (trace.category[ops.rows[mine]] == Category.KERNEL)
    )
    if not looped.any():
        return
    nth = np.arange(mine.size) - first[group]
    leader = mine[np.arange(mine.size) - nth % _PER_LAUNCH]
    dropped = looped & (nth % _PER_LAUNCH > 0)
    kernels = ops.duration[trace.category[ops.rows] == Category.KERNEL]
    paid = float(kernels[kernels > 0].min(initial=_SHORT_NS))
    kept = np.where(ops.duration[mine] < _SHORT_NS, np.maximum(ops.duration[mine] - paid, 0), ops.duration[mine])
    merged = costs.duration.copy()
    np.add.at(merged, leader[dropped], kept[dropped])
    costs.duration[:] = merged
    gone = np.zeros(len(ops), dtype=np.bool_)
    gone[mine[dropped]] = True
    _delete(costs, gone)
    share = 1 - np.count_nonzero(dropped) / mine.size
    costs.factors[Kind.OPTIMIZER] = np.minimum(
        costs.factors[Kind.OPTIMIZER], np.where(work.totals[Kind.OPTIMIZER] > 0, share, 1.0)
    )


def _faster(work: Workload, costs: Costs, chosen: Booleans, peak: float | None, base: float | None) -> None:
    if peak and base and peak > base:
        _shrink(work, costs, chosen, 1 / min(peak / base, _TIMES_FASTER))


def _mixed_precision(work: Workload, costs: Costs) -> None:
    wide, on_tensor_cores = _wide_products(work)
    half = work.peaks.get("float16", work.peaks.get("bfloat16"))
    _faster(work, costs, wide & ~on_tensor_cores, half, work.peaks.get("float32"))
    _faster(work, costs, wide & on_tensor_cores, half, work.peaks.get("tf32"))


def _tf32(work: Workload, costs: Costs) -> None:
    wide, on_tensor_cores = _wide_products(work)
    _faster(work, costs, wide & ~on_tensor_cores, work.peaks.get("tf32"), work.peaks.get("float32"))


def _wide_products(work: Workload) -> tuple[Booleans, Booleans]:
    """Kernels that multiply matrices or convolve without 16 bit numbers, and those that use tensor cores."""
    kernel = work.trace.category[work.model.operations.rows] == Category.KERNEL
    wide = kernel & work.named(is_wide_product)
    return wide, work.named(uses_tensor_cores)


def is_wide_product(kernel: str) -> bool:
    """Whether a kernel's name says that it multiplies matrices or convolves, and not that it does so in 16 bit."""
    return (
        _PRODUCT.search(kernel) is not None
        and _OTHER.search(kernel) is None
        and _NARROW.search(kernel) is None
        and not is_collective(kernel)
    )


_SPECIAL: Final[Mapping[ChangeKind, Callable[[Workload, Costs], None]]] = {
    "transfer": _transfer,
    "pinned_copies": _pinned_copies,
    "sync": _sync,
    "graph": _graph,
    "optimizer": _optimizer,
    "communication": _communication,
    "mixed_precision": _mixed_precision,
    "tf32": _tf32,
}
