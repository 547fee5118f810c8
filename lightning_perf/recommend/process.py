"""Rules about the Python process that trains: garbage collection, compilation, debugging switches, threads."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Confidence, Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import Saving, between, exposed, without

FEW_COMPILATIONS: Final = 3
"""Compilations in a run that are no sign of anything: the first one, one for dynamic shapes, one for the last batch."""

ANOMALY: Final = (0.2, 0.7, 0.8)
"""Share of forward and backward that detecting anomalies took: least, median and most of seven models on a CPU
(perceptrons 22 % to 78 %, the larger the less; a convolutional network 31 %; a small transformer 71 %; 82 %)."""

LONG_US: Final = 1_000.0
"""Operators from this length on are taken to be worth sharing among threads: waking them takes some microseconds."""

SHARED: Final = 0.8
"""Share of the ideal gain that threads bring."""

MOST_OVERSUBSCRIBED: Final = 0.5
"""The largest share of the computing that too many threads are taken to cost."""


def garbage(evidence: Evidence) -> Finding | None:
    """Python's garbage collector interrupts training.

    It looks at all objects that live, however many are garbage. Frozen ones are left out. Collections of the youngest
    objects are too short to be counted. Threshold: none but the saving, which is all of it.
    """
    spent_us = evidence.spans_us().get("other/gc", 0.0)
    calls = evidence.calls_per_step("other/gc") or 0.0
    lost_us = exposed(evidence, "gc", spent_us, calls=calls)
    if lost_us <= 0:
        return None
    return finding(
        evidence,
        "host.gc",
        f"Python's garbage collection takes {units.percent(lost_us / evidence.step_us)} of a step.",
        saves=without(evidence, lost_us, "what lives after warming up is not looked at again"),
        because=[f"{units.duration(spent_us / calls)} each time, {units.number(calls)} times a step."] if calls else [],
        action="import gc\ngc.collect(); gc.freeze()  # once, after the first steps: in on_train_batch_end",
        risks=[
            "Garbage that each step makes in cycles is collected still, and takes its time.",
            "With gc.disable() and gc.collect() every few hundred steps instead, memory grows in between.",
        ],
    )


def recompile(evidence: Evidence) -> Finding | None:
    """torch.compile compiles again after the first steps.

    Threshold: more than three compilations, and the saving: the time of all of them, less what the first steps took
    longer than others did outside of training, which is the first compilation.
    """
    spent_us = evidence.spans_us().get("other/compile", 0.0)
    calls = evidence.calls_per_step("other/compile") or 0.0
    loop, record = evidence.loop, evidence.run.loop if evidence.run is not None else None
    if not spent_us or loop is None or record is None:
        return None
    steps = record.plain.steps + record.traced.steps
    compilations = round(calls * steps)
    first_us = max(0.0, loop.phases_us["other"] - evidence.phases_us["other"])
    again_us = min(spent_us - first_us, evidence.phases_us["other"])
    if compilations <= FEW_COMPILATIONS or again_us <= 0:
        return None
    lost_us = exposed(evidence, "compile", again_us, calls=calls)
    return finding(
        evidence,
        "host.recompile",
        f"Compiling again and again takes {units.percent(lost_us / evidence.step_us)} of a step.",
        saves=without(evidence, lost_us, "nothing is compiled after the first steps"),
        because=[
            f"torch.compile has compiled {units.count(compilations)} times in {units.count(steps)} steps.",
            "TORCH_LOGS=recompiles says which guard failed; mostly it is a shape that changes.",
        ],
        action='torch._dynamo.mark_dynamic(batch["x"], 1)  # the dimension that changes, before the first step; '
        "or pad it to a few sizes",
        risks=["Code for dynamic shapes is somewhat slower than code for one shape."],
    )


def anomaly(evidence: Evidence) -> Finding | None:
    """Autograd looks for anomalies: it keeps a Python stack per operator and tests every gradient for NaN.

    The clock cannot tell what that takes. The prediction is the share of forward and backward that it took of seven
    models on a CPU: 20 % to 80 %, in the middle 70 %. Threshold: none but the saving.
    """
    if evidence.run is None or not evidence.run.flags.detect_anomaly:
        return None
    passes_us = evidence.phases_us["forward"] + evidence.phases_us["backward"]
    low, best, high = ANOMALY
    return finding(
        evidence,
        "host.anomaly",
        "Autograd looks for anomalies in every step, which is for debugging.",
        saves=between(
            low * passes_us, best * passes_us, high * passes_us, "it takes the share that it took of other models"
        ),
        because=[
            "detect_anomaly is on: each operator's stack is kept, and each gradient is tested for NaN.",
            f"Forward and backward take {units.duration(passes_us)} a step.",
        ],
        action="Trainer(detect_anomaly=False)  # and no torch.autograd.set_detect_anomaly(True)",
        risks=["A NaN is then found in the loss, and not where it comes from."],
        confidence="low",
    )


def threads(evidence: Evidence) -> Finding | None:
    """The number of torch's threads does not fit the cores.

    Thresholds: more threads than cores, or one thread on a CPU for operators of a millisecond and more, with a core
    that no worker process takes. In the second case the saving is the time of these operators shared among the cores,
    less a fifth. What too many threads cost is not known before it is tried: a tenth of forward, backward and optimizer
    for each time that they are more, half of it at most, is a guess, and the range begins with nothing.
    """
    run, cores = evidence.run, evidence.cores
    if run is None or cores is None:
        return None
    now = run.flags.torch_threads
    computing_us = sum(evidence.phases_us[phase] for phase in ("forward", "backward", "optimizer"))
    if now > cores:
        guess_us = min(MOST_OVERSUBSCRIBED, 0.1 * (now / cores - 1)) * computing_us
        lost = between(0.0, guess_us, MOST_OVERSUBSCRIBED * computing_us, "threads in turns cost what is usual")
        title = f"torch uses {now} threads on {cores} {'core' if cores == 1 else 'cores'}."
        because = "Threads beyond the cores take turns, and wait for each other."
        return _threads(evidence, title, because, cores, lost, "low")
    workers = evidence.loader.num_workers if evidence.loader is not None else None
    free, long_us = cores - (workers or 0), min(_long_operators_us(evidence), computing_us)
    if now > 1 or free < 2 or run.devices or evidence.device is not None or not long_us:
        return None
    shared_us = long_us * (1 - 1 / free)
    lost = between(0.5 * shared_us, SHARED * shared_us, shared_us, f"these operators are shared among {free} cores")
    because = f"Operators of {units.duration(LONG_US)} and more take {units.duration(long_us)} a step, in one thread."
    return _threads(evidence, f"torch uses one of {cores} cores.", because, free, lost, "medium")


def _threads(
    evidence: Evidence, title: str, because: str, wanted: int, lost: Saving, confidence: Confidence
) -> Finding:
    return finding(
        evidence,
        "host.threads",
        title,
        saves=lost,
        because=[because],
        action=f"torch.set_num_threads({wanted})  # or OMP_NUM_THREADS={wanted}",
        risks=["Small operators do not get faster with threads, and worker processes need cores, too."],
        confidence=confidence,
    )


def _long_operators_us(evidence: Evidence) -> float:
    """Time per recorded step in operators that are long enough to be shared among threads."""
    rows = evidence.window.operators if evidence.window is not None else []
    spent = sum(row.self_us for row in rows if row.name.startswith("aten::") and row.self_us >= LONG_US * row.calls)
    return spent / max(1, evidence.steps_recorded)
