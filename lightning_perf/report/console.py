"""Analysis -> at most one screen of text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from lightning_perf import units
from lightning_perf.measure.analysis import (
    Analysis,
    Arithmetic,
    Device,
    Efficiency,
    Loop,
    MemoryPeak,
    TraceMemory,
    Window,
    busiest_device,
    last_window,
)
from lightning_perf.measure.efficiency import CPU
from lightning_perf.measure.finding import Finding
from lightning_perf.names import PHASES, TAB_NAME, Phase
from lightning_perf.report import advice
from lightning_perf.runinfo import REPORT_FILE, RunInfo

log = logging.getLogger("lightning_perf")

MOST_CAUSES = 4
"""Causes of idle time shown in one line."""

_PHASE_NAMES: dict[Phase, str] = {
    "data": "Data loading",
    "transfer": "Moving batches to the device",
    "forward": "The forward pass",
    "backward": "The backward pass",
    "optimizer": "The optimizer",
    "logging": "Logging",
    "callbacks": "Callbacks",
    "validation": "Validation",
    "checkpoint": "Saving checkpoints",
    "other": "The rest of the loop",
}


def summarize_run(analysis: Analysis, folder: Path | None, *, all_findings: bool = False) -> str:
    """Summary of a run: what costs time and what to change, the figures, the phases, and where to read on.

    Args:
        analysis: the run's analysis; must hold a run.
        folder: where the run's files are, or None if it wrote none.
        all_findings: show all findings in full, not the first ones.

    Raises:
        ValueError: the analysis holds no run.
    """
    run, loop = analysis.run, analysis.loop
    if run is None:
        raise ValueError("summarize_run needs an analysis with a run; use summarize_trace for a trace alone")
    lines = [f"lightning-perf · {headline(run)}", ""]
    if loop is None:
        lines.append("  No step was completed, so there is nothing to report.")
    else:
        window = last_window(analysis)
        said = advice.verdict(analysis.findings) or [f"Nothing stands out. {largest_phase(loop)}"]
        lines += [*(f"  {line}" for line in said), ""]
        rest = "--all-findings" if folder is None else f"lightning-perf analyze {_from_here(folder)} --all-findings"
        lines += _block(advice.changes(analysis.findings, everything=all_findings, rest=rest))
        if analysis.achieved is not None:
            lines += [f"  since the last run: {advice.outcome(analysis.achieved)}", ""]
        lines.append("  " + "   ".join([*_speed(loop), *_device(window), *_memory(run)]))
        lines.append("  " + _shares(loop))
        if loop.traced_step_time_us is not None:
            lines.append(f"  (under torch.profiler: {units.duration(loop.traced_step_time_us)} a step)")
    lines += ["", *(f"  note         {note}" for note in run.notes)]
    if folder is not None:
        lines.append(f"  report       {_from_here(folder / REPORT_FILE)}")
        if run.windows:
            root = _from_here(_log_root(folder))
            lines.append(f"  TensorBoard  tensorboard --logdir {root}     (tab {TAB_NAME})")
    return "\n".join(lines).rstrip()


def summarize_trace(window: Window, findings: Sequence[Finding] = (), *, all_findings: bool = False) -> str:
    """Summary of one trace file, with its findings."""
    complete = [step for step in window.steps if step.complete]
    rank = f" · rank {window.rank}" if window.rank is not None else ""
    lines = [f"{window.trace} · {units.count(window.events)} events{rank} · {_plural(len(complete), 'complete step')}"]
    if complete:
        values, unit = units.durations([step.duration_us for step in complete])
        lines.append(f"  steps    {' '.join(values)} {unit}")
        loading = sum(step.data_loading_us for step in complete) / sum(step.duration_us for step in complete)
        if loading:  # a trace without the loader's ranges does not tell
            lines.append(f"  data     {units.percent(loading)} of these steps went by inside the data loader")
    for device in window.devices:
        lines += [_device_line(device), *_idle_line(device)]
    for efficiency in window.efficiency:
        lines += _efficiency_line(efficiency)
    if window.memory is not None:
        lines += _memory_lines(window.memory)
    lines += [f"  quality  {note.message}" for note in window.quality]
    if findings:
        said = [f"  {line}" for line in advice.verdict(findings)]
        lines += ["", *said, *([""] if said else []), *_block(advice.changes(findings, everything=all_findings))]
    return "\n".join(lines).rstrip()


def emit(text: str) -> None:
    """Show a text through logging; on stderr if nobody has set logging up."""
    handler = None if log.hasHandlers() else logging.StreamHandler()
    level = log.level
    if handler is not None:
        log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    log.info("%s", text)
    log.setLevel(level)
    if handler is not None:
        log.removeHandler(handler)


def headline(run: RunInfo) -> str:
    """A run in one line: the model, its steps, how many were recorded, on what."""
    steps = 0 if run.loop is None else run.loop.plain.steps + run.loop.traced.steps
    traced = sum(window.last_step - window.first_step + 1 for window in run.windows)
    devices = ", ".join(dict.fromkeys(device.name for device in run.devices)) or f"CPU ({run.cpu_count} cores)"
    stage = "" if run.stage == "fit" else f" · {run.stage}"
    return f"{run.model}{stage} · {_plural(steps, 'step')}, {traced or 'none'} of them traced · {devices}"


def _log_root(folder: Path) -> Path:
    """Folder that holds the runs side by side, where the results lie as Lightning's loggers lay them."""
    return next((parent.parent for parent in folder.parents if parent.name.startswith("version_")), folder.parent)


def _from_here(path: Path) -> Path:
    """The path relative to the working directory if it lies in it."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):  # it does not, or the working directory is gone
        return path


def _block(lines: Sequence[str]) -> list[str]:
    """Indented, with an empty line after it."""
    return [*(f"  {line}" for line in lines), ""] if lines else []


def largest_phase(loop: Loop) -> str:
    """The phase that takes most of a step, as a sentence."""
    phase = max(PHASES, key=lambda phase: loop.phases_us[phase])
    share = loop.phases_us[phase] / loop.step_time_us.mean
    return (
        f"{_PHASE_NAMES[phase]} takes {units.percent(share)} of a step: "
        f"{units.duration(loop.phases_us[phase])} of {units.duration(loop.step_time_us.mean)} on average."
    )


def _speed(loop: Loop) -> list[str]:
    spread = loop.step_time_us
    parts = [
        f"step {units.duration(spread.p50)} (p95 {units.duration(spread.p95)})",
        f"{units.number(1e6 / spread.p50)} it/s",
    ]
    if loop.samples_per_second is not None:
        parts.append(f"{units.number(loop.samples_per_second)} samples/s")
    return parts


def _device(window: Window | None) -> list[str]:
    device = busiest_device(window) if window is not None else None
    if device is None or device.window is None or not device.window.duration_us:
        return []
    return [f"GPU busy {units.percent(device.window.busy_us / device.window.duration_us)}"]


def _memory(run: RunInfo) -> list[str]:
    if run.memory.allocated_bytes:
        index, peak = max(run.memory.allocated_bytes.items(), key=lambda item: item[1])
        total = next((device.memory_bytes for device in run.devices if str(device.index) == index), None)
        return [f"memory peak {units.size(peak)}" + (f" of {units.size(total)}" if total else "")]
    return [f"memory peak {units.size(run.memory.rss_bytes)}"] if run.memory.rss_bytes is not None else []


def _shares(loop: Loop) -> str:
    """Phases in the loop's order, in percent of the step; those under half a percent are left out."""
    shares = {phase: 100 * loop.phases_us[phase] / loop.step_time_us.mean for phase in PHASES}
    shown = [f"{phase} {share:.0f}" for phase, share in shares.items() if share >= 0.5]
    return " | ".join(shown) + "   (% of step)"


def _plural(number: int, noun: str) -> str:
    return f"{units.count(number)} {noun}{'' if number == 1 else 's'}"


def _idle_line(device: Device) -> list[str]:
    """The causes of the device's idle time that matter, the largest first."""
    measured = device.window
    if measured is None or not measured.idle_us:
        return []
    causes = sorted(measured.idle_causes_us.items(), key=lambda item: -item[1])
    shown = [
        f"{cause} {units.percent(idle_us / measured.idle_us)}" for cause, idle_us in causes[:MOST_CAUSES] if idle_us
    ]
    if not shown:
        return []
    return [f"  idle     {units.duration(measured.idle_us)}: {', '.join(shown)}"]


def _device_line(device: Device) -> str:
    measured = device.window
    name = f"device {device.index}" + (f" ({device.name})" if device.name else "")
    busy = measured.busy_us / measured.duration_us if measured is not None and measured.duration_us else None
    text = (
        f"  device   {name}: busy {units.percent(busy)}, {_plural(device.operations, 'operation')}, "
        f"{_plural(device.gaps, 'gap')}"
    )
    if not device.communication_us:
        return text
    exposed, communication = units.duration(device.exposed_communication_us), units.duration(device.communication_us)
    return f"{text}, communication {communication} of which {exposed} exposed"


def _efficiency_line(efficiency: Efficiency) -> list[str]:
    """How well a device was used: what is known of it, at most one line."""
    shares = {
        "SM {}": efficiency.sm_efficiency,
        "occupancy {}": efficiency.occupancy,
        "tensor cores {} of kernel time": efficiency.tensor_core_ratio,
    }
    parts = [text.format(units.percent(share)) for text, share in shares.items() if share is not None]
    if efficiency.arithmetic is not None and efficiency.arithmetic.achieved_flops_per_s is not None:
        parts.append(_achieved(efficiency.arithmetic, efficiency.arithmetic.achieved_flops_per_s))
    name = "host" if efficiency.device == CPU else f"device {efficiency.device}"
    return [f"  compute  {name}: {', '.join(parts)}"] if parts else []


def _achieved(arithmetic: Arithmetic, flops_per_s: float) -> str:
    least = "at least " if arithmetic.uncounted_calls else ""
    dtype = f" {arithmetic.flops_dtype}" if arithmetic.flops_dtype is not None else ""
    peak = f" = {units.percent(arithmetic.mfu)} of peak" if arithmetic.mfu is not None else ""
    return f"{least}{units.flops_per_s(flops_per_s)}{dtype}{peak}"


def _memory_lines(memory: TraceMemory) -> list[str]:
    """The peak of every device, what ran then, and how memory grows; of the host only how it grows."""
    lines = []
    for index in dict.fromkeys([*memory.peak_allocated_bytes, *memory.peaks, *memory.step_growth_bytes]):
        name = "host:" if index == CPU else f"device {index}:"
        parts = []
        if index in memory.peak_allocated_bytes:
            allocated, reserved = memory.peak_allocated_bytes[index], memory.peak_reserved_bytes.get(index)
            parts.append(f"peak {units.size(allocated)} allocated, {units.size(reserved)} reserved")
        if index in memory.peaks:
            parts += _at_peak(memory.peaks[index])
        growth = memory.step_growth_bytes.get(index, [])
        if sum(growth) > 0:
            parts.append(f"grows {units.size(sum(growth) / len(growth))} a step")
        if parts:
            lines.append(f"  memory   {name} {'; '.join(parts)}")
    return lines


def _at_peak(peak: MemoryPeak) -> list[str]:
    step = f"step {peak.step}" if peak.step is not None else None
    known = [part for part in (step, peak.phase, peak.module, peak.operator) if part is not None]
    return [f"peak in {', '.join(known)}"] if known else []
