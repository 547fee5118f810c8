"""The vocabulary: phases, stages, labels in a trace and metric keys.

Every other module takes these words from here, so that the same thing has the same name in a trace, a
logger, a report and the documentation.
"""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

Phase = Literal[
    "data",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "logging",
    "callbacks",
    "validation",
    "checkpoint",
    "other",
]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""Exclusive parts of a step, in the order in which people read them. They add up to the step exactly."""

Stage = Literal["fit", "validate", "test", "predict"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
"""What the trainer was asked to do. Only ``fit`` has steps that train."""

Cause = Literal[
    "data_loading",
    "transfer",
    "sync",
    "launch",
    "optimizer",
    "python",
    "callbacks",
    "logging",
    "checkpoint",
    "validation",
    "gc",
    "compile",
    "allocation",
    "module_load",
    "communication_host",
    "profiler",
    "device_gap",
    "device_wait",
    "untraced_device_work",
    "step_edge",
    "between_steps",
    "unknown",
]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
"""Why a device was idle: a closed set. Every idle nanosecond has exactly one, and together they are all idle time."""

ChangeKind = Literal[
    "data_loading",
    "transfer",
    "pinned_copies",
    "sync",
    "launch_half",
    "graph",
    "optimizer",
    "callbacks",
    "logging",
    "checkpoint",
    "validation",
    "gc",
    "compile",
    "allocation",
    "module_load",
    "communication",
    "mixed_precision",
    "tf32",
]
CHANGE_KINDS: Final[tuple[ChangeKind, ...]] = get_args(ChangeKind)
"""Changes to a training whose effect on the step time can be predicted from a trace: a closed set."""

LABEL_PREFIX: Final = "perf/"
"""Start of every label that the callback writes into a trace."""

CUT_LABEL: Final = "perf/other/cut"
"""Mark inside a step that recording ended before the step did: such a step is not complete."""

METRIC_GROUP: Final = "perf"

TAB_NAME: Final = "Perf"
"""What TensorBoard calls our tab."""

_UNSAFE_IN_METRIC = re.compile(r"[^A-Za-z0-9_./ -]")
_PHASE_OF_LABEL: Final[dict[str, Phase]] = {phase: phase for phase in PHASES}


def label(phase: Phase, detail: str = "") -> str:
    """Name of a trace range: ``perf/<phase>`` or ``perf/<phase>/<detail>``."""
    return f"{LABEL_PREFIX}{phase}/{detail}" if detail else f"{LABEL_PREFIX}{phase}"


def phase_of_label(name: str) -> Phase | None:
    """Phase of a trace range written by :func:`label`, or None for any other range."""
    if not name.startswith(LABEL_PREFIX):
        return None
    return _PHASE_OF_LABEL.get(name[len(LABEL_PREFIX) :].split("/", 1)[0])


def metric(name: str, stage: Stage = "fit", separator: str = "/") -> str:
    """Key under which a figure is logged: ``perf/<name>``, or ``perf/<stage>_<name>`` outside a fit.

    Characters that some logger refuses become ``_``; what is left is ``[A-Za-z0-9_./ -]``.
    """
    plain = name if stage == "fit" else f"{stage}_{name}"
    return f"{METRIC_GROUP}{separator}{_UNSAFE_IN_METRIC.sub('_', plain)}"
