"""Rules about how full a working device is: small kernels, few blocks, and nothing left to fix."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Device
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.device import products_share
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.host import launch_bound_too_much
from lightning_perf.recommend.predict import Saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import busy_us, lost_us, recorded, replayed_us

SMALL_US: Final = 10.0
"""Kernels under 10 us are short in the rules of TraceLens: about what launching one takes."""

MANY_SMALL: Final = 0.5
"""Share of all kernels that are small from which on fusing them is advised."""

FULL_BUSY_RATIO: Final = 0.8
"""Busy share of the window from which on few multiprocessors at work mean small kernels, not a waiting device."""

FEW_SM_RATIO: Final = 0.5
"""Share of multiprocessors with work, while the device is busy, below which a larger batch fits beside the first."""

MOST_EXPOSED: Final = 0.1
"""Collectives use few multiprocessors by design: with more of them exposed the share says nothing."""

BUSY_RATIO: Final = 0.9
"""Share of the window in which the device computes and does not only communicate, from which on that is the bound."""

CPU_COMPUTE_RATIO: Final = 0.85
"""Share of forward, backward and optimizer in a step on a CPU from which on computing is what bounds it."""

SHOWN: Final = 3
"""Operators and modules that are named."""


def small_kernels(evidence: Evidence) -> Finding | None:
    """Half of the kernels take under 10 us: gaps between them, and launching them, cost as much as they do.

    Where the device waits for the host much of the time, ``host.launch_bound`` says so.
    """
    window = trusted_window(evidence)
    if window is None or launch_bound_too_much(evidence) or evidence.window is None:
        return None
    kernels = evidence.window.kernels
    calls = sum(kernel.calls - kernel.graph_calls for kernel in kernels)
    small = sum(kernel.calls - kernel.graph_calls for kernel in kernels if kernel.mean_us < SMALL_US)
    shorter = sum(kernel.shorter_than_launch for kernel in kernels)
    if not calls or small < MANY_SMALL * calls:
        return None
    lost = lost_us(evidence, "device_gap", "launch")
    return finding(
        evidence,
        "gpu.small_kernels",
        f"{units.percent(small / calls)} of the kernels take less than {units.duration(SMALL_US)}.",
        saves=Saving(
            0.5 * lost, 0.2 * lost, lost, "half of the kernels are fused into others, with the gaps before them"
        ),
        because=[
            f"{units.count(round(small / recorded(evidence)))} such kernels are launched in {evidence.per}.",
            f"{units.count(shorter)} of {units.count(calls)} kernels took less time than their launch.",
            f"{units.duration(lost)} of {evidence.per} is idle time between queued operations and before launches.",
        ],
        action="model = torch.compile(model)",
        confidence="medium",
        from_trace=True,
    )


def low_occupancy(evidence: Evidence) -> Finding | None:
    """The device is busy, but most of its multiprocessors have nothing to do: kernels of few blocks."""
    window, device = trusted_window(evidence), evidence.device
    if window is None or device is None or evidence.window is None:
        return None
    if busy_us(evidence) < FULL_BUSY_RATIO * evidence.step_us:
        return None
    figures = next((one for one in evidence.window.efficiency if one.device == device.index), None)
    exposed = device.exposed_communication_us / device.busy_us if device.busy_us else 0.0
    if figures is None or figures.sm_efficiency is None or exposed > MOST_EXPOSED:
        return None
    working = figures.sm_efficiency * window.duration_us / window.busy_us
    if working >= FEW_SM_RATIO:
        return None
    return finding(
        evidence,
        "gpu.low_occupancy",
        f"While the device is busy only {units.percent(working)} of its multiprocessors have work.",
        saves=None,
        because=[
            f"Busy for {units.percent(window.busy_us / window.duration_us)} of the recorded time.",
            f"Warps resident on a multiprocessor: {units.percent(figures.occupancy)}.",
        ],
        action="A larger batch: a step takes hardly longer as long as multiprocessors are free.",
        risks=["A larger batch changes training: scale the learning rate, and compare results."],
        confidence="medium",
        from_trace=True,
    )


def compute_bound(evidence: Evidence) -> Finding | None:
    """Computing is what the step is made of: what dominates it, and what can still be done.

    Shown only where no other finding saves a twentieth of the step
    (:data:`~lightning_perf.recommend.findings.LAST_RESORT`).
    """
    ratio, what = _computing(evidence)
    if ratio is None:
        return None
    modules, operators = _dominating(evidence)
    products = products_share(evidence)
    because = [f"{what}: {units.percent(ratio)} of {evidence.per}."]
    if operators:
        because.append(f"Most of it: {', '.join(operators)}.")
    if modules:
        because.append(f"Modules: {', '.join(modules)}.")
    if products:
        because.append(
            f"Matrix products, convolutions and attention: {units.percent(products)} of the operators' time."
        )
    return finding(
        evidence,
        "gpu.compute_bound",
        "Nothing holds the computation up: what is left is to compute less, or with smaller numbers.",
        saves=None,
        because=because,
        action="; ".join(_left_to_do(evidence, products)),
        confidence="medium",
        where=next((name.rsplit(" (", 1)[0] for name in (*modules, *operators)), None),
        from_trace=evidence.device is not None,
    )


def _computing(evidence: Evidence) -> tuple[float | None, str]:
    """How much of the step is computing, and how that is known; None if that is not what bounds it."""
    if evidence.device is not None:
        window = trusted_window(evidence)
        if window is None or not evidence.device.busy_us:
            return None, ""
        ratio = min(1.0, busy_us(evidence) / evidence.step_us) - _communicating(evidence, evidence.device)
        return (ratio, "The device computes") if ratio > BUSY_RATIO else (None, "")
    phases = evidence.phases_us
    if not phases:
        return None, ""
    ratio = sum(phases.get(phase, 0.0) for phase in ("forward", "backward", "optimizer")) / evidence.step_us
    return (ratio, "Forward, backward and optimizer") if ratio > CPU_COMPUTE_RATIO else (None, "")


def _communicating(evidence: Evidence, device: Device) -> float:
    """Share of the step that communication takes: by a replay without it, else that in which nothing else ran."""
    bound = replayed_us(evidence, "communication", dispatch=False)
    return device.exposed_communication_us / device.span_us if bound is None else bound / evidence.step_us


def _dominating(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Modules and operators in which most of the time went by, with their share."""
    if evidence.window is None:
        return [], []
    device = evidence.device is not None
    operators = {row.name: (row.self_device_us or 0.0) if device else row.self_us for row in evidence.window.operators}
    modules = {
        row.name: (row.self_device_us or 0.0) + (row.self_backward_device_us or 0.0)
        if device
        else row.self_us + (row.self_backward_us or 0.0)
        for row in evidence.window.modules
    }
    for name in ("(no operator)", "(others)", "record_param_comms"):
        operators.pop(name, None)
    modules.pop("(others)", None)
    total = sum(operators.values())
    if not total:
        return [], []
    return _ranked(modules, total), _ranked(operators, total)


def _ranked(times: dict[str, float], total: float) -> list[str]:
    largest = sorted(times.items(), key=lambda item: -item[1])[:SHOWN]
    return [f"{name} ({units.percent(spent / total)})" for name, spent in largest if spent > 0]


def _left_to_do(evidence: Evidence, products: float) -> list[str]:
    run = evidence.run
    left = []
    if run is None or (run.trainer is not None and run.trainer.precision in ("32-true", "64-true")):
        left.append('precision="bf16-mixed"' if evidence.device is not None else "bfloat16, where the processor has it")
    if run is None or not run.flags.compiled:
        left.append("torch.compile(model)")
    if products > FEW_SM_RATIO:
        left.append("smaller inputs (resolution, sequence length) or a smaller model")
    if run is not None and run.stage != "fit":
        left.append("quantisation")
    return left or ["a smaller model, smaller inputs, or more devices"]
