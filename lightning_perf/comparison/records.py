"""Comparison: what changed from one side to the other, as records. Times are microseconds, sizes bytes.

A figure that one side does not have is None, and so is its change: never 0.
"""

from __future__ import annotations

from typing import Literal

from lightning_perf.runinfo import SCHEMA, Record

Verdict = Literal["faster", "slower", "no difference"]
"""``no difference`` is one that these steps can show."""

Ground = Literal["runs", "traces"]
"""What was compared: steps of the loop clock, or the steps that traces recorded."""

Kind = Literal["time", "rate", "ratio", "bytes"]


class SideSteps(Record, frozen=True, kw_only=True):
    """The compared steps of one side: without warm-up, validation and the starts of epochs.

    ``slow_first_us`` is the first recorded step of traces if it is left out as much slower than the others.
    ``tail_ratio`` is the share of steps that took over a quarter longer than the median.
    """

    label: str
    runs: int
    steps: int
    p5_us: float
    p50_us: float
    p95_us: float
    mean_us: float
    tail_ratio: float
    slow_first_us: float | None = None


class StepChange(Record, frozen=True, kw_only=True):
    """The change of the typical step: ``ratio`` is candidate over base, in an interval of 95 % confidence.

    The interval holds for the compared runs. How much runs of the same code differ is in it only if ``of_repeats``.
    They are None with too few steps. ``per_sample``: the sides have different batch sizes, and steps were divided by
    them. ``more_steps`` is how many more steps of each side would show a difference of this size, if none is shown.
    """

    verdict: Verdict | None
    ratio: float | None
    low: float | None
    high: float | None
    batch: int | None = None
    more_steps: int | None = None
    of_repeats: bool = False
    per_sample: bool = False


class Metric(Record, frozen=True, kw_only=True):
    """One figure of both sides. ``change`` is relative, and of a ratio the difference itself."""

    name: str
    kind: Kind
    base: float | None
    candidate: float | None
    change: float | None
    lower_is_better: bool


class Part(Record, frozen=True, kw_only=True):
    """A part of the step (or an operator, a kernel, ...), mean per step. None on the side that does not have it."""

    name: str
    base_us: float | None
    candidate_us: float | None
    difference_us: float


class Setting(Record, frozen=True, kw_only=True):
    """Something that differs in the set-up. ``knob`` is one that people turn; the others are where it ran."""

    name: str
    base: str
    candidate: str
    knob: bool


class Prediction(Record, frozen=True, kw_only=True):
    """A finding of the base that the candidate no longer has: what it was to save."""

    rule: str
    title: str
    predicted_us: float
    low_us: float
    high_us: float


class Comparison(Record, frozen=True, kw_only=True):
    """Two sides, each of one or several runs or traces.

    ``phases``, ``hooks``, ``operators`` and ``kernels`` are sorted by how much they differ; phases of traces without
    labels are what the loop's thread did. ``saved_us`` is how much shorter the mean compared step is. ``next`` is
    the first finding of the candidate, ``notices`` what limits the comparison.
    """

    schema: int = SCHEMA
    ground: Ground
    base: SideSteps
    candidate: SideSteps
    step: StepChange
    metrics: list[Metric]
    phases: list[Part]
    hooks: list[Part]
    operators: list[Part]
    kernels: list[Part]
    settings: list[Setting]
    predictions: list[Prediction]
    saved_us: float
    next: str | None
    notices: list[str]
