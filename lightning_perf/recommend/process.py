"""Rules about the Python process that trains: garbage collection, compilation, debugging switches, threads."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import between, exposed, saving

FEW_COMPILATIONS: Final = 3
"""Compilations in a run that are no sign of anything: the first one, one for dynamic shapes, one for the last batch."""

ANOMALY: Final = (0.2, 0.7, 0.8)
"""Share of forward and backward that detecting anomalies took: least, median and most of seven models on a CPU
(perceptrons 22 % to 78 %, the larger the less; a convolutional network 31 %; a small transformer 71 %; 82 %)."""

MANY_CORES: Final = 4
"""Cores from which on one thread of torch leaves most of the machine unused."""

COMPUTING: Final = 0.5
"""Share of forward, backward and optimizer from which on a step is computing."""


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
        saves=saving(lost_us, "what lives after warming up is not looked at again"),
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
        saves=saving(lost_us, "nothing is compiled after the first steps"),
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

    A note, as nobody knows how well the model's operators scale. Thresholds: more threads than cores; or, for a step on
    a CPU that is computing for more than half of its time, one thread on four cores or more.
    """
    run, cores = evidence.run, evidence.cores
    if run is None or cores is None:
        return None
    now = run.flags.torch_threads
    computing_us = sum(evidence.phases_us[phase] for phase in ("forward", "backward", "optimizer"))
    share = computing_us / evidence.step_us
    on_cpu = not run.devices and evidence.device is None
    if now > cores:
        title = f"torch uses {now} threads on {cores} {'core' if cores == 1 else 'cores'}."
        because, wanted = "Threads beyond the cores take turns, and wait for each other.", cores
    elif on_cpu and now == 1 and cores >= MANY_CORES and share > COMPUTING:
        title = f"torch uses one of {cores} cores."
        because, wanted = f"{units.percent(share)} of a step is computing, in one thread.", cores
    else:
        return None
    return finding(
        evidence,
        "host.threads",
        title,
        saves=None,
        because=[because],
        action=f"torch.set_num_threads({max(1, wanted)})  # or OMP_NUM_THREADS",
        risks=["Small operators do not get faster with threads, and worker processes need cores, too."],
        confidence="medium",
    )
