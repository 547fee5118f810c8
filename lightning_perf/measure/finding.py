"""Findings: what to change in a training, as an ``Analysis`` holds it, and what became of such advice."""

from __future__ import annotations

from typing import Literal

from lightning_perf.runinfo import Record

Severity = Literal["high", "medium", "low", "note"]
"""High from a fifth of the step's time on, medium from a twentieth; a note brings no time."""

Confidence = Literal["high", "medium", "low"]


class Finding(Record, frozen=True, kw_only=True):
    """One thing to change: what it costs, how that is known, what to do, and what it will bring.

    ``rule`` is a stable id (``data.sync_loader``), ``title`` one sentence, ``evidence`` sentences with figures of the
    analysis, ``action`` code to paste or one instruction, ``where`` the culprit as far as it is known (a callback's
    hook, a module, a file and line, ...), ``risks`` when not to do it. ``saving_us_per_step`` is the prediction for
    ``step_us``, the mean step without warm-up, and lies within ``saving_range_us``; ``assumption`` is what it rests
    on. ``speedup`` is the step's time over what is left of it. They are None for a finding that saves no time.
    ``trace`` is the trace that shows it, None for one that the loop clock shows; where it marks no steps, times are
    those of all of it (``per``). ``link`` leads to what the rule means.
    """

    rule: str
    title: str
    severity: Severity
    step_us: float
    per: Literal["step", "trace"] = "step"
    saving_us_per_step: float | None
    saving_range_us: tuple[float, float] | None
    speedup: float | None
    assumption: str | None
    evidence: list[str]
    action: str
    risks: list[str]
    confidence: Confidence
    where: str | None
    trace: str | None
    link: str


def is_a_guess(finding: Finding) -> bool:
    """Whether a finding's saving was not measured and may be nothing: something to try, and no verdict."""
    low_us, _ = finding.saving_range_us or (0.0, 0.0)
    return finding.saving_us_per_step is not None and finding.confidence == "low" and low_us <= 0


class Achieved(Record, frozen=True, kw_only=True):
    """What became of the advice of an earlier run: its first finding that the later run no longer has.

    ``achieved_us`` is how much shorter the mean step is now; it is negative where it is longer. Other changes between
    the runs are in it. ``analysis`` is where the earlier run's record lies.
    """

    rule: str
    predicted_us: float
    predicted_range_us: tuple[float, float] | None
    step_before_us: float
    step_now_us: float
    achieved_us: float
    analysis: str
