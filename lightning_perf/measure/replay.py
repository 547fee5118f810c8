"""What a change would bring: the window of a trace run again with other costs.

A formula subtracts what an activity took. A replay also knows what was hidden behind the device's work, what becomes
the bottleneck next, and what two changes bring together, which is never the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from lightning_perf.decode.trace import Floats, Int64s, Trace
from lightning_perf.measure.analysis import Replay, WhatIf
from lightning_perf.measure.devices import DeviceWork
from lightning_perf.measure.efficiency import device_name
from lightning_perf.measure.host import Host
from lightning_perf.measure.peaks import peaks_of
from lightning_perf.measure.replay_changes import WHOLE, Change, Workload, apply, own_activities
from lightning_perf.measure.replay_model import Costs, observed_costs, run
from lightning_perf.measure.replay_read import read_model
from lightning_perf.measure.steps import HostStep
from lightning_perf.names import CHANGE_KINDS, ChangeKind

ACTIVITIES: Final = 5
"""Activities of a kind that are tried on their own."""

BOUNDS: Final[tuple[ChangeKind, ...]] = ("graph", "communication")
"""Changes that nobody can make: they bound what can be reached, and are not combined with others."""

_ALTERNATIVES: Final[tuple[tuple[ChangeKind, ...], ...]] = (
    ("transfer", "pinned_copies"),
    ("mixed_precision", "tf32"),
)
"""Changes of which one is the better half of the other."""


class Replayer:
    """The window of one device, ready to be run again.

    Args:
        trace: the trace.
        work: its :func:`~lightning_perf.measure.devices.device_work`; the device that was busiest is measured.
        steps: its :func:`~lightning_perf.measure.steps.host_steps`.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
        host: its :func:`~lightning_perf.measure.host.read_host`.

    Raises:
        ValueError: no device worked.
    """

    def __init__(
        self, trace: Trace, work: Sequence[DeviceWork], steps: Sequence[HostStep], launches: Int64s, host: Host
    ) -> None:
        device = max(work, key=lambda one: one.busy.total)
        name = device_name(trace, device.index)
        self.device = str(device.index)
        self._model = read_model(trace, device, work, steps, launches, host)
        self._observed = observed_costs(self._model)
        self._work = Workload(
            trace=trace,
            model=self._model,
            activities=host.activities,
            totals=self._model.host.totals(),
            peaks={} if name is None else peaks_of(name),
        )
        self.steps = self._model.steps
        self.measured_us = (self._model.end_ns - self._model.start_ns) / 1000 / max(self.steps, 1)

    def run(self, changes: Iterable[Change] = ()) -> list[float]:
        """Step times after some changes, microseconds; without steps, the window's duration alone."""
        return self._step_times(self._changed(changes))

    def applies(self, change: Change) -> bool:
        """Whether what a change is about occurs in the window."""
        changed, observed = self._changed([change]), self._observed
        return any(not np.array_equal(getattr(changed, name), getattr(observed, name)) for name in Costs.__slots__)

    def changes(self) -> list[Change]:
        """The changes that can be made one at a time, with those of single activities where a kind has several."""
        found = []
        for kind in CHANGE_KINDS:
            activities = own_activities(self._work, kind)[:ACTIVITIES] if kind in WHOLE else []
            found.append(Change(kind))
            found += [Change(kind, activity) for activity in activities if len(activities) > 1]
        return [change for change in found if self.applies(change)]

    def _changed(self, changes: Iterable[Change]) -> Costs:
        costs = self._observed.copy()
        for change in changes:
            apply(change, self._work, costs)
        return costs

    def _step_times(self, costs: Costs) -> list[float]:
        ends: Floats = run(self._model, costs)
        times: list[float] = (np.diff(ends, prepend=self._model.start_ns) / 1000).tolist()
        return times


def replay(
    trace: Trace, work: Sequence[DeviceWork], steps: Sequence[HostStep], launches: Int64s, host: Host
) -> Replay | None:
    """Predict the step time after every change that a window allows, and after the best of them together.

    Args:
        trace: the trace.
        work: its :func:`~lightning_perf.measure.devices.device_work`; the device that was busiest is measured.
        steps: its :func:`~lightning_perf.measure.steps.host_steps`.
        launches: its :func:`~lightning_perf.measure.launches.launch_rows`.
        host: its :func:`~lightning_perf.measure.host.read_host`.

    Returns:
        None for a trace without device operations.
    """
    if not work:
        return None
    replayer = Replayer(trace, work, steps, launches, host)
    times = replayer.run()
    step_us = _mean(times)
    changes = replayer.changes()
    tried = [(change, _what_if(replayer, [change], step_us)) for change in changes]
    tried.sort(key=lambda one: -one[1].saving_us_per_step)
    best = _combinable([change for change, found in tried if found.saving_us_per_step > 0])
    measured = replayer.measured_us
    return Replay(
        device=replayer.device,
        steps=replayer.steps,
        step_us=measured,
        replayed_us=step_us,
        error_ratio=abs(step_us - measured) / measured if measured else 0.0,
        step_times_us=times,
        what_if=[found for _, found in tried],
        together=[_what_if(replayer, best[:count], step_us) for count in (2, 3) if len(best) >= count],
    )


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)


def _what_if(replayer: Replayer, changes: Sequence[Change], step_us: float) -> WhatIf:
    times = replayer.run(changes)
    after = min(_mean(times), step_us)  # of equal ones the mean may round up
    return WhatIf(
        changes=[str(change) for change in changes],
        step_us=after,
        saving_us_per_step=step_us - after,
        step_times_us=times,
    )


def _combinable(ranked: Sequence[Change]) -> list[Change]:
    """Those of some changes, the best first, that can be made together and do not contain each other."""
    chosen: list[Change] = []
    for change in ranked:
        rivals = {kind for group in _ALTERNATIVES if change.kind in group for kind in group} | {change.kind}
        if change.kind in BOUNDS or any(one.kind in rivals for one in chosen if not _apart(one, change)):
            continue
        chosen.append(change)
    return chosen


def _apart(one: Change, other: Change) -> bool:
    """Whether two changes of a kind are about different activities."""
    return None not in (one.activity, other.activity) and one.activity != other.activity
