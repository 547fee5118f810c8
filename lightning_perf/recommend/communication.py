"""Rules about what ranks and devices send each other."""

from __future__ import annotations

import re
from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Collective, Window
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import Saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import operators, recorded, replayed_us
from lightning_perf.runinfo import DdpFacts

EXPOSED_RATIO: Final = 0.05
"""Share of the step in which only communication ran from which on TraceLens speaks of it, too."""

STRAGGLING_RATIO: Final = 0.75
"""Time in collectives on the last rank over that of the mean rank, below which one rank is late: the score below which
NVIDIA's resiliency extension names a straggler."""

_PASSING: Final = re.compile(r"all_?to_?all|send|recv|p2p", re.IGNORECASE)
"""Collectives whose result the next operator needs: nothing but a pipeline of batches hides them."""
_GLOO: Final = re.compile(r"gloo:")
_DATA_PARALLEL: Final = frozenset({"Scatter", "Gather", "Broadcast"})
"""Autograd functions that torch.nn.DataParallel is made of."""


def exposed(evidence: Evidence) -> Finding | None:
    """For 5 % of the step or more nothing but communication runs on the device.

    Reductions of gradients can be hidden behind computing that does not hide any yet; what passes activations on
    cannot, and counts for nothing in the prediction (it is a note then). One rank cannot tell sending from waiting.
    Where a replay without communication is hardly shorter, the device would have waited for its host anyhow.
    """
    window, device = trusted_window(evidence), evidence.device
    if window is None or device is None or evidence.window is None or not device.busy_us:
        return None
    # The device's figures are of its span: its busy time of the window shares them out.
    scale = window.busy_us / device.busy_us / max(1, window.steps)
    lost = device.exposed_communication_us * scale
    if lost < EXPOSED_RATIO * window.duration_us / max(1, window.steps):
        return None
    bound = replayed_us(evidence, "communication", dispatch=False)
    if bound is not None and bound < EXPOSED_RATIO * evidence.step_us:
        return None
    rows = evidence.window.collectives
    total = sum(row.exposed_us for row in rows)
    reducing = sum(row.exposed_us for row in rows if not _passes(row)) / total if total else 1.0
    hidden_us = device.communication_us - device.exposed_communication_us
    free = max(0.0, device.compute_us - hidden_us) * scale
    best = min(reducing * lost, free)
    high = max(best, lost) if bound is None else bound
    if bound is not None:
        best = min(best, bound)
    worth = evidence.worth(best)
    largest = max(rows, key=lambda row: row.exposed_us, default=None)
    because = [
        f"{units.duration(lost)} in {evidence.per} in which only collectives ran.",
        f"{units.percent(hidden_us / device.communication_us)} of all their time is hidden behind computing.",
        "One rank cannot tell sending from waiting for a slower rank: record the others, too (ranks=[0, 1, ...]).",
    ]
    if largest is not None:
        because.insert(1, f"Most of it: {_called(largest)}, {units.duration(largest.exposed_us / recorded(evidence))}.")
    return finding(
        evidence,
        "comm.exposed",
        f"The device only communicates for {units.percent(lost / evidence.step_us)} of {evidence.per}.",
        saves=Saving(best, 0.0, high, "reductions hide behind computing that is free to hide them") if worth else None,
        because=because,
        action=_to_overlap(reducing),
        risks=["Accumulating gradients and larger batches change training; bf16 compression rounds gradients."],
        confidence="medium",
        where=_called(largest) if largest is not None else None,
        from_trace=True,
    )


def straggler(evidence: Evidence) -> Finding | None:
    """The same collectives take one rank less than 0.75 of what they take the mean rank: that rank arrives last.

    Needs traces of several ranks with the same steps. The last rank waits for nobody: its time is the sending, and what
    the mean rank takes beyond it is waiting.
    """
    if evidence.window is None or not evidence.others:
        return None
    times = _common_us([evidence.window, *evidence.others])
    last = min(times, key=lambda rank: times[rank], default=None)
    if last is None:
        return None
    mean = sum(times.values()) / len(times)
    if not mean or times[last] >= STRAGGLING_RATIO * mean:
        return None
    waiting = (mean - times[last]) / recorded(evidence)
    return finding(
        evidence,
        "comm.straggler",
        f"Rank {last} comes last to collectives: the others wait for it {units.percent(waiting / evidence.step_us)} of "
        f"{evidence.per}.",
        saves=Saving(waiting, 0.3 * waiting, waiting, "all ranks arrive together"),
        because=[
            "Time in the same collectives: "
            + ", ".join(f"rank {rank} {units.duration(times[rank] / recorded(evidence))}" for rank in sorted(times))
            + f" in {evidence.per}."
        ],
        action=f"Compare the trace of rank {last} with the others: its data, its processor, its device.",
        confidence="medium",
        where=f"rank {last}",
        from_trace=True,
    )


def backend(evidence: Evidence) -> Finding | None:
    """Gloo, which sends through the host's memory, reduces between ranks that have accelerators."""
    facts = _ddp(evidence)
    rows = evidence.window.operators if evidence.window is not None else []
    gloo = [row for row in rows if _GLOO.match(row.name) is not None]
    if facts is not None and facts.backend != "gloo":
        return None  # its operators reduce something small on the CPU
    has_device = evidence.device is not None or (evidence.run is not None and bool(evidence.run.devices))
    if not gloo or not has_device:
        return None
    spent = sum(row.total_us for row in gloo) / recorded(evidence)
    return finding(
        evidence,
        "comm.backend",
        f"Gloo, not the device's own library, sends {units.count(sum(row.calls for row in gloo))} collectives.",
        saves=None,
        because=[
            f"{units.duration(spent)} of {evidence.per} in {gloo[0].name} and its kin, through the host's memory."
        ],
        action='DDPStrategy(process_group_backend="nccl")',
        risks=["Collectives on tensors of the CPU need Gloo: those of a few bytes do no harm."],
        confidence="medium",
        from_trace=True,
    )


def _ddp(evidence: Evidence) -> DdpFacts | None:
    return evidence.run.trainer.ddp if evidence.run is not None and evidence.run.trainer is not None else None


def find_unused(evidence: Evidence) -> Finding | None:
    """DDP looks for unused parameters in every step, and has found none.

    It then walks the graph before each backward pass and reduces one integer per parameter tensor between the ranks.
    Whether parameters are unused is DDP's own count; where that is not known, nothing is said.
    """
    facts = _ddp(evidence)
    if facts is None or not facts.find_unused_parameters or facts.static_graph or facts.unused_parameter_bytes != 0:
        return None
    tensors = sum(one.parameter_tensors for one in evidence.run.optimizers) if evidence.run is not None else 0
    return finding(
        evidence,
        "comm.find_unused",
        "DDP looks for unused parameters in every step, and finds none.",
        saves=None,
        because=[f"find_unused_parameters=True: {units.count(tensors)} parameter tensors are looked for, none unused."],
        action='Trainer(strategy="ddp")',
        risks=["If parameters are unused in some steps, DDP stops with an error that names them."],
        confidence="high",
    )


def data_parallel(evidence: Evidence) -> Finding | None:
    """``torch.nn.DataParallel`` drives several devices from one process: it copies the model in every step."""
    if evidence.window is None or len(evidence.window.devices) < 2:
        return None
    wrapped = [one for one in evidence.window.modules if one.name.startswith("DataParallel_")]
    parts = {row.name for row in operators(evidence, (*_DATA_PARALLEL, "DataParallel.forward"))}
    if not wrapped and "DataParallel.forward" not in parts and not parts >= _DATA_PARALLEL:
        return None
    return finding(
        evidence,
        "comm.data_parallel",
        f"DataParallel drives {len(evidence.window.devices)} devices from one process and copies the model each step.",
        saves=None,
        because=["One interpreter launches the work of all devices, and one device gathers all outputs."],
        action=f'Trainer(accelerator="gpu", devices={len(evidence.window.devices)}, strategy="ddp")',
        from_trace=True,
    )


def _to_overlap(reducing: float) -> str:
    if reducing < EXPOSED_RATIO:
        return "Prefetch: send the next batch's tensors while this one computes (a pipeline), or send smaller types."
    return (
        "DDPStrategy(gradient_as_bucket_view=True, static_graph=True); bucket_cap_mb for more overlap, "
        "ddp_comm_hook=default_hooks.bf16_compress_hook for fewer bytes; accumulate_grad_batches for fewer reductions"
    )


def _passes(row: Collective) -> bool:
    return _PASSING.search(row.collective or row.name) is not None


def _called(row: Collective) -> str:
    size = f" of {units.size(row.bytes / row.calls)}" if row.bytes and row.calls else ""
    return f"{row.collective or row.name}{size}"


def _common_us(windows: list[Window]) -> dict[int, float]:
    """Time of each rank in the collectives that all ranks called equally often; empty if there are none."""
    tables = {
        window.rank: {
            (row.collective, row.dtype, row.in_elements, row.group_size, row.calls): row.total_us
            for row in window.collectives
            if row.collective is not None
        }
        for window in windows
        if window.rank is not None
    }
    common = set.intersection(*(set(table) for table in tables.values())) if tables else set()
    return {rank: sum(table[key] for key in common) for rank, table in tables.items()} if common else {}
