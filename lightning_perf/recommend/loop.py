"""Rules about what the loop does beside training: hooks, logging, checkpoints, validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Finding
from lightning_perf.names import Cause
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import exposed, round_up, without

HOOK_EVERY: Final = 50
"""Steps after which a hook's work is suggested to be done again; Lightning logs as often by default."""

COSTLY_CALL_US: Final = 1_000.0
"""A call of ``self.log`` took 0.34 ms in a case with 30 of them in a step, and all of it is Python."""

CHECKPOINT_SHARE: Final = 0.01
"""Share of the training time that saving checkpoints may take at the interval that is suggested."""

VALIDATION_SHARE: Final = 0.1
"""The same for validation: what it learns is worth more, so it may cost more."""

BAR_LEFT: Final = 0.02
"""Share of a progress bar's time that stays when it is drawn rarely: its hooks are still called for every batch."""

_MOST: Final = 0.9
"""Share of a callback's time from which on one hook of it is named, and not the callback."""

_OURS: Final = "PerfCallback"


def hook(evidence: Evidence) -> Finding | None:
    """The hooks of one callback, or of the module itself, take a part of each step.

    Those that cost most together; progress bars and checkpoints have rules of their own. The prediction is for doing
    their work in every 50th step. Threshold: none but the saving.
    """
    spans = {
        name: spent
        for name, spent in evidence.spans_us("callbacks/").items()
        if _owner(name) != _OURS and not _is_checkpoint(name) and not _is_progress_bar(evidence, name)
    }
    lost = {name: _exposed(evidence, "callbacks", name, spent) for name, spent in spans.items()}
    by_owner: dict[str, float] = {}
    for name, lost_us in lost.items():
        by_owner[_owner(name)] = by_owner.get(_owner(name), 0.0) + lost_us
    owner = max(by_owner, key=lambda one: by_owner[one], default=None)
    if owner is None or by_owner[owner] <= 0:
        return None
    hooks = sorted((name for name in spans if _owner(name) == owner), key=lambda name: -spans[name])
    worst = hooks[0]
    where = _detail(worst) if lost[worst] > _MOST * by_owner[owner] else owner
    calls = evidence.calls_per_step(worst)
    because = [f"{_detail(name)} takes {_each(spans[name], evidence.calls_per_step(name))}." for name in hooks[:2]]
    return finding(
        evidence,
        "host.hook",
        f"{where} takes {_share(evidence, by_owner[owner])} of a step.",
        saves=without(
            evidence, by_owner[owner] * (1 - 1 / HOOK_EVERY), f"its work is done in every {HOOK_EVERY}th step"
        ),
        because=because,
        action=f"In {where}: if trainer.global_step % {HOOK_EVERY}: return"
        if calls is not None and calls > 0.5
        else f"Call what {where} does less often, or make it cheaper.",
        risks=["What the hook does in each step, training may rely on: an average of weights, for example."],
        where=where,
    )


def logging(evidence: Evidence) -> Finding | None:
    """``self.log`` is called often in a step, or a logger takes long.

    Logging fewer values leaves one call of ``self.log``: ``label * (1 - 1 / calls)``; ``log_every_n_steps`` alone
    changes nothing there, as values are collected in each step. A call that takes more than a millisecond waits for
    something (other ranks, a device, a metric): then only logging in fewer steps helps, and one in 50 is left. What a
    logger itself takes shrinks with ``log_every_n_steps``: ``label * (1 - old / new)``, where new is ten times as many
    and at least 50, Lightning's default. The larger of both speaks. Threshold: none but the saving.
    """
    spans = evidence.spans_us("logging/")
    writing = {name: spent for name, spent in spans.items() if name.endswith((".log_metrics", ".save"))}
    collecting = {name: spent for name, spent in spans.items() if name not in writing}
    calls = evidence.calls_per_step("logging/self.log") or 0.0
    collect_us = sum(_exposed(evidence, "logging", name, spent) for name, spent in collecting.items())
    write_us = sum(_exposed(evidence, "logging", name, spent) for name, spent in writing.items())
    waits = collect_us > COSTLY_CALL_US * max(1.0, calls)
    fewer_us = collect_us * (1 - 1 / (50 if waits else max(1.0, calls)))
    if max(fewer_us, write_us) <= 0:
        return None
    if write_us * (1 - 1 / 10) > fewer_us:
        return _writing(evidence, writing, write_us)
    return finding(
        evidence,
        "host.logging",
        f"Logging takes {_share(evidence, collect_us)} of a step.",
        saves=without(evidence, fewer_us, "one step in 50 logs" if waits else "one value is logged in a step"),
        because=[
            f"self.log is called {units.number(calls)} times a step: {units.duration(sum(collecting.values()))}.",
            *(["A call that takes so long waits: sync_dist=True, a metric's compute(), .item()."] if waits else []),
            "log_every_n_steps alone saves nothing here: each call is paid for in each step.",
        ],
        action="self.log_dict(values) once, in every 50th step or in on_train_epoch_end: "
        "if self.global_step % 50 == 0: self.log_dict(values)",
        risks=["Means over an epoch are then of the steps that were logged."],
        where="self.log",
    )


def checkpoint(evidence: Evidence) -> Finding | None:
    """Checkpoints are saved so often that they take more than 1 % of the training time.

    What saving takes, the hooks of checkpoint callbacks included, falls as the interval grows:
    ``label * (1 - old / new)``. The new interval is the next round number at which saving takes at most 1 %.
    """
    spans = {**evidence.spans_us("checkpoint"), **_checkpoint_hooks(evidence)}
    rate = evidence.calls_per_step("checkpoint")
    spent_us = sum(spans.values())
    if not rate or not spent_us:
        return None
    lost_us = sum(
        _exposed(evidence, "callbacks" if name.startswith("callbacks/") else "checkpoint", name, spent, calls=rate)
        for name, spent in spans.items()
    )
    rest_us = max(evidence.step_us - lost_us, 0.01 * evidence.step_us)
    old, new = 1 / rate, round_up(lost_us / rate / (CHECKPOINT_SHARE * rest_us))
    if new <= old or lost_us <= 0:
        return None
    facts = evidence.run.trainer if evidence.run is not None else None
    every = facts.checkpoint_every_n_train_steps if facts is not None else None
    told = [f"ModelCheckpoint(every_n_train_steps={every})."] if every else []
    return finding(
        evidence,
        "host.checkpoint",
        f"Saving checkpoints takes {_share(evidence, lost_us)} of a step.",
        saves=without(
            evidence, lost_us * (1 - old / new), f"a checkpoint is saved every {units.count(new)} steps", high=1.25
        ),
        because=[
            f"A checkpoint takes {units.duration(spent_us / rate)} and is saved every {units.number(old)} steps.",
            *told,
        ],
        action=f"ModelCheckpoint(every_n_train_steps={new})",
        risks=[f"After a crash up to {units.count(new)} steps are lost."],
        where="ModelCheckpoint",
    )


def validation(evidence: Evidence) -> Finding | None:
    """Validation is run so often that it takes more than a tenth of the training time.

    ``label * (1 - old / new)``, where the new interval is the next round number of steps at which validation takes at
    most 10 %. Beyond an epoch it is given in epochs.
    """
    rate = evidence.calls_per_step("validation")
    spent_us = sum(evidence.spans_us("validation").values())
    if not rate or not spent_us:
        return None
    lost_us = exposed(evidence, "validation", spent_us, calls=rate)
    rest_us = max(evidence.step_us - lost_us, 0.01 * evidence.step_us)
    old, new = 1 / rate, round_up(lost_us / rate / (VALIDATION_SHARE * rest_us))
    if new <= old or lost_us <= 0:
        return None
    facts = evidence.run.trainer if evidence.run is not None else None
    batches = facts.batches_per_epoch if facts is not None else None
    action = f"Trainer(val_check_interval={new}, check_val_every_n_epoch=None)"
    if batches and new >= batches:
        epochs = -(-new // batches)
        action, new = f"Trainer(check_val_every_n_epoch={epochs}, val_check_interval=1.0)", epochs * batches
    return finding(
        evidence,
        "host.validation",
        f"Validation takes {_share(evidence, lost_us)} of a step.",
        saves=without(
            evidence, lost_us * (1 - old / new), f"validation is run every {units.count(new)} steps", high=1.25
        ),
        because=[f"A validation takes {units.duration(spent_us / rate)} and is run every {units.number(old)} steps."],
        action=f"{action}  # or limit_val_batches",
        risks=["Early stopping and the choice of the best checkpoint see fewer validations."],
    )


def progress_bar(evidence: Evidence) -> Finding | None:
    """The progress bar's hooks take a part of each step.

    The prediction is for a bar that is drawn in every 50th step, whose hooks keep a tenth of their time; the high end
    is no bar at all. Threshold: none but the saving.
    """
    spans = {name: spent for name, spent in evidence.spans_us("callbacks/").items() if _is_progress_bar(evidence, name)}
    lost_us = sum(_exposed(evidence, "callbacks", name, spent) for name, spent in spans.items())
    if lost_us <= 0:
        return None
    owner = _owner(max(spans, key=lambda name: spans[name]))
    return finding(
        evidence,
        "host.progress_bar",
        f"The progress bar takes {_share(evidence, lost_us)} of a step.",
        saves=without(
            evidence, lost_us * (1 - BAR_LEFT), f"it is drawn in every {HOOK_EVERY}th step", high=1 / (1 - BAR_LEFT)
        ),
        because=[f"{_detail(name)} takes {units.duration(spent)} a step." for name, spent in list(spans.items())[:1]],
        action=f"Trainer(callbacks=[{owner}(refresh_rate={HOOK_EVERY})])  # or enable_progress_bar=False",
        where=owner,
    )


def _writing(evidence: Evidence, spans: Mapping[str, float], lost_us: float) -> Finding:
    """A logger that takes long."""
    facts = evidence.run.trainer if evidence.run is not None else None
    now = facts.log_every_n_steps if facts is not None and facts.log_every_n_steps else 1
    every = max(HOOK_EVERY, 10 * now)
    slowest = _detail(max(spans, key=lambda name: spans[name]))
    return finding(
        evidence,
        "host.logging",
        f"Writing logged values takes {_share(evidence, lost_us)} of a step.",
        saves=without(evidence, lost_us * (1 - now / every), f"values are written every {units.count(every)} steps"),
        because=[f"{slowest} takes {units.duration(max(spans.values()))} a step."],
        action=f"Trainer(log_every_n_steps={every})",
        risks=["Curves have fewer points."],
        where=slowest,
    )


def _exposed(evidence: Evidence, cause: Cause, name: str, spent_us: float, *, calls: float | None = None) -> float:
    """What a span of the loop costs a step."""
    called = evidence.calls_per_step(name) if calls is None else calls
    return exposed(evidence, cause, spent_us, activity=_detail(name), calls=1.0 if called is None else called)


def _checkpoint_hooks(evidence: Evidence) -> dict[str, float]:
    """Hooks of checkpoint callbacks: they look for the best ones and delete the others."""
    return {name: spent for name, spent in evidence.spans_us("callbacks/").items() if _is_checkpoint(name)}


def _is_checkpoint(name: str) -> bool:
    return "Checkpoint" in _owner(name)


def _is_progress_bar(evidence: Evidence, name: str) -> bool:
    facts = evidence.run.trainer if evidence.run is not None else None
    owner = _owner(name)
    return owner.endswith("ProgressBar") or (facts is not None and owner == facts.progress_bar)


def _detail(name: str) -> str:
    """``Owner.hook`` of ``callbacks/Owner.hook``: the activity in a trace."""
    return name.split("/", 1)[-1]


def _owner(name: str) -> str:
    return _detail(name).split(".", 1)[0]


def _share(evidence: Evidence, spent_us: float) -> str:
    return units.percent(spent_us / evidence.step_us)


def _each(spent_us: float, calls: float | None) -> str:
    """What something takes a step, and at a time if it is not once a step."""
    if not calls or 0.99 < calls < 1.01:
        return f"{units.duration(spent_us)} a step"
    return f"{units.duration(spent_us / calls)} each time, {units.number(calls)} times a step"
