"""Rules about fetching batches."""

from __future__ import annotations

from lightning_perf import units
from lightning_perf.measure.analysis import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import left_with_workers, saving, workers_needed


def sync_loader(evidence: Evidence) -> Finding | None:
    """Batches are made in the training thread (``num_workers=0``).

    With workers the step is what is slowest of the loop, the workers and the processors
    (:func:`~lightning_perf.recommend.predict.left_with_workers`). The wait itself is no threshold: what is shown is
    decided by the saving.
    """
    loader, cores, cpu_us = evidence.loader, evidence.cores, evidence.cpu_us
    if loader is None or loader.num_workers != 0 or cores is None or evidence.run is None or evidence.run.loop is None:
        return None
    fetch_us = evidence.phases_us["data"]
    rest_us = evidence.step_us - fetch_us
    computing = evidence.run.loop.fetch_cpu_ratio
    workers = workers_needed(fetch_us, rest_us, cores=cores, cpu_ratio=1.0 if computing is None else computing)
    left_us = left_with_workers(fetch_us, rest_us, workers, cpu_us=cpu_us or 0.0, cores=cores)
    share = units.percent(fetch_us / evidence.step_us)
    return finding(
        evidence,
        "data.sync_loader",
        f"Making batches in the training thread takes {share} of a step.",
        saves=saving(evidence.step_us - left_us, f"{workers} workers keep up and share {cores} cores with training"),
        because=[f"num_workers=0: each batch costs {units.duration(fetch_us)} in which nothing else runs."],
        action=f"DataLoader(..., num_workers={workers}, persistent_workers=True)",
        risks=["Workers are processes: the dataset must be picklable where they are spawned, and each takes memory."],
        where=f"DataLoader of {loader.dataset_class}" if loader.dataset_class else None,
    )
