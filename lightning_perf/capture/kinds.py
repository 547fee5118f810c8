"""What a span of Lightning's loop means: its phase, its label, and whether it moves the clock to another step.

Span names are those that Lightning gives to ``trainer.profiler.profile(name)``, for example
``[Callback]EarlyStopping.on_train_batch_end`` or ``[_TrainingEpochLoop].train_dataloader_next``. Names that
begin with ``[perf]`` are ours, for actions to which Lightning gives no span (see ``instrument``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lightning_perf.names import LABEL_PREFIX, Phase, Stage, label


class Role(Enum):
    """How a span takes part in the counting of steps."""

    NONE = 0
    FETCH = 1
    """The batch fetch: a step begins with it."""
    BATCH_START = 2
    """The first hook of a batch: a step begins here if no fetch came before (``dataloader_iter``)."""
    BODY = 3
    """The batch itself: a step that got through it is complete."""
    EPOCH = 4
    """The loop over batches: its end ends the last step."""
    AFTER_BATCHES = 5
    """What an evaluation or prediction loop does after its batches: its start ends the last step."""
    ITERATOR = 6
    """Making the iterator of an epoch: batches fetched in it begin no step."""
    VALIDATION_FETCH = 7
    """A batch fetch inside a validation loop of a fit."""
    VALIDATION = 8
    """A validation loop inside a fit: everything in it belongs to the phase ``validation``."""


@dataclass(frozen=True, slots=True)
class SpanKind:
    """Phase (None: that of the enclosing span), name without the label prefix, and role of a span."""

    phase: Phase | None
    name: str
    role: Role = Role.NONE

    @property
    def label(self) -> str:
        """Name of the range in a trace."""
        return LABEL_PREFIX + self.name

    @property
    def marked(self) -> bool:
        """Whether the span becomes a range in a trace: what is ``other`` there is mostly what has no label."""
        return self.phase != "other" or self.name in _MARKED


_MARKED: Final = frozenset({"other/gc", "other/compile"})

OURS: Final = "[perf]"
GC: Final = OURS + "gc"
COMPILE: Final = OURS + "compile"
COLLATE: Final = OURS + "collate"
RUN_END: Final = OURS + "on_run_end"
ITERATOR: Final = OURS + "iterator"
VALIDATION: Final = OURS + "validation"
BACKWARD: Final = OURS + "backward"
TRANSFER: Final = OURS + "transfer_batch_to_device"
LOGGING: Final = OURS + "logging."
"""Prefix of a logging span; the rest names what logs, for example ``self.log``."""

STEP_HOOK: Final[dict[Stage, str]] = {
    "fit": "training_step",
    "validate": "validation_step",
    "test": "test_step",
    "predict": "predict_step",
}
"""The module's and the strategy's hook that runs a batch."""

_BATCH_START: Final[dict[Stage, str]] = {
    "fit": "on_train_batch_start",
    "validate": "on_validation_batch_start",
    "test": "on_test_batch_start",
    "predict": "on_predict_batch_start",
}
_PHASE_OF_HOOK: Final[dict[str, Phase]] = {
    "batch_to_device": "transfer",
    "on_before_batch_transfer": "transfer",
    "transfer_batch_to_device": "transfer",
    "on_after_batch_transfer": "transfer",
    "training_step": "forward",
    "validation_step": "forward",
    "test_step": "forward",
    "predict_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "optimizer_zero_grad": "optimizer",
    "configure_gradient_clipping": "optimizer",
    "lr_scheduler_step": "optimizer",
    "save_checkpoint": "checkpoint",
    "on_save_checkpoint": "checkpoint",
    "on_load_checkpoint": "checkpoint",
}
_OWN: Final[dict[str, SpanKind]] = {
    RUN_END: SpanKind("other", "other/on_run_end", Role.AFTER_BATCHES),
    ITERATOR: SpanKind("data", "data/iterator", Role.ITERATOR),
    VALIDATION: SpanKind("validation", "validation", Role.VALIDATION),
    BACKWARD: SpanKind("backward", "backward"),
    TRANSFER: SpanKind("transfer", "transfer/transfer_batch_to_device"),
    GC: SpanKind("other", "other/gc"),
    COMPILE: SpanKind("other", "other/compile"),
    COLLATE: SpanKind("data", "data/collate"),
    "run_training_epoch": SpanKind("other", "other/run_training_epoch", Role.EPOCH),
    "run_training_batch": SpanKind("other", "other/run_training_batch", Role.BODY),
    "optimizer_step": SpanKind("optimizer", "optimizer"),
    "save_checkpoint": SpanKind("checkpoint", "checkpoint"),
}
_PLAIN_HOOKS: Final = frozenset(
    {"batch_to_device", "backward", "optimizer_step", *STEP_HOOK.values()},
)
"""Hooks that are their phase: the label is the phase alone."""

_KINDS: Final = frozenset({"Callback", "LightningModule", "LightningDataModule", "Strategy"})

_HOOK: Final = re.compile(r"\[(?P<kind>\w+)\](?P<owner>.*)\.(?P<hook>\w+)", re.DOTALL)
_FETCH: Final = re.compile(r"\[\w+\]\.\w+_next")


def classify(name: str, stage: Stage, *, validating: bool) -> SpanKind:
    """Meaning of a span of a stage's loop.

    ``validating`` says that the span lies inside a validation loop of a fit. There everything belongs to the
    phase ``validation``, except logging and checkpoints, which would be paid elsewhere otherwise.
    """
    kind = _classify(name, stage)
    if not validating or kind.phase in (None, "logging", "checkpoint"):
        return kind
    detail = kind.name.removeprefix("callbacks/").removeprefix("other/")
    inside = detail if detail.startswith("validation") else f"validation/{detail}"
    role = {Role.VALIDATION: Role.VALIDATION, Role.FETCH: Role.VALIDATION_FETCH}.get(kind.role, Role.NONE)
    return SpanKind("validation", inside, role)


def _classify(name: str, stage: Stage) -> SpanKind:
    own = _OWN.get(name)
    if own is not None:
        return own
    if name.startswith(LOGGING):
        return SpanKind("logging", f"logging/{name[len(LOGGING) :]}")
    if _FETCH.fullmatch(name):
        return SpanKind("data", "data", Role.FETCH)
    match = _HOOK.fullmatch(name)
    if match is None or match["kind"] not in _KINDS:
        return SpanKind(None, name)
    return _classify_hook(match["kind"], _short(match["owner"]), match["hook"], stage)


def _classify_hook(kind: str, owner: str, hook: str, stage: Stage) -> SpanKind:
    phase = _PHASE_OF_HOOK.get(hook)
    if phase is not None:
        role = Role.BODY if stage != "fit" and kind == "Strategy" and hook == STEP_HOOK[stage] else Role.NONE
        plain = hook in _PLAIN_HOOKS and kind != "Callback"
        detail = hook if phase != "checkpoint" else f"{owner}.{hook}"
        return SpanKind(phase, phase if plain else f"{phase}/{detail}", role)
    if hook == _BATCH_START[stage]:
        return SpanKind("callbacks", f"callbacks/{owner}.{hook}", Role.BATCH_START)
    if kind in ("Callback", "Strategy") or hook.startswith("on_"):
        return SpanKind("callbacks", f"callbacks/{owner}.{hook}")
    return SpanKind("other", f"other/{owner}.{hook}")


def _short(owner: str) -> str:
    """Class name of a callback's state key, which may carry its settings and the function it was defined in."""
    return owner.split("{", 1)[0].rsplit("<locals>.", 1)[-1] or owner


def inherited(name: str, phase: Phase) -> SpanKind:
    """Kind of a span that means nothing to us, inside a span of a phase."""
    return SpanKind(phase, label(phase, name)[len(LABEL_PREFIX) :])
