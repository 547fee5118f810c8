"""The rule about optimizers that step over their parameters one by one."""

from __future__ import annotations

import math
import re
from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import Saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import lost_in_us, lost_us, operators, predicted, recorded
from lightning_perf.runinfo import OptimizerFacts

MANY_TENSORS: Final = 100
"""Parameter tensors from which on a loop over them is worth a change."""

PER_LAUNCH: Final = 100
"""Parameter tensors that one launch of a foreach kernel takes: torch's chunks hold 30 to 150."""

CPU_SAVED: Final = 0.45
"""Share of the optimizer's phase that foreach and fused save of torch's own optimizers on a CPU: 0.42 to 0.47 in three
rounds of a planted case of 600 tensors (Adam)."""

OWN_SAVED: Final = 0.6
"""The same of an optimizer that somebody has written: it has more Python for each tensor (one planted case)."""

_LOOPED: Final = ("aten::addcdiv_", "aten::addcmul_", "aten::add_", "aten::lerp_")
"""In-place operators of which the plain implementations of torch's optimizers call one or more per parameter."""
_GROUPED: Final = re.compile(r"aten::_f(?:oreach|used)_")
_FUSED: Final = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch that have a fused implementation."""
_TORCHS: Final = _FUSED | {"ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"}
"""Those that have a foreach implementation."""


def optimizer_loop(evidence: Evidence) -> Finding | None:
    """The optimizer steps over 100 parameter tensors or more one by one.

    A run knows its optimizers: ``foreach=False``, or the default on a CPU, and not fused. A trace alone shows it by
    many in-place operators and none of the grouped ones. Of ``n`` launches ``n / 100`` are left.
    """
    facts = _looping(evidence)
    if evidence.run is not None and facts is None:
        return None
    tensors = facts.parameter_tensors if facts is not None else _tensors(evidence)
    if tensors < MANY_TENSORS:
        return None
    saves = _on_device(evidence, tensors) if evidence.device is not None else _on_cpu(evidence, facts)
    if saves is None:
        return None
    name = facts.optimizer_class if facts is not None else "optimizer"
    because = [f"{units.count(tensors)} parameter tensors, each updated by operators of its own."]
    if facts is not None:
        because.append(f"foreach={facts.foreach}, fused={facts.fused}.")
    return finding(
        evidence,
        "host.optimizer_loop",
        f"The optimizer updates {units.count(tensors)} tensors one after the other.",
        saves=saves,
        because=because,
        action=_action(evidence, facts),
        risks=[
            'Lightning refuses fused=True together with precision="16-mixed" and gradient_clip_val.',
            "foreach needs memory for as many more intermediate values as parameters.",
        ],
        confidence="high" if facts is not None else "medium",
        where=name,
        from_trace=evidence.device is not None,
    )


def _looping(evidence: Evidence) -> OptimizerFacts | None:
    """The run's optimizer with most tensors that steps over them one by one; the default does so on a CPU only."""
    default_loops = evidence.device is None and not (evidence.run is not None and evidence.run.devices)
    found = [
        one
        for one in (evidence.run.optimizers if evidence.run is not None else [])
        if not one.fused and (one.foreach is False or (one.foreach is None and default_loops))
    ]
    return max(found, key=lambda one: one.parameter_tensors, default=None)


def _tensors(evidence: Evidence) -> int:
    """Tensors that a loop in the optimizer seems to update, by its in-place operators; 0 if there are grouped ones."""
    rows = evidence.window.operators if evidence.window is not None else []
    if any(_GROUPED.match(row.name) for row in rows):
        return 0
    calls = min((row.calls for row in operators(evidence, ("aten::add_", "aten::mul_"))), default=0)
    most = max((row.calls for row in operators(evidence, _LOOPED)), default=0)
    return (calls or most) // recorded(evidence)


def _on_device(evidence: Evidence, tensors: int) -> Saving | None:
    if trusted_window(evidence) is None:
        return None
    lost = lost_us(evidence, "optimizer") + lost_in_us(evidence, "optimizer", "launch", "python")
    us = lost * (1 - math.ceil(tensors / PER_LAUNCH) / tensors)
    closed = Saving(us, 0.7 * us, us, f"one launch for every {PER_LAUNCH} tensors")
    return predicted(evidence, "optimizer", closed, dispatch=True)


def _on_cpu(evidence: Evidence, facts: OptimizerFacts | None) -> Saving | None:
    spent = evidence.phases_us.get("optimizer", 0.0)
    if not spent:
        return None
    saved = CPU_SAVED if facts is not None and facts.optimizer_class in _TORCHS else OWN_SAVED
    return Saving(saved * spent, 0.4 * spent, 0.75 * spent, "the arithmetic stays, the loop around it goes")


def _action(evidence: Evidence, facts: OptimizerFacts | None) -> str:
    name = facts.optimizer_class if facts is not None else "optimizer"
    if facts is not None and name not in _TORCHS:
        return f"In {name}.step use torch._foreach_ functions on lists of tensors, as torch.optim does."
    fused = evidence.device is not None and name in _FUSED and not _clips_scaled(evidence)
    return f"{name}(..., fused=True)" if fused else f"{name}(..., foreach=True)"


def _clips_scaled(evidence: Evidence) -> bool:
    trainer = evidence.run.trainer if evidence.run is not None else None
    return trainer is not None and trainer.precision == "16-mixed" and trainer.gradient_clip_val is not None
