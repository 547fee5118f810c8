"""The rule about fetching batches for traces without a run: what a trace alone tells of the loader."""

from __future__ import annotations

import math
import re
from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import MOST_WORKERS, exposed, host_us, saving_with_workers
from lightning_perf.recommend.quality import trusted_window

_IN_THREAD: Final = "_SingleProcessDataLoaderIter"
_IN_WORKERS: Final = "_MultiProcessingDataLoaderIter"
_WAITING: Final = re.compile(
    r"poll|select|\bwait\b|acquire|queue|connection\.py|recv|epoll|_MultiProcessing|_try_get_data|_next_data",
    re.IGNORECASE,
)
"""What a loop that waits for worker processes runs in its innermost function."""


def waits(evidence: Evidence) -> Finding | None:
    """The loop waits for batches, as far as a trace without a run tells.

    On a device, the part of it that the device's work does not hide; else the time inside the loader. If the loop's
    thread was seen making batches, there are no workers (``data.sync_loader``); else they do not keep up
    (``data.too_few_workers``).
    """
    if evidence.run is not None or evidence.window is None:
        return None
    if evidence.device is not None and trusted_window(evidence) is None:
        return None
    fetching = host_us(evidence, "data_loading") or evidence.idle_us("data_loading")
    lost = exposed(evidence, "data_loading", fetching)
    if lost <= 0:
        return None
    left = evidence.step_us - lost
    culprit = _culprit(evidence)
    in_thread = culprit is not None and (_IN_THREAD in culprit or _WAITING.search(culprit) is None)
    workers = min(MOST_WORKERS, max(1, math.ceil(fetching / max(left, 1.0)) + 1))
    because = [f"The loop is in its loader for {units.duration(fetching)} of {evidence.per}."]
    if in_thread:
        because.append("Its own thread makes the batches (num_workers=0).")
    who = "the device" if evidence.device is not None else "the loop"
    return finding(
        evidence,
        "data.sync_loader" if in_thread else "data.too_few_workers",
        f"Fetching batches keeps {who} waiting {units.percent(lost / evidence.step_us)} of {evidence.per}.",
        saves=saving_with_workers(evidence.step_us, left, "workers have each batch ready in time"),
        because=because,
        action=f"DataLoader(..., num_workers={workers}, persistent_workers=True)"
        if in_thread
        else "DataLoader(..., num_workers=<more>, prefetch_factor=4), or cheaper work per sample",
        risks=["Workers need processors of their own: a trace does not tell how many there are."],
        confidence="high" if culprit is not None else "medium",
        where=None if culprit is None or _IN_THREAD in culprit or _IN_WORKERS in culprit else culprit,
        from_trace=True,
    )


def _culprit(evidence: Evidence) -> str | None:
    """What the loop's thread ran in the longest idle time caused by the loader; None if no gap tells."""
    window = evidence.device.window if evidence.device is not None else None
    gaps = window.largest_gaps if window is not None else []
    return next((gap.host for gap in gaps if gap.cause == "data_loading" and gap.host is not None), None)
