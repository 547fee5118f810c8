"""Analysis -> pages: every view of a run, of a trace and of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Analysis, Window, busiest_device, last_window
from lightning_perf.names import PHASES
from lightning_perf.report.blocks import Block, Facts, Note, Page, StepRange, View, figure, plain, table
from lightning_perf.report.colors import HOST_COMPUTES
from lightning_perf.report.console import headline
from lightning_perf.report.figures import Figures
from lightning_perf.report.overview import overview
from lightning_perf.report.tables import Kind, Row, TableName, Value, table_of

NO_RUN: Final = (
    "This is a trace alone. PerfCallback keeps the time of every step of a run: "
    "Trainer(callbacks=[PerfCallback()]) writes it beside the traces."
)
NO_TRACE: Final = "No steps were recorded in a trace, so there is no timeline. See the notes for why."
_NOTHING_LISTED: Final[dict[TableName, str]] = {
    "operators": "This trace holds no operators: torch.profiler records them with ProfilerActivity.CPU.",
    "kernels": "This trace holds no kernels: it was recorded without a device, or without its activity.",
    "modules": "This trace names no modules: set PerfCallback(module_depth=2), or record with with_stack=True.",
    "collectives": "No rank talked to another in this trace.",
    "copies": "Nothing was copied to or from a device in this trace.",
    "gaps": "No device works in this trace, so it has no gaps.",
}
_GROUPS: Final[dict[TableName, tuple[str, ...]]] = {
    "operators": ("name", "call_site"),
    "kernels": (),
    "modules": ("source",),
    "collectives": ("collective", "dtype", "group"),
    "copies": ("kind", "memory"),
    "gaps": ("cause", "activity", "device", "host"),
}


def page(analysis: Analysis, window: int = -1) -> Page:
    """Everything that a browser shows of a run or of traces, with one of its windows.

    Args:
        analysis: of a run, or of traces.
        window: place of the window in ``analysis.windows``, from the end if negative. With -1 a run shows its own
            last window.

    Raises:
        IndexError: there is no such window (an analysis with none takes any).
    """
    shown = _window(analysis, window)
    place = analysis.windows.index(shown) if shown is not None else 0
    figures = Figures(analysis)
    findings = analysis.findings
    if shown is not None and analysis.run is None:
        findings = [one for one in findings if one.trace == shown.trace]
    views = [
        overview(analysis, shown, figures, place, findings),
        _loop_view(analysis, figures),
        _data_view(analysis, figures),
    ]
    if shown is None:
        views += [View(id=name, title=title, blocks=[Note(title=title, text=NO_TRACE)]) for name, title in _OF_A_WINDOW]
    else:
        views += _window_views(shown, figures, place, on_cpu=analysis.run is not None and not analysis.run.devices)
    return Page(
        title=plain(headline(analysis.run) if analysis.run is not None else _trace_title(shown)),
        subtitle=plain(_subtitle(analysis, shown)),
        notes=[plain(note) for note in _notes(analysis, shown)],
        steps=[
            StepRange(number=step.number, start_us=step.start_us, end_us=step.start_us + step.duration_us)
            for step in (shown.steps if shown is not None else [])
        ],
        views=views,
        trace=Path(shown.trace).name if shown is not None else None,
    )


def _window(analysis: Analysis, place: int) -> Window | None:
    if not analysis.windows:
        return None
    own = last_window(analysis) if place == -1 else None
    return own or analysis.windows[place]


_OF_A_WINDOW: Final = (
    ("steps", "Steps"),
    ("gaps", "Device and gaps"),
    ("operators", "Operators"),
    ("kernels", "Kernels"),
    ("modules", "Modules"),
    ("memory", "Memory"),
)


def _window_views(window: Window, figures: Figures, place: int, *, on_cpu: bool) -> list[View]:
    """The views of a window. A run ``on_cpu`` had no device, so that there is none to be missed."""
    blocks: dict[str, list[Block]] = {
        "steps": [figure("steps", lambda: figures.steps(place), title="Steps"), _steps_table(window)],
        "gaps": [
            *([] if on_cpu else [figure("device", lambda: figures.device(place), title="What the device did")]),
            figure("gaps", lambda: figures.gaps(place), title="Device and host over time", zooms=True),
            *(
                [_listed(window, "gaps", "The largest gaps", zoom="gaps"), _idle_table(window)]
                if window.devices
                else []
            ),
            _host_table(window),
        ],
        "operators": _either(
            figure("operators", lambda: figures.operators(place), title="Operators"),
            _listed(window, "operators", "Operators"),
        ),
        "kernels": [
            *_either(
                figure("kernels", lambda: figures.kernels(place), title="Kernels"),
                _listed(window, "kernels", "Kernels"),
            ),
            *_either(
                figure("communication", lambda: figures.communication(place), title="Communication"),
                _listed(window, "collectives", "Collectives"),
            ),
            _listed(window, "copies", "Copies"),
        ],
        "modules": _either(
            figure("modules", lambda: figures.modules(place), title="Modules"),
            _listed(window, "modules", "Modules"),
        ),
        "memory": [figure("memory", lambda: figures.memory(place), title="Memory"), *_memory_blocks(window)],
    }
    return [View(id=name, title=title, blocks=blocks[name]) for name, title in _OF_A_WINDOW]


def _either(drawn: Block, listed: Block) -> list[Block]:
    """A figure and the table of the same; once, where neither has anything to show."""
    return [listed] if isinstance(drawn, Note) and isinstance(listed, Note) else [drawn, listed]


def _trace_title(window: Window | None) -> str:
    if window is None:
        return "no trace"
    complete = sum(step.complete for step in window.steps)
    devices = ", ".join(dict.fromkeys(one.name or f"device {one.index}" for one in window.devices)) or "no device"
    steps = f"{complete} complete step{'' if complete == 1 else 's'}"
    return f"{Path(window.trace).name} · {steps} · {devices}"


def _subtitle(analysis: Analysis, window: Window | None) -> str:
    parts = []
    run = analysis.run
    if run is not None:
        began = datetime.fromtimestamp(run.created_unix_ns / 1e9, tz=timezone.utc)
        parts += [f"{began:%Y-%m-%d %H:%M} UTC", f"torch {run.versions.torch}", f"lightning {run.versions.lightning}"]
    if window is not None:
        parts += [f"rank {window.rank}"] if window.rank is not None else []
        numbers = [step.number for step in window.steps]
        parts += [f"trace of {steps_text(numbers)}"] if numbers else []
        parts += [f"{units.count(window.events)} events over {units.duration(window.duration_us)}"]
    return " · ".join(parts)


def steps_text(numbers: Sequence[int]) -> str:
    """Which steps a trace holds: "steps 4 to 9"."""
    first, last = min(numbers), max(numbers)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _notes(analysis: Analysis, window: Window | None) -> list[str]:
    """What is to know about how good the record is."""
    of_run = analysis.run.notes if analysis.run is not None else []
    of_trace = [note.message for note in window.quality] if window is not None else []
    return [*of_run, *of_trace]


def _loop_view(analysis: Analysis, figures: Figures) -> View:
    if analysis.run is None:
        return View(id="loop", title="Loop", blocks=[Note(title="The whole run", text=NO_RUN)])
    blocks: list[Block] = [
        figure("loop", figures.loop, title="The whole run"),
        figure("phases", figures.phases, title="Where a step goes"),
        figure("hooks", figures.hooks, title="What the loop called"),
    ]
    loop = analysis.loop
    phases = {span.name: span for span in (analysis.run.loop.spans if analysis.run.loop is not None else [])}
    if loop is not None:
        rows: list[Row] = [
            {
                "name": name,
                "phase": phases[name].phase if name in phases else None,
                "a_step_us": spent,
                "share_ratio": spent / loop.step_time_us.mean,
                "calls": phases[name].calls if name in phases else None,
            }
            for name, spent in loop.hooks_us.items()
        ]
        columns: list[tuple[str, Kind]] = [
            ("name", "text"),
            ("phase", "text"),
            ("a_step_us", "time"),
            ("share_ratio", "ratio"),
            ("calls", "count"),
        ]
        blocks.append(table("hooks-table", "Hooks and actions, exclusive time", columns, rows, group_by=["phase"]))
    return View(id="loop", title="Loop", blocks=blocks)


def _data_view(analysis: Analysis, figures: Figures) -> View:
    if analysis.run is None:
        return View(id="data", title="Data", blocks=[Note(title="The input pipeline", text=NO_RUN)])
    blocks: list[Block] = [figure("data", figures.data, title="The input pipeline")]
    loop, record = analysis.loop, analysis.run.loop
    if loop is not None and record is not None:
        stages: list[Row] = [
            {"name": span.name, "phase": span.phase, "a_step_us": loop.hooks_us.get(span.name), "calls": span.calls}
            for span in record.spans
            if span.phase in ("data", "transfer")
        ]
        stages.sort(key=lambda row: -float(row["a_step_us"] or 0.0))
        columns: list[tuple[str, Kind]] = [
            ("name", "text"),
            ("phase", "text"),
            ("a_step_us", "time"),
            ("calls", "count"),
        ]
        blocks.append(table("stages", "Stages that the loop waits for", columns, stages))
    fields: list[tuple[str, Kind]] = [
        ("stage", "text"),
        ("loader_class", "text"),
        ("dataset_class", "text"),
        ("collate", "text"),
        ("batch_size", "count"),
        ("length", "count"),
        ("num_workers", "text"),
        ("prefetch_factor", "text"),
        ("pin_memory", "text"),
        ("persistent_workers", "text"),
    ]
    loaders: list[Row] = [
        {key: _setting(getattr(loader, key), kind) for key, kind in fields} for loader in analysis.run.loaders
    ]
    blocks.append(table("loaders", "Loaders", fields, loaders))
    return View(id="data", title="Data", blocks=blocks)


def _setting(value: Value, kind: Kind) -> Value:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value is not None and kind == "text" else value


def _listed(window: Window, name: TableName, title: str, *, zoom: str | None = None) -> Block:
    listed = table_of(window, name, top=None)
    if not listed.rows:
        return Note(title=title, text=_NOTHING_LISTED[name])
    columns = [(column.key, column.kind) for column in listed.columns]
    return table(f"{name}-table", title, columns, listed.rows, group_by=_GROUPS[name], zoom=zoom)


def _steps_table(window: Window) -> Block:
    if not window.steps:
        return Note(title="Steps", text="This trace marks no steps; call prof.step() after each, or use PerfCallback.")
    rows: list[Row] = [
        {
            "step": step.number,
            "complete": "yes" if step.complete else "cut short",
            "duration_us": step.duration_us,
            "data_loading_us": step.data_loading_us,
            **{f"{phase}_us": step.phases_us.get(phase) for phase in PHASES},
            **{f"device {index} busy_us": busy for index, busy in step.device_busy_us.items()},
            "start_us": step.start_us,
        }
        for step in window.steps
    ]
    columns: list[tuple[str, Kind]] = [
        (key, "index" if key == "step" else "text" if key == "complete" else "time") for key in rows[0]
    ]
    return table("steps-table", "Recorded steps", columns, rows, names={"data_us": "data (phase)"})


def _idle_table(window: Window) -> Block:
    device = busiest_device(window)
    measured = device.window if device is not None else None
    if measured is None or not measured.idle_shares:
        return Note(title="Idle time by cause", text="No idle time of a device was measured in this trace.")
    rows: list[Row] = [
        {
            "cause": share.cause,
            "activity": share.activity,
            "idle_us": share.idle_us,
            "share_of_idle_ratio": share.idle_us / measured.idle_us,
            "a_step_us": share.idle_us / measured.steps if measured.steps else None,
        }
        for share in measured.idle_shares
    ]
    columns: list[tuple[str, Kind]] = [
        ("cause", "text"),
        ("activity", "text"),
        ("idle_us", "time"),
        ("share_of_idle_ratio", "ratio"),
        ("a_step_us", "time"),
    ]
    return table(
        "idle-table",
        "Why the device was idle",
        columns,
        rows,
        group_by=["cause", "activity"],
        aid="Cause: what it waited for. Activity: where in the loop the host was. The parts add up to the idle time.",
    )


def _host_table(window: Window) -> Block:
    total_us = sum(share.time_us for share in window.host)
    rows: list[Row] = [
        {
            "cause": HOST_COMPUTES if share.cause == "launch" and not window.devices else share.cause,
            "activity": share.activity,
            "time_us": share.time_us,
            "share_ratio": share.time_us / total_us if total_us else None,
        }
        for share in window.host
    ]
    columns: list[tuple[str, Kind]] = [
        ("cause", "text"),
        ("activity", "text"),
        ("time_us", "time"),
        ("share_ratio", "ratio"),
    ]
    return table(
        "host-table",
        "What the loop's thread did",
        columns,
        rows,
        group_by=["cause", "activity"],
        names={"cause": "kind"},
    )


def _memory_blocks(window: Window) -> list[Block]:
    memory = window.memory
    if memory is None:
        return []
    blocks: list[Block] = []
    for device, peak in memory.peaks.items():
        facts = [
            ("allocated", units.size(peak.allocated_bytes)),
            ("reserved beyond it", units.size(peak.unallocated_bytes)),
            ("at", units.duration(peak.time_us) + " into the trace"),
            ("step", units.UNKNOWN if peak.step is None else str(peak.step)),
            ("phase", peak.phase or units.UNKNOWN),
            ("module", plain(peak.module or units.UNKNOWN)),
            ("operator", plain(peak.operator or units.UNKNOWN)),
        ]
        blocks.append(Facts(title=f"The peak of device {device}", facts=facts))
    growth: list[Row] = [
        {"device": device, "step": number, "growth_bytes": grown}
        for device, steps in memory.step_growth_bytes.items()
        for number, grown in enumerate(steps, 1)
    ]
    if any(row["growth_bytes"] for row in growth):
        columns: list[tuple[str, Kind]] = [("device", "text"), ("step", "count"), ("growth_bytes", "bytes")]
        blocks.append(
            table(
                "growth-table",
                "Growth from the end of one step to the next",
                columns,
                growth,
                group_by=["device"],
                names={"step": "after step"},
                aid="Growth that goes on is a leak.",
            )
        )
    elif growth:
        blocks.append(
            Note(title="Growth from step to step", text="None: each step ends with as much as the one before.")
        )
    return blocks


def ranks_page(analysis: Analysis) -> View:
    """Ranks side by side: how long their steps took, what they waited for and what they held."""
    return View(
        id="ranks",
        title="Ranks",
        blocks=[figure("ranks", Figures(analysis).ranks, title="Ranks"), _ranks_table(analysis.windows)],
    )


def _ranks_table(windows: Sequence[Window]) -> Block:
    rows: list[Row] = []
    for window in windows:
        complete = [step for step in window.steps if step.complete]
        device = busiest_device(window)
        rows.append(
            {
                "rank": window.rank,
                "trace": Path(window.trace).name,
                "steps": len(complete),
                "mean_us": fmean(step.duration_us for step in complete) if complete else None,
                "data_loading_us": fmean(step.data_loading_us for step in complete) if complete else None,
                "busy_us": device.busy_us if device is not None else None,
                "communication_us": device.communication_us if device is not None else None,
                "exposed_communication_us": device.exposed_communication_us if device is not None else None,
                "peak_bytes": max(window.memory.peak_allocated_bytes.values(), default=None)
                if window.memory is not None
                else None,
            }
        )
    columns: list[tuple[str, Kind]] = [
        ("rank", "index"),
        ("trace", "text"),
        ("steps", "count"),
        ("mean_us", "time"),
        ("data_loading_us", "time"),
        ("busy_us", "time"),
        ("communication_us", "time"),
        ("exposed_communication_us", "time"),
        ("peak_bytes", "bytes"),
    ]
    return table(
        "ranks-table", "Traces", columns, rows, names={"mean_us": "step, mean", "data_loading_us": "data a step"}
    )
