"""All rules, in one list."""

from __future__ import annotations

from typing import Final

from lightning_perf.recommend import data, loop, process, transfer
from lightning_perf.recommend.findings import Rule

RULES: Final[tuple[Rule, ...]] = (
    data.sync_loader,
    data.too_few_workers,
    data.worker_restart,
    data.collate_slow,
    transfer.slow_transfer,
    transfer.pageable,
    transfer.unneeded_copy,
    loop.hook,
    loop.logging,
    loop.checkpoint,
    loop.validation,
    loop.progress_bar,
    process.garbage,
    process.anomaly,
    process.recompile,
    process.threads,
    data.too_many_workers,
)
"""Each looks at the evidence and says one thing, or None. Their order ranks what saves no time."""
