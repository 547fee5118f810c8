"""What the thread that runs the loop did with its time, busy device or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from lightning_perf.measure.analysis import HostShare
from lightning_perf.measure.causes import HOST_ACTIVITY
from lightning_perf.measure.host import Host
from lightning_perf.measure.labels import CAUSE_OF_KIND, Kind
from lightning_perf.measure.steps import HostStep
from lightning_perf.names import Cause


def host_shares(host: Host, steps: Sequence[HostStep]) -> list[HostShare]:
    """Time of the main thread over the complete steps by what it did, the largest first; they add up to the steps.

    Without complete steps there are none: nobody knows then which time was the loop's.
    """
    if host.main is None:
        return []
    timeline = host.together(host.main)
    names = (HOST_ACTIVITY, *host.activities[1:])
    totals: defaultdict[tuple[Cause, str], int] = defaultdict(int)
    for step in steps:
        if not step.complete:
            continue
        inside = timeline.times[(timeline.times > step.start_ns) & (timeline.times < step.end_ns)]
        edges = np.concatenate(([step.start_ns], inside, [step.end_ns]))
        place = timeline.at(edges[:-1])
        key = timeline.kind[place].astype(np.int64) * len(names) + timeline.activity[place]
        keys, group = np.unique(key, return_inverse=True)
        spent = np.bincount(group, weights=np.diff(edges), minlength=keys.size)
        for one, time_ns in zip(keys.tolist(), spent.tolist(), strict=True):
            kind, activity = divmod(one, len(names))
            totals[CAUSE_OF_KIND.get(Kind(kind), "python"), names[activity]] += int(time_ns)
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return [HostShare(cause=cause, activity=activity, time_us=time_ns / 1000) for (cause, activity), time_ns in ordered]
