"""Rules about a host that cannot keep its device, or itself, busy."""

from __future__ import annotations

import re
from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import DeviceWindow, Window
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import Saving, between, saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import (
    DISPATCH,
    launch_bound_ratio,
    loop_us,
    lost_in_us,
    lost_us,
    predicted,
    recorded,
    replayed_us,
)

LAUNCH_BOUND_RATIO: Final = 0.1
"""Share of the window that the device waits for dispatching, from which on it counts as launch bound.

XProf speaks of a moderate share of kernel launch time from 3 %, of a high one from 15 % on."""

PYTHON_LEADS: Final = 2.0
"""Idle time in which Python ran and no operator, over that in which operators were dispatched.

From here on the cause is code between operators, not the number of operators."""

SLOW_LAUNCH_US: Final = 1_000.0
"""A launch call that keeps an idle device waiting for longer is loading the kernel's code."""

PYTHON_LEFT: Final = 0.05
"""Share of it that is left then: 6.3 of 6.3 ms and 5.6 of 5.9 ms went with the code in two planted cases."""

MODULES_PYTHON: Final = 0.5
"""Time of modules' own code over that of the operators in the forward pass.

It was 0.1 to 0.5 in recorded models without Python stacks, the most where operators are small."""

_LAUNCH_CALL: Final = re.compile(r"Launch\w*Kernel|LaunchCooperative")


def launch_bound(evidence: Evidence) -> Finding | None:
    """The device waits for the host to dispatch operations, for 10 % of the window or more.

    Compilation and fewer operators take away 0.3 to 0.6 of the host's dispatching time, never all of it; CUDA graphs
    bound what can be reached. The replay halves it everywhere, also where the device's work hides it.
    """
    window = trusted_window(evidence)
    if window is None or _python_leads(window):
        return None
    loading_us = sum(_slow_launches(window)) / max(1, window.steps)
    lost = max(0.0, lost_us(evidence, *DISPATCH) - loading_us)
    if lost < LAUNCH_BOUND_RATIO * evidence.step_us:
        return None
    closed = Saving(0.5 * lost, 0.3 * lost, lost, "dispatching takes half of its time; at most none, as in CUDA graphs")
    saves = predicted(evidence, "launch_half", closed, dispatch=True)
    bound_us = replayed_us(evidence, "graph", dispatch=True)
    if bound_us is not None:
        saves = Saving(saves.us, saves.low_us, max(saves.us, bound_us), saves.assumption)
    compiled = evidence.run is not None and evidence.run.flags.compiled
    kernels = evidence.window.kernels if evidence.window is not None else []
    calls = sum(kernel.calls for kernel in kernels) / recorded(evidence)
    activities = {share.activity: share.idle_us for share in reversed(evidence.idle_shares(*DISPATCH))}
    return finding(
        evidence,
        "host.launch_bound",
        f"The device waits {units.percent(lost / evidence.step_us)} of {evidence.per} for the host to launch its work.",
        saves=saves,
        because=[
            f"The device is busy for {units.percent(window.busy_us / window.duration_us)} of the recorded time.",
            f"{units.count(round(calls))} kernels are launched in {evidence.per}.",
            f"Most of the wait is in: {max(activities, key=lambda name: activities[name], default='the host')}.",
        ],
        action='torch.compile(model, mode="reduce-overhead")' if compiled else "model = torch.compile(model)",
        risks=[
            "Compiling takes a while at first, and again for every new input shape; graphs need static shapes.",
            "A larger batch does more work per launch instead, where memory and the training allow it.",
        ],
        where=_module(evidence),
        from_trace=True,
    )


def python(evidence: Evidence) -> Finding | None:
    """Interpreter time in the forward and backward pass with no operator running: code between operators.

    On a device, idle time with that cause: at least 10 % of the window, and twice what dispatching costs. On a CPU,
    what the forward pass spends between its operators beyond half of the operators' own time, which modules' own code
    takes.
    """
    if evidence.device is not None:
        return _python_on_device(evidence)
    if evidence.window is None:
        return None
    between_us = loop_us(evidence, {"python"}, {"forward"})
    operators_us = loop_us(evidence, {"launch"}, {"forward"})
    excess = between_us - MODULES_PYTHON * operators_us
    if excess <= 0:
        return None
    if between_us > PYTHON_LEADS * operators_us:  # code that calls no operators is not slowed down by the profiler
        between_us = _between_us(evidence, evidence.window)
        excess = (1 - PYTHON_LEFT) * between_us
    return finding(
        evidence,
        "host.python",
        f"Python code in the forward pass, between operators, takes {units.percent(between_us / evidence.step_us)} of "
        f"{evidence.per}.",
        saves=between(
            between_us - operators_us, excess, between_us, "modules' own code takes half of their operators' time"
        ),
        because=[
            f"{units.duration(between_us)} a step in training_step and the modules' forward with no operator running."
        ],
        action="Compute metrics, strings and lists every N steps or at the epoch's end, not in every step.",
        confidence="medium",
        where=call_site(evidence) or "training_step",
        from_trace=True,
    )


def _between_us(evidence: Evidence, window: Window) -> float:
    """Time per step between the operators of the forward pass, as recorded."""
    spent = sum(share.time_us for share in window.host if (share.cause, share.activity) == ("python", "forward"))
    return spent / recorded(evidence)


def _python_on_device(evidence: Evidence) -> Finding | None:
    window = trusted_window(evidence)
    if window is None or not _python_leads(window):
        return None
    by_activity = {activity: lost_in_us(evidence, activity, "python") for activity in ("forward", "backward", "host")}
    lost = sum(by_activity.values())
    if lost < LAUNCH_BOUND_RATIO * evidence.step_us:
        return None
    return finding(
        evidence,
        "host.python",
        f"The device waits {units.percent(lost / evidence.step_us)} of {evidence.per} for code between operators.",
        saves=Saving(0.8 * lost, 0.5 * lost, lost, "the code leaves the step, and the operators around it stay"),
        because=[
            f"{units.duration(lost)} of idle time in {evidence.per} in which the interpreter ran and no operator did."
        ],
        action="Move Python work out of the step: metrics, loops over samples. PerfCallback(with_stack=True) names it.",
        confidence="medium",
        where=_gap_host(window, "python") or max(by_activity, key=lambda one: by_activity[one]),
        from_trace=True,
    )


def module_load(evidence: Evidence) -> Finding | None:
    """The device waits for the code of kernels to be loaded: at first use, or in a launch call of 1 ms and more."""
    window = trusted_window(evidence)
    if window is None:
        return None
    slow = _slow_launches(window)
    lost = evidence.idle_us("module_load") + sum(slow) / max(1, window.steps)
    because = [f"{units.duration(lost)} of the device's idle time in {evidence.per} went by while kernels were loaded."]
    if slow:
        because.append(f"The longest launch call took {units.duration(max(slow))} with the device idle.")
    return finding(
        evidence,
        "host.module_load",
        f"The device waits {units.percent(lost / evidence.step_us)} of {evidence.per} for kernels to be loaded.",
        saves=saving(lost, "each kernel is loaded before the steps, once", low=0.5),
        because=because,
        action="Run every shape once before measuring (more warmup), or set CUDA_MODULE_LOADING=EAGER.",
        risks=["It happens once per kernel: a long training loses far less than these steps show."],
        confidence="low",
        from_trace=True,
    )


def alloc(evidence: Evidence) -> Finding | None:
    """The device waits for its driver to allocate or free memory: the allocator's cache does not serve the step."""
    if trusted_window(evidence) is None:
        return None
    lost = evidence.idle_us("allocation")
    saves = predicted(evidence, "allocation", saving(lost, "the cache serves every allocation"), dispatch=False)
    return finding(
        evidence,
        "host.alloc",
        f"Allocating and freeing device memory keeps the device waiting {units.percent(lost / evidence.step_us)} of "
        f"{evidence.per}.",
        saves=saves,
        because=[f"{units.duration(lost)} of idle time in {evidence.per} in cudaMalloc, cudaFree and their kin."],
        action="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and no torch.cuda.empty_cache() in the loop.",
        risks=["The first steps of a run allocate anyhow; shapes that change in every step defeat the cache."],
        confidence="medium",
        from_trace=True,
    )


def launch_bound_too_much(evidence: Evidence) -> bool:
    """Whether faster kernels would bring nothing, because the device waits for the host anyhow."""
    return launch_bound_ratio(evidence) >= LAUNCH_BOUND_RATIO


def _python_leads(window: DeviceWindow) -> bool:
    python_us, launch_us = (window.idle_causes_us.get(cause, 0.0) for cause in ("python", "launch"))
    return python_us > PYTHON_LEADS * launch_us


def _slow_launches(window: DeviceWindow) -> list[float]:
    """Idle time of gaps in which one launch call was busy for long."""
    return [
        share.idle_us
        for gap in window.largest_gaps
        if gap.host is not None and _LAUNCH_CALL.search(gap.host) is not None
        for share in gap.shares
        if share.cause == "launch" and share.idle_us >= SLOW_LAUNCH_US
    ]


def _module(evidence: Evidence) -> str | None:
    """The module that launches most in its own forward pass, if that is a tenth of all launches."""
    modules = evidence.window.modules if evidence.window is not None else []
    named = [one for one in modules if one.name != "(others)"]
    launches = {one.name: one.launches or 0 for one in named}
    most = max(launches, key=lambda name: launches[name], default=None)
    return most if most is not None and launches[most] >= 0.1 * sum(launches.values()) else None


def call_site(evidence: Evidence) -> str | None:
    """The user's function in which operators took longest, where Python stacks were recorded."""
    rows = evidence.window.operators if evidence.window is not None else []
    sites = [row for row in rows if row.call_site is not None]
    return max(sites, key=lambda row: row.self_us).call_site if sites else None


def _gap_host(window: DeviceWindow, cause: str) -> str | None:
    return next((gap.host for gap in window.largest_gaps if gap.cause == cause and gap.host is not None), None)
