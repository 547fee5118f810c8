"""Rules about fetching batches."""

from __future__ import annotations

import math
from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import (
    CONTENDED,
    HAND_OVER_US,
    MOST_HAND_OVER_US,
    MOST_WORKERS,
    NEARLY,
    WORKERS_LONGER,
    Saving,
    between,
    beyond_the_queue,
    exposed,
    left_with_workers,
    saving,
    saving_with_workers,
    workers_needed,
)
from lightning_perf.runinfo import LoaderFacts

COLLATING: Final = 0.5
"""From this share of a fetch on, collating is what is slow: half of it would stay if all else were free."""

WAITING: Final = 0.05
"""Share of the step from which on a wait for input counts, as XProf and torch-tb-profiler have it."""

FAR_TOO_MANY: Final = 2.0
"""Workers per core that SageMaker Debugger calls too many, whether or not the loop waits."""

_SPAWNED: Final = "Workers are processes: the dataset must be picklable where they are spawned, and each takes memory."


def sync_loader(evidence: Evidence) -> Finding | None:
    """Batches are made in the training thread (``num_workers=0``).

    With workers the step is what is slowest of the loop, the workers and the processors
    (:func:`~lightning_perf.recommend.predict.left_with_workers`). What a device's work hides of the fetch is no part of
    it. The wait itself is no threshold: what is shown is decided by the saving. Where collating is most of the fetch,
    :func:`collate_slow` speaks.
    """
    loader = evidence.loader
    if loader is None or loader.num_workers != 0 or _collating(evidence) > COLLATING:
        return None
    fetch_us = evidence.phases_us["data"]
    waits_us = exposed(evidence, "data_loading", fetch_us)
    workers, left_us, least_us = _first_workers(evidence, fetch_us, waits_us)
    pinned = ", pin_memory=True" if evidence.device is not None and not loader.pin_memory else ""
    because = [
        f"num_workers=0: each batch costs {units.duration(fetch_us)} in which the training thread does nothing else."
    ]
    if evidence.device is not None:
        because.append(_hidden(fetch_us, waits_us))
    return finding(
        evidence,
        "data.sync_loader",
        _waiting(evidence, waits_us)
        if evidence.device is not None
        else f"Making batches in the training thread takes {units.percent(fetch_us / evidence.step_us)} of a step.",
        saves=saving_with_workers(
            evidence.step_us,
            left_us,
            f"{_some(workers)} can make batches as fast as that, on {evidence.cores} cores",
            least_us=least_us,
        ),
        because=because,
        action=f"DataLoader(..., num_workers={workers}, persistent_workers=True{pinned})",
        risks=[_SPAWNED],
        where=_where(loader),
    )


def too_few_workers(evidence: Evidence) -> Finding | None:
    """There are workers, and the loop waits for them after an epoch's first batch, too.

    Then they always work, and one of them needs ``workers * step`` for a batch. No step is shorter than all processor
    time over the cores, theirs included, of which the run tells how much that is. Where it does not, the prediction
    lies in the middle between workers that compute and workers that wait (for a disk). Where they compute on all cores
    already, only a cheaper batch helps: the prediction is for one of half the cost. Taking over a batch that is there
    is no wait. Threshold: none but the saving.
    """
    loader, cores, run = evidence.loader, evidence.cores, evidence.run
    if loader is None or not loader.num_workers or cores is None or run is None:
        return None
    now, ratio = loader.num_workers, run.worker_cpu_ratio
    steady_us = evidence.step_us - _restart_us(evidence)[0]
    waited_us = evidence.phases_us["data"] - (evidence.step_us - steady_us)
    waits_us = exposed(evidence, "data_loading", max(0.0, waited_us - min(evidence.quick_fetch_us, MOST_HAND_OVER_US)))
    if waits_us <= 0 or steady_us <= waits_us:
        return None
    batch_us, rest_us = now * steady_us, steady_us - waits_us
    because = [
        f"{_some(now)}: the loop still waits {units.duration(waits_us)} for each batch.",
        f"Each makes a batch in {units.duration(batch_us)}; without the wait a step takes {units.duration(rest_us)}.",
    ]
    if ratio is not None:
        because.append(f"The workers compute for {units.percent(ratio)} of that.")
    wanted = max(now + 1, min(math.ceil(batch_us / rest_us), max(MOST_WORKERS, cores - 1)))
    spent_us = evidence.cpu_us or 0.0
    idle_us, busy_us = (
        min(steady_us, left_with_workers(batch_us, rest_us, wanted, cpu_us=spent_us + part * batch_us, cores=cores))
        for part in ((0.0, 1.0) if ratio is None else (ratio, ratio))
    )
    if now >= cores and steady_us < NEARLY * busy_us:
        return _cores_exhausted(evidence, loader, waits_us, because)
    best_us = steady_us - (idle_us + busy_us) / 2
    low_us = min(0.8 * best_us, steady_us - busy_us, steady_us - WORKERS_LONGER * idle_us)
    assumption = f"{wanted} workers make {wanted / now:.3g} times as many batches as {now}"
    unsure = "; the low end is for workers that compute all the time" if idle_us != busy_us else ""
    return finding(
        evidence,
        "data.too_few_workers",
        _waiting(evidence, waits_us),
        saves=between(low_us, best_us, steady_us - idle_us, f"{assumption}, on {cores} cores{unsure}"),
        because=because,
        action=f"DataLoader(..., num_workers={wanted}{_kept_alive(loader)})",
        risks=["Each worker takes memory, and a disk or network that is at its limit serves no more of them."],
        confidence="medium" if unsure else "high",
        where=_where(loader),
    )


def too_many_workers(evidence: Evidence) -> Finding | None:
    """More workers than cores, and the loop waits, or more than twice as many.

    A note: nobody knows what their switching costs. Thresholds: a wait of 5 % of the step counts (XProf,
    torch-tb-profiler), and 200 % of the cores are too many in any case (SageMaker Debugger).
    """
    loader, cores = evidence.loader, evidence.cores
    if loader is None or not loader.num_workers or cores is None or loader.num_workers <= cores:
        return None
    waits_us = exposed(evidence, "data_loading", evidence.phases_us["data"])
    if waits_us < WAITING * evidence.step_us and loader.num_workers <= FAR_TOO_MANY * cores:
        return None
    fewer = max(1, cores - 1)
    return finding(
        evidence,
        "data.too_many_workers",
        f"{loader.num_workers} workers share {cores} {'core' if cores == 1 else 'cores'} with the training.",
        saves=None,
        because=[
            f"Training waits {units.percent(waits_us / evidence.step_us)} of a step for data.",
            "Workers beyond the cores take turns, and take processor time from the training thread.",
        ],
        action=f"DataLoader(..., num_workers={fewer}{_kept_alive(loader)})",
        risks=["Workers that mostly wait for a disk or a network may well be more than there are cores."],
        confidence="medium",
        where=_where(loader),
    )


def worker_restart(evidence: Evidence) -> Finding | None:
    """Workers are started anew for each epoch (``persistent_workers=False``), and epochs are short.

    What an epoch's start costs beyond a later fetch, over the batches of an epoch; the first epoch is left out, it has
    to start them anyway. The first batch of an epoch must be made with persistent workers, too: the low end of the
    range is making the iterator alone. Threshold: none but the saving.
    """
    loader, run = evidence.loader, evidence.run
    if loader is None or not loader.num_workers or loader.persistent_workers is not False:
        return None
    if run is None or run.loop is None or len(run.loop.epoch_starts) < 2:
        return None
    restart_us, batches = _restart_us(evidence)
    if restart_us <= 0:
        return None
    later = run.loop.epoch_starts[1:]
    iterator_us = sum(start.iterator_ns for start in later) / len(later) / 1000
    first_us = sum(start.first_fetch_ns for start in later) / len(later) / 1000
    lost_us = beyond_the_queue(evidence, restart_us, calls=1 / batches)
    share = lost_us / restart_us
    return finding(
        evidence,
        "data.worker_restart",
        f"Starting workers anew for each epoch takes {units.percent(lost_us / evidence.step_us)} of a step.",
        saves=between(
            0.8 * min(iterator_us / batches * share, lost_us),
            lost_us,
            lost_us,
            "the start of later epochs costs no more than any other fetch",
        ),
        because=[
            f"Starting {_some(loader.num_workers)} takes {units.duration(iterator_us)}.",
            f"Then the first batch takes {units.duration(first_us)}.",
            f"An epoch has {units.count(round(batches))} batches.",
        ],
        action=f"DataLoader(..., num_workers={loader.num_workers}, persistent_workers=True)",
        risks=["Workers keep their copy of the dataset: what is changed in it between epochs does not reach them."],
        where=_where(loader),
    )


def collate_slow(evidence: Evidence) -> Finding | None:
    """Most of a fetch in the training thread is the collate function.

    Threshold: half of the fetch; below, :func:`sync_loader` speaks. Workers would collate, too, so the prediction is
    the same as there; where they bring less than a collate function of half the cost, it is that. The high end of the
    range is one that costs nothing.
    """
    loader = evidence.loader
    if loader is None or loader.num_workers != 0 or _collating(evidence) <= COLLATING:
        return None
    fetch_us = evidence.phases_us["data"]
    waits_us = exposed(evidence, "data_loading", fetch_us)
    collate_us = waits_us * _collating(evidence)
    workers, left_us, least_us = _first_workers(evidence, fetch_us, waits_us)
    by_workers = saving_with_workers(
        evidence.step_us, left_us, f"{_some(workers)} can collate while the loop trains", least_us=least_us
    )
    faster = saving(collate_us / 2, "it is made twice as fast", low=0.5, high=2.0)
    best = by_workers if by_workers.us >= faster.us else faster
    name = loader.collate or "the collate function"
    return finding(
        evidence,
        "data.collate_slow",
        f"Collating batches ({name}) takes {units.percent(collate_us / evidence.step_us)} of a step.",
        saves=Saving(best.us, best.low_us, max(best.high_us, collate_us), best.assumption),
        because=[
            f"Of the {units.duration(fetch_us)} that a batch costs, {units.percent(_collating(evidence))} is {name}.",
            "It runs in the training thread.",
        ],
        action=f"DataLoader(..., num_workers={workers}, persistent_workers=True)  # or make {name} faster",
        risks=[_SPAWNED, "Large batches are copied from the worker: a faster collate function has no such cost."],
        confidence="medium",
        where=loader.collate,
    )


def _cores_exhausted(evidence: Evidence, loader: LoaderFacts, waits_us: float, because: list[str]) -> Finding:
    steady_us = evidence.step_us - _restart_us(evidence)[0]
    best_us = min(waits_us, steady_us / 2)
    return finding(
        evidence,
        "data.too_few_workers",
        f"The cores cannot make batches faster: training waits {units.percent(waits_us / evidence.step_us)} of a step.",
        saves=between(best_us / 2, best_us, waits_us, "a batch costs half of what it does now"),
        because=[
            *because,
            f"There are {evidence.cores} cores for {_some(loader.num_workers or 0)} and the training thread.",
        ],
        action="Make a batch cheaper: do slow transforms once and store the result, decode smaller images, "
        "transform on the device.",
        risks=["Workers that mostly wait for a disk or a network leave the cores free: then more of them do help."],
        confidence="medium",
        where=_where(loader),
    )


def _first_workers(evidence: Evidence, fetch_us: float, waits_us: float) -> tuple[int, float, float]:
    """How many workers a loader without any needs, and what is left of the step then: most likely, and at the least."""
    cores = evidence.cores or 1
    record = evidence.run.loop if evidence.run is not None else None
    computing = 1.0 if record is None or record.fetch_cpu_ratio is None else record.fetch_cpu_ratio
    # A thread that has slept is slow for as long as taking over a batch takes.
    hand_over_us = HAND_OVER_US * computing if evidence.device is None else 0.0
    rest_us = evidence.step_us - waits_us + hand_over_us
    workers = workers_needed(fetch_us, rest_us, cores=cores, cpu_ratio=computing)
    left_us, least_us = (
        min(
            evidence.step_us,
            left_with_workers(
                fetch_us, rest_us, workers, cpu_us=evidence.cpu_us or 0.0, cores=cores, contended=contended
            ),
        )
        for contended in (CONTENDED, 1.0)
    )
    return workers, left_us, least_us


def _collating(evidence: Evidence) -> float:
    """Share of collating in a fetch of the training thread."""
    spans = evidence.spans_us("data")
    total_us = sum(spans.values())
    return spans.get("data/collate", 0.0) / total_us if total_us else 0.0


def _restart_us(evidence: Evidence) -> tuple[float, float]:
    """What the start of an epoch other than the first costs beyond a later fetch, per step; and steps per epoch."""
    record = evidence.run.loop if evidence.run is not None else None
    starts = record.epoch_starts if record is not None else []
    batches = _batches(evidence, len(starts))
    if len(starts) < 2:
        return 0.0, batches
    start_us = sum(start.iterator_ns + start.first_fetch_ns for start in starts[1:]) / (len(starts) - 1) / 1000
    later_us = (batches * evidence.phases_us["data"] - start_us) / max(1.0, batches - 1)
    return max(0.0, start_us - max(0.0, later_us)) / batches, batches


def _batches(evidence: Evidence, epochs: int) -> float:
    """Batches of an epoch: as the trainer says, else as they were counted."""
    run = evidence.run
    told = run.trainer.batches_per_epoch if run is not None and run.trainer is not None else None
    if told:
        return float(told)
    record = run.loop if run is not None else None
    steps = record.plain.steps + record.traced.steps if record is not None else 0
    return max(1.0, steps / max(1, epochs))


def _waiting(evidence: Evidence, waits_us: float) -> str:
    whom = "the device" if evidence.device is not None else "training"
    return f"Data loading keeps {whom} waiting {units.percent(waits_us / evidence.step_us)} of {evidence.per}."


def _hidden(fetch_us: float, waits_us: float) -> str:
    if waits_us >= 0.99 * fetch_us:
        return "The device waits for all of it."
    return f"The device waits for {units.duration(waits_us)} of it; the rest is hidden behind its work."


def _some(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _kept_alive(loader: LoaderFacts) -> str:
    return ", persistent_workers=True" if loader.persistent_workers is False else ""


def _where(loader: LoaderFacts) -> str | None:
    return f"DataLoader of {loader.dataset_class}" if loader.dataset_class else None
