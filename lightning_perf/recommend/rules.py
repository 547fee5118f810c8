"""All rules, in one list."""

from __future__ import annotations

from typing import Final

from lightning_perf.recommend import data
from lightning_perf.recommend.findings import Rule

RULES: Final[tuple[Rule, ...]] = (data.sync_loader,)
"""Each looks at the evidence and says one thing, or None. Their order ranks what saves no time."""
