"""What a host event says about its thread: names -> kinds of work and activities.

Names come from this package's labels, from Lightning's ``PyTorchProfiler``, from torch (operators, ``record_function``
ranges, Python frames), from TorchRec's pipelines and from the runtimes of NVIDIA, AMD and others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Category, Int8s
from lightning_perf.names import LABEL_PREFIX, Cause, Phase, phase_of_label


class Kind(IntEnum):
    """What a thread is doing, in the order in which one thread's doing speaks before another's.

    Up to ``LAUNCH`` kinds are generic: an event of a generic kind is whatever the event around it is.
    """

    NOTHING = 0
    PYTHON = 1
    OPERATOR = 2
    LAUNCH = 3
    COMMUNICATION = 4
    OPTIMIZER = 5
    CALLBACKS = 6
    LOGGING = 7
    VALIDATION = 8
    VALIDATION_DATA = 9
    """Fetching a batch to validate with, inside a fit."""
    CHECKPOINT = 10
    TRANSFER = 11
    DATA = 12
    SYNC = 13
    ALLOCATION = 14
    MODULE_LOAD = 15
    PROFILER = 16
    COMPILE = 17
    GC = 18
    BODY = 19
    """A range of the forward or backward pass: it ends what is around it, and is no work of its own."""
    AUTOGRAD = 20
    """An operator of the backward pass, also inside the optimizer's step."""


CAUSE_OF_KIND: Final[dict[Kind, Cause]] = {
    Kind.PYTHON: "python",
    Kind.OPERATOR: "launch",
    Kind.LAUNCH: "launch",
    Kind.COMMUNICATION: "communication_host",
    Kind.OPTIMIZER: "optimizer",
    Kind.CALLBACKS: "callbacks",
    Kind.LOGGING: "logging",
    Kind.VALIDATION: "validation",
    Kind.VALIDATION_DATA: "validation",
    Kind.CHECKPOINT: "checkpoint",
    Kind.TRANSFER: "transfer",
    Kind.DATA: "data_loading",
    Kind.SYNC: "sync",
    Kind.ALLOCATION: "allocation",
    Kind.MODULE_LOAD: "module_load",
    Kind.PROFILER: "profiler",
    Kind.COMPILE: "compile",
    Kind.GC: "gc",
}

GENERIC: Final = frozenset({Kind.NOTHING, Kind.PYTHON, Kind.OPERATOR, Kind.LAUNCH})
REFILLING: Final = GENERIC | {Kind.COMMUNICATION, Kind.OPTIMIZER}
"""Kinds of host work during which a device would not be idle had no blocking call taken the host's lead."""

_ABSORBING: Final = frozenset({Kind.DATA, Kind.VALIDATION_DATA, Kind.CHECKPOINT, Kind.COMPILE})
_ENDED_BY_BODY: Final = GENERIC | {Kind.COMMUNICATION, Kind.OPTIMIZER, Kind.CALLBACKS}

Meaning = tuple[Kind, str]
"""Kind and activity of an event's name; the activity is empty where the name tells none."""


def inherited() -> Int8s:
    """Table ``[kind around, own kind]`` -> kind of an event on its thread.

    The innermost specific kind wins. Fetching, saving and compiling keep what is inside them, but garbage
    collection and compilation win over everything.
    """
    table = np.zeros((len(Kind), len(Kind)), dtype=np.int8)
    for around in Kind:
        for own in Kind:
            table[around, own] = _inherited(around, own)
    return table


def _inherited(around: Kind, own: Kind) -> Kind:
    if around is Kind.GC or own is Kind.GC:
        return Kind.GC
    if own is Kind.COMPILE:
        return own
    if around in _ABSORBING:
        return around
    if around is Kind.VALIDATION and own is Kind.DATA:
        return Kind.VALIDATION_DATA
    if around is Kind.TRANSFER and own in (Kind.SYNC, Kind.BODY):
        return around
    if own is Kind.BODY:
        return Kind.PYTHON if around in _ENDED_BY_BODY else around
    if own is Kind.AUTOGRAD:
        own = Kind.OPERATOR
        around = Kind.OPERATOR if around is Kind.OPTIMIZER else around
    if own in GENERIC:
        return max(around, own)
    return own


_PYTORCH_PROFILER: Final = "[pl][profile]"
_PYTORCH_PROFILER_MODULE: Final = "[pl][module]"
_RANGES: Final[tuple[tuple[re.Pattern[str], Meaning], ...]] = tuple(
    (re.compile(pattern), found)
    for pattern, found in (
        (r"(\w+::)*\w+Backward\d*$|autograd::engine::evaluate|torch::autograd::Accumul", (Kind.AUTOGRAD, "backward")),
        (r"enumerate\(Data(Loader|Pipe)\)#|## (load_batch|wait_for_batch|data_load)", (Kind.DATA, "data")),
        (r"Optimizer\.(step|zero_grad)#|## (optimizer|zero_grad)", (Kind.OPTIMIZER, "optimizer")),
        (r"## forward|DistributedDataParallel\.forward", (Kind.BODY, "forward")),
        (r"## backward", (Kind.BODY, "backward")),
        (r"## (copy_batch_to_gpu|transfer)|aten::_?pin_memory$", (Kind.TRANSFER, "transfer")),
        (r"(nccl|rccl|hccl|xccl|gloo|ucc|mpi|c10d)::?\w|record_param_comms", (Kind.COMMUNICATION, "")),
        (r"## ?all2all.*wait|.*Awaitable wait\(\)", (Kind.COMMUNICATION, "")),
        (r".*\(dynamo_timed\)", (Kind.COMPILE, "")),
    )
)
"""Operators and annotations of torch and TorchRec."""

_PHASE_KINDS: Final[dict[Phase, Kind]] = {
    "data": Kind.DATA,
    "transfer": Kind.TRANSFER,
    "forward": Kind.BODY,
    "backward": Kind.BODY,
    "optimizer": Kind.OPTIMIZER,
    "logging": Kind.LOGGING,
    "callbacks": Kind.CALLBACKS,
    "validation": Kind.VALIDATION,
    "checkpoint": Kind.CHECKPOINT,
    "other": Kind.PYTHON,
}
_OWN_WORDS: Final[dict[str, Meaning]] = {
    "gc": (Kind.GC, ""),
    "compile": (Kind.COMPILE, ""),
}
"""Details that are causes of their own, under any phase: ``perf/other/gc``."""


def meaning(category: Category, name: str) -> Meaning:
    """What an event of the host says by its category and name."""
    if category in (Category.RUNTIME, Category.DRIVER):
        return _call(name), ""
    if category is Category.OVERHEAD:
        return (Kind.MODULE_LOAD if _LOADING_OVERHEAD.match(name) else Kind.PROFILER), ""
    if category is Category.PYTHON:
        return _frame(name)
    found = _range(name)
    if found is not None:
        return found
    return (Kind.OPERATOR if category is Category.CPU_OP else Kind.PYTHON), ""


def _range(name: str) -> Meaning | None:
    """Meaning of an operator's or annotation's name, None where it says nothing."""
    if name.startswith(LABEL_PREFIX):
        return _label(name)
    if name.startswith(_PYTORCH_PROFILER):
        return _lightning(name[len(_PYTORCH_PROFILER) :])
    if name.startswith(_PYTORCH_PROFILER_MODULE):
        return Kind.PYTHON, "forward"
    return next((found for starts, found in _RANGES if starts.match(name)), None)


def _label(name: str) -> Meaning:
    """Meaning of this package's ``perf/<phase>/<detail>``."""
    parts = name[len(LABEL_PREFIX) :].split("/", 1)
    detail = parts[1] if len(parts) > 1 else ""
    word = _OWN_WORDS.get(detail.split("/", 1)[0] if detail else parts[0])
    if word is not None:
        return word
    phase = phase_of_label(name)
    if phase is None or phase == "other":
        return Kind.PYTHON, ""
    plain = phase in ("data", "transfer", "forward", "backward", "optimizer")
    return _PHASE_KINDS[phase], phase if plain or not detail else detail


_HOOK: Final = re.compile(r"(?:\[(?P<kind>\w+)\])?(?P<owner>.*?)\.?(?P<hook>\w+)", re.DOTALL)
_STRUCTURE: Final = re.compile(r"run_training_\w+|run_\w+_epoch|\w*optimizer_step_\w+|setup|teardown|configure_\w+")
_LIGHTNING_HOOKS: Final[tuple[tuple[re.Pattern[str], Meaning], ...]] = (
    (re.compile(r"val_next"), (Kind.VALIDATION_DATA, "data")),
    (re.compile(r"\w+_next|(train|val|test|predict)_dataloader"), (Kind.DATA, "data")),
    (
        re.compile(r"batch_to_device|transfer_batch_to_device|on_(before|after)_batch_transfer"),
        (Kind.TRANSFER, "transfer"),
    ),
    (re.compile(r"validation_step|run_evaluation"), (Kind.VALIDATION, "validation")),
    (re.compile(r"(training|test|predict)_step|forward"), (Kind.BODY, "forward")),
    (re.compile(r"backward"), (Kind.BODY, "backward")),
    (
        re.compile(r"optimizer_step|optimizer_zero_grad|configure_gradient_clipping|lr_scheduler_step"),
        (Kind.OPTIMIZER, "optimizer"),
    ),
)
_OF_A_FIT: Final = re.compile(r"(run_training_\w+|\.training_step|\.train_dataloader_next|\.on_train_\w+)$")
_LOGGING_OWNER: Final = re.compile(r"\w*ProgressBar|LearningRateMonitor|DeviceStatsMonitor|ModelSummary|\w*Logger\b")


def is_fit(names: Iterable[str]) -> bool:
    """Whether Lightning's ranges are those of a fit: there, validation is no run of its own."""
    return any(name.startswith(_PYTORCH_PROFILER) and _OF_A_FIT.search(name) for name in names)


def kind_of_label(name: str) -> Kind | None:
    """Kind of a range by its label, this package's or Lightning's; None for any other range."""
    if not name.startswith((LABEL_PREFIX, _PYTORCH_PROFILER)):
        return None
    return meaning(Category.ANNOTATION, name)[0]


def _lightning(action: str) -> Meaning:
    """Meaning of an action of Lightning's loop, as its PyTorchProfiler names it."""
    match = _HOOK.fullmatch(action)
    if match is None:
        return Kind.PYTHON, ""
    kind, hook = match["kind"], match["hook"]
    owner = match["owner"].split("{", 1)[0].rsplit("<locals>.", 1)[-1].rsplit(".", 1)[-1]
    short = f"{owner}.{hook}" if owner else hook
    if "checkpoint" in hook or owner.startswith(("ModelCheckpoint", "OnExceptionCheckpoint")):
        return Kind.CHECKPOINT, short
    if kind != "Callback":
        for pattern, found in _LIGHTNING_HOOKS:
            if pattern.fullmatch(hook):
                return found
    if kind == "Callback" and _LOGGING_OWNER.match(owner):
        return Kind.LOGGING, short
    if hook.startswith(("on_validation_", "on_sanity_check")):
        return Kind.VALIDATION, short
    if kind in ("Callback", "LightningModule", "LightningDataModule", "Strategy") and not _STRUCTURE.fullmatch(hook):
        return Kind.CALLBACKS, short
    return Kind.PYTHON, ""


_FRAMES: Final[tuple[tuple[re.Pattern[str], Meaning], ...]] = (
    (re.compile(r"nn\.Module: "), (Kind.PYTHON, "forward")),
    (re.compile(r"Python GC"), (Kind.GC, "")),
    (
        re.compile(r".*torch/utils/data/dataloader\.py\(\d+\): (__next__|__iter__|_get_iterator|_shutdown_workers)$"),
        (Kind.DATA, "data"),
    ),
    (re.compile(r".*torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$"), (Kind.BODY, "backward")),
    (re.compile(r".*torch/serialization\.py\(\d+\): save$"), (Kind.CHECKPOINT, "torch.save")),
    # Not everything in these packages compiles: the compiled code's own wrappers live there, too.
    (
        re.compile(
            r".*torch/(_dynamo/(convert_frame|symbolic_convert)|_inductor/(codegen/.*|scheduler|graph|async_compile))\.py"
            r"|.*triton/compiler/"
        ),
        (Kind.COMPILE, ""),
    ),
)


def _frame(name: str) -> Meaning:
    """Meaning of a Python frame: ``nn.Module: Linear_0``, ``torch/serialization.py(944): save``."""
    if name.startswith("<"):
        return Kind.PYTHON, ""
    for pattern, found in _FRAMES:
        if pattern.match(name):
            return found
    return Kind.PYTHON, ""


_LOADING_OVERHEAD: Final = re.compile(r"Lazy Function Loading|Runtime Triggered Module Loading")
_CALLS: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (
        re.compile(
            r"(cuda|hip|cu|xpu|ze|mu|musa)?(Stream|Device|Event|Ctx|Thread|CommandList|CommandQueue)(Host)?Synchronize"
            r"|(cuda|hip|cu)Memcpy(HtoD|DtoH|DtoD|2D|3D)?(_v2|WithStream)?$|synchronize(Stream)?$"
        ),
        Kind.SYNC,
    ),
    (
        re.compile(
            r"(cuda|hip|xpu|musa)(Malloc|Free|HostAlloc|HostFree|HostMalloc|HostRegister|HostUnregister|MemPool)"
            r"|(cu|hip)Mem(Create|Map|Unmap|Address|Release|SetAccess|Alloc|Free|HostAlloc)"
        ),
        Kind.ALLOCATION,
    ),
    (
        re.compile(r"(cu|hip|cuda)(ModuleLoad|LibraryLoad|LinkCreate|LinkAdd|LinkComplete)|\w*GetFuncBySymbol"),
        Kind.MODULE_LOAD,
    ),
)


def _call(name: str) -> Kind:
    """Kind of a runtime's or driver's call. ``cudaEventQuery`` only asks; it does not block."""
    for pattern, kind in _CALLS:
        if pattern.match(name):
            return kind
    return Kind.LAUNCH
