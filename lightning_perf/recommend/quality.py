"""Whether a trace can be trusted, and what to say if not."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import DeviceWindow, Quality
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding

WITHHOLDING: Final = frozenset(
    {
        "graphs_without_kernels",
        "launches_without_kernel",
        "negative_launch_latency",
        "operations_without_launch",
        "steps_without_device_work",
    }
)
"""Notes on a trace that lacks device work or its links to the host: its idle time, and the causes, may be wrong.

Each is given only where more than 5 % of operations are concerned (kineto #328, #991, #1380; pytorch #192021). A device
whose graphs were not recorded seems idle, and "a larger batch", as torch-tb-profiler advises then, is no cure.
"""

DOUBTFUL: Final = frozenset({"few_steps"})
"""Notes on a trace whose figures are right but rest on too little."""

UNEXPLAINED_RATIO: Final = 0.1
"""Share of the window in which work was queued for 20 us or more and nothing ran on any stream.

Streams wait for each other, but one of them is then busy: where all are idle, what they waited for was not recorded.
On sound traces of one and of several devices this share was below 1 %.
"""


def trustworthy(evidence: Evidence) -> bool:
    """Whether the trace's device operations, and their links to the host, are complete enough for advice."""
    return not _withholding(evidence) and _unexplained_ratio(evidence) < UNEXPLAINED_RATIO


def trusted_window(evidence: Evidence) -> DeviceWindow | None:
    """The busiest device's window, if there is one that can be trusted and took any time."""
    measured = evidence.device.window if evidence.device is not None else None
    return measured if measured is not None and measured.duration_us > 0 and trustworthy(evidence) else None


def trace_quality(evidence: Evidence) -> Finding | None:
    """The trace lacks what a verdict needs: advice on the device is withheld, or rests on few steps."""
    if evidence.window is None:
        return None
    notes = [note for note in evidence.window.quality if note.code in WITHHOLDING | DOUBTFUL]
    unexplained = _unexplained_ratio(evidence)
    because = [note.message for note in notes]
    if unexplained >= UNEXPLAINED_RATIO:
        because.append(
            f"For {units.percent(unexplained)} of the recorded time work was queued and nothing ran on any stream of "
            f"the device; what it waited for is not in the trace."
        )
    if not because:
        return None
    if not trustworthy(evidence):
        title = "The trace lacks device work, so no advice is given on the device."
    else:
        title = "The trace holds too little to be sure: read its figures as examples."
    return finding(
        evidence,
        "trace.quality",
        title,
        saves=None,
        because=because,
        action='PerfCallback(schedule={"skip_first": 10, "wait": 2, "warmup": 2, "active": 6})',
        risks=["What the clock of the loop measured does not depend on the trace."] if evidence.run is not None else [],
        from_trace=True,
    )


def _withholding(evidence: Evidence) -> list[Quality]:
    notes = evidence.window.quality if evidence.window is not None else []
    return [note for note in notes if note.code in WITHHOLDING]


def _unexplained_ratio(evidence: Evidence) -> float:
    measured = evidence.device.window if evidence.device is not None else None
    if measured is None or measured.duration_us <= 0:
        return 0.0
    waited = sum(measured.idle_causes_us.get(cause, 0.0) for cause in ("device_wait", "untraced_device_work"))
    return waited / measured.duration_us
