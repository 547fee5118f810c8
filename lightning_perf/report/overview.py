"""The overview: the verdict and what to change beside what shows it, key figures, what ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING, Final

from lightning_perf import units
from lightning_perf.measure.analysis import Analysis, Window, busiest_device
from lightning_perf.measure.efficiency import CPU
from lightning_perf.measure.finding import Finding, is_a_guess
from lightning_perf.report import advice
from lightning_perf.report.blocks import Block, Card, Facts, Findings, Tile, Tiles, View, figure, plain
from lightning_perf.report.console import largest_phase
from lightning_perf.runinfo import LoaderFacts, RunInfo

if TYPE_CHECKING:
    from lightning_perf.report.figures import Figures

STRIP_PX: Final = 180
"""Height of a figure that is one bar: its title, its axis and its legend are most of it."""

BAND_PX: Final = 250

_NO_STEP: Final = "no complete step is marked"

_VIEW_OF_RULES: Final = {"data": "data", "comm": "kernels", "mem": "memory", "sync": "gaps", "transfer": "gaps"}
_VIEW_OF_RULE: Final = {
    "host.hook": "loop",
    "host.logging": "loop",
    "host.checkpoint": "loop",
    "host.validation": "loop",
    "host.progress_bar": "loop",
    "host.gc": "loop",
    "gpu.low_occupancy": "kernels",
    "gpu.small_kernels": "kernels",
    "gpu.compute_bound": "kernels",
}


def overview(analysis: Analysis, window: Window | None, figures: Figures, place: int, findings: list[Finding]) -> View:
    """Verdict, findings and figures of a run or of a trace, its key figures, and what is known of its set-up.

    Args:
        analysis: the run, or the traces.
        window: the trace that is shown, if there is one.
        figures: of the analysis.
        place: of the window in the analysis.
        findings: the run's, or this window's.
    """
    side: list[Block] = []
    if analysis.loop is not None:
        side.append(figure("overview-loop", figures.loop, title="The whole run", height_px=BAND_PX))
    elif window is not None:
        side.append(figure("overview-steps", lambda: figures.steps(place), title="Steps", height_px=BAND_PX))
    side.append(figure("overview-phases", figures.phases, title="Where a step goes", height_px=STRIP_PX))
    if window is not None and window.devices:
        side.append(
            figure("overview-device", lambda: figures.device(place), title="What the device did", height_px=STRIP_PX)
        )
    below: list[Block] = [Tiles(tiles=_tiles(analysis, window))]
    if analysis.run is not None:
        below.append(Facts(title="Set-up", facts=setup_facts(analysis.run)))
    return View(id="overview", title="Overview", blocks=[_advice(analysis, findings, window)], side=side, below=below)


def _advice(analysis: Analysis, findings: list[Finding], window: Window | None) -> Findings:
    said = advice.verdict(findings) or [_nothing(analysis, window)]
    cards, number = [], 0
    for one in findings:
        if one.saving_us_per_step is not None:
            number += 1
        cards.append(_card(one, number if one.saving_us_per_step is not None else None))
    outcome = f"Since the last run: {advice.outcome(analysis.achieved)}." if analysis.achieved is not None else None
    return Findings(verdict=[plain(line) for line in said], cards=cards, outcome=outcome)


def _nothing(analysis: Analysis, window: Window | None) -> str:
    if analysis.loop is not None:
        return f"Nothing stands out. {largest_phase(analysis.loop)}"
    if analysis.run is not None:
        return "No step was completed, so there is nothing to report."
    if window is not None and not window.devices and not any(step.complete for step in window.steps):
        return "This trace marks no steps and has no device: there is little to say about it."
    return "Nothing stands out."


def _card(finding: Finding, number: int | None) -> Card:
    why = [*finding.evidence]
    why += [f"Where: {finding.where}"] if finding.where else []
    why += [f"If {finding.assumption}."] if finding.assumption else []
    why += [f"Mind: {risk}" for risk in finding.risks]
    verb = "may save" if is_a_guess(finding) else "saves"
    return Card(
        number=number,
        title=plain(finding.title),
        gain=f"{verb} {advice.gain(finding)}" if number is not None else None,
        action=finding.action,
        why=[plain(line) for line in why],
        severity=finding.severity,
        rule=finding.rule,
        link=finding.link,
        view=_VIEW_OF_RULE.get(finding.rule, _VIEW_OF_RULES.get(finding.rule.split(".")[0])),
    )


def _tiles(analysis: Analysis, window: Window | None) -> list[Tile]:
    of_window = _window_tiles(analysis, window) if window is not None else []
    return [*_loop_tiles(analysis), *of_window, *_memory(analysis)]


def _loop_tiles(analysis: Analysis) -> list[Tile]:
    loop = analysis.loop
    if loop is None:
        return []
    spread = loop.step_time_us
    tiles = [
        Tile(
            label="step time, median",
            value=units.duration(spread.p50),
            note=f"p95 {units.duration(spread.p95)}, longest {units.duration(spread.max)}",
            view="loop",
        ),
        Tile(label="steps a second", value=f"{units.number(1e6 / spread.p50)} it/s", view="loop"),
        Tile(
            label="throughput",
            value=units.UNKNOWN
            if loop.samples_per_second is None
            else f"{units.number(loop.samples_per_second)} samples/s",
            note="the batches do not tell how many samples they hold" if loop.samples_per_second is None else None,
            view="loop",
        ),
        Tile(
            label="waiting for data",
            value=units.percent(loop.data_loading_ratio),
            note="of the run's step time",
            view="data",
        ),
    ]
    if loop.epoch_start_us is not None:
        start = loop.epoch_start_us
        tiles.append(
            Tile(
                label="start of an epoch",
                value=units.duration(start.iterator + start.first_fetch),
                note=f"until its first batch is there; {units.count(start.epochs)} epochs",
                view="data",
            )
        )
    if loop.traced_step_time_us is not None:
        tiles.append(
            Tile(
                label="under the profiler",
                value=units.duration(loop.traced_step_time_us),
                note="a step while it was recorded: left out of the other figures",
                view="steps",
            )
        )
    return tiles


def _window_tiles(analysis: Analysis, window: Window) -> list[Tile]:
    beside = [one for one in analysis.windows if one.rank == window.rank]
    tiles = []
    if analysis.loop is None:
        tiles.append(_trended("recorded step, median", window, beside, _step_us, units.duration, _NO_STEP, "steps"))
    if window.devices or analysis.run is None or analysis.run.devices:
        why_not = "no device works in this trace"
        tiles.append(_trended("device busy", window, beside, _busy, units.percent, why_not, "gaps"))
    if busiest_device(window) is not None:
        tiles.append(_trended("gaps a step", window, beside, _gaps, _whole, _NO_STEP, "gaps"))
    for one in window.efficiency:
        if one.arithmetic is not None and one.arithmetic.achieved_flops_per_s is not None:
            peak = one.arithmetic.mfu
            tiles.append(
                Tile(
                    label="computing" if one.device == CPU else f"computing, device {one.device}",
                    value=units.flops_per_s(one.arithmetic.achieved_flops_per_s),
                    note=f"{units.percent(peak)} of its peak" if peak is not None else None,
                    view="operators",
                )
            )
        if one.device != CPU:
            tiles += [
                Tile(label=f"{label}, device {one.device}", value=units.percent(share), note=note, view="kernels")
                for label, note, share in (
                    ("SM efficiency", "multiprocessors with work, all the time", one.sm_efficiency),
                    ("occupancy", "resident warps, while kernels ran", one.occupancy),
                    ("tensor cores", "of kernel time, at least", one.tensor_core_ratio),
                )
                if share is not None
            ]
    memory = window.memory
    for device, peak_bytes in (memory.peak_allocated_bytes if memory is not None else {}).items():
        tiles.append(Tile(label=f"memory peak, device {device}", value=units.size(peak_bytes), view="memory"))
    return tiles


def _trended(
    label: str,
    window: Window,
    beside: Iterable[Window],
    of: Callable[[Window], float | None],
    text: Callable[[float], str],
    why_not: str,
    view: str,
) -> Tile:
    """A tile of a figure that every window has, or none."""
    value = of(window)
    values = [one for one in map(of, beside) if one is not None]
    return Tile(
        label=label,
        value=units.UNKNOWN if value is None else text(value),
        note=why_not if value is None else None,
        view=view,
        trend=values if len(values) > 1 else [],
    )


def _step_us(window: Window) -> float | None:
    complete = [step.duration_us for step in window.steps if step.complete]
    return median(complete) if complete else None


def _busy(window: Window) -> float | None:
    device = busiest_device(window)
    measured = device.window if device is not None else None
    return measured.busy_us / measured.duration_us if measured is not None and measured.duration_us else None


def _whole(value: float) -> str:
    return units.count(round(value))


def _gaps(window: Window) -> float | None:
    device = busiest_device(window)
    measured = device.window if device is not None else None
    return measured.gaps / measured.steps if measured is not None and measured.steps else None


def _memory(analysis: Analysis) -> list[Tile]:
    if analysis.run is None:
        return []
    peaks = analysis.run.memory
    tiles = [
        Tile(label=f"memory peak, device {device}", value=units.size(peak), note="of the run", view="memory")
        for device, peak in peaks.allocated_bytes.items()
    ]
    if peaks.rss_bytes is not None:
        resident = units.size(peaks.rss_bytes)
        tiles.append(Tile(label="memory peak, process", value=resident, note="resident, of the run", view="memory"))
    return tiles


def setup_facts(run: RunInfo) -> list[tuple[str, str]]:
    """What a run ran on and with, for people."""
    versions, flags, trainer = run.versions, run.flags, run.trainer
    devices = ", ".join(f"{one.name} ({units.size(one.memory_bytes)})" for one in run.devices)
    facts = [
        ("model", run.model),
        ("devices", devices or "none: trained on the CPU"),
        ("ranks", f"{run.world_size}, this is rank {run.rank}"),
        ("CPU cores", units.count(run.cpu_count)),
        ("torch", versions.torch + (f", CUDA {versions.cuda}" if versions.cuda else "")),
        ("lightning", versions.lightning),
        ("python", versions.python),
        ("lightning_perf", versions.lightning_perf),
    ]
    if trainer is not None:
        facts += [
            ("precision", trainer.precision),
            ("strategy", trainer.strategy),
            ("accumulate_grad_batches", str(trainer.accumulate_grad_batches)),
            ("loggers", ", ".join(trainer.loggers) or "none"),
            ("callbacks", ", ".join(trainer.callbacks) or "none"),
        ]
    facts += [
        (f"loader {place}" if len(run.loaders) > 1 else "loader", _loader_text(one))
        for place, one in enumerate(run.loaders)
    ]
    facts += [
        (f"optimizer {place}" if len(run.optimizers) > 1 else "optimizer", _optimizer_text(run, place))
        for place in range(len(run.optimizers))
    ]
    facts += [
        ("torch.compile", _yes(flags.compiled)),
        ("cudnn.benchmark", _yes(flags.cudnn_benchmark)),
        ("deterministic", _yes(flags.deterministic_algorithms or flags.cudnn_deterministic)),
        ("float32 matmul precision", flags.float32_matmul_precision or units.UNKNOWN),
        ("channels_last", _yes(flags.channels_last)),
        ("threads of torch", units.count(flags.torch_threads)),
    ]
    return [(name, plain(value)) for name, value in facts]


def _loader_text(one: LoaderFacts) -> str:
    parts = [] if one.batch_size is None else [f"batches of {units.count(one.batch_size)}"]
    parts += [] if one.num_workers is None else [f"num_workers={one.num_workers}"]
    parts += [
        name for name, on in (("persistent_workers", one.persistent_workers), ("pin_memory", one.pin_memory)) if on
    ]
    return f"{one.loader_class} ({', '.join(parts)})" if parts else one.loader_class


def _optimizer_text(run: RunInfo, place: int) -> str:
    one = run.optimizers[place]
    how = [name for name, on in (("foreach", one.foreach), ("fused", one.fused)) if on]
    return (
        f"{one.optimizer_class} over {units.count(one.parameter_tensors)} tensors, "
        f"{units.count(one.parameters)} parameters" + (f" ({', '.join(how)})" if how else "")
    )


def _yes(flag: bool | None) -> str:  # noqa: FBT001
    return units.UNKNOWN if flag is None else "on" if flag else "off"
