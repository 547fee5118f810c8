"""What each tool gets out of traces: this package, HTA and torch-tb-profiler, beside what the files say.

``python benchmarks/coverage.py FILE...`` prints one table. Without a file it uses one that speed.py records.
"In the file" comes from the JSON alone, by names and categories: the numbers of its steps, its device operations, the
time between the first and the last of these in which none ran, and the time in the ranges of torch's data loader. In
bold is what is more than 1 % off that: a mistake, or another definition. Everything runs in a process of its own, with
a timeout.

HolisticTraceAnalysis (HTA) needs an environment of its own, named with ``--hta-python``: see speed.py. What it reads
depends on the pandas beside it, so both versions head its column.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten

from printing import command, machine, table
from speed import UNKNOWN, Facts, in_a_process, name_of, progress, pythons_of, record_trace, traces_at, unpacked

Reader = Callable[[Path], Iterator[Facts]]

OPERATIONS = {"kernel", "memcpy", "memset", "gpu_memcpy", "gpu_memset", "mtia_ccp_events"}
"""Categories of device operations, in lower case."""
FIGURES = ("steps", "operations", "idle_us", "loading_us")
TOLERANCE = 0.01
ERROR_LENGTH = 60
INSTALL = {
    "HTA": "`python -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0`, `--hta-python hta/bin/python`",
    "torch-tb-profiler": "`pip install torch-tb-profiler==0.4.3 pandas` in this environment",
}


# What runs in the processes. Each function yields what it finds as soon as it has it: the next thing may fail.


def in_the_file(trace: Path) -> Iterator[Facts]:
    """Count what the JSON holds, in exact decimal arithmetic."""
    from decimal import Decimal

    file = json.loads(unpacked(trace), parse_float=Decimal)
    events = file["traceEvents"] if isinstance(file, dict) else file
    ranges = [event for event in events if event.get("ph") == "X"]
    steps = {event["name"] for event in ranges if event["name"].startswith("ProfilerStep#")}
    fetches = [event for event in ranges if event["name"].startswith("enumerate(DataLoader)#")]
    operations = [event for event in ranges if event.get("cat", "").lower() in OPERATIONS]
    idle = Decimal()
    ends: dict[object, Decimal] = {}
    for operation in sorted(operations, key=lambda event: event["ts"]):
        device, start = operation["pid"], operation["ts"]
        end = ends.setdefault(device, start)
        idle += max(Decimal(), start - end)
        ends[device] = max(end, start + operation["dur"])
    loading = sum(event["dur"] for event in fetches)
    yield {"steps": len(steps), "operations": len(operations), "idle_us": float(idle), "loading_us": float(loading)}


def ours(trace: Path) -> Iterator[Facts]:
    """Decode and measure."""
    from lightning_perf.pipeline import analyze_trace

    window = analyze_trace(trace)
    yield {
        "steps": len(window.steps),
        "operations": sum(device.operations for device in window.devices),
        "idle_us": sum(device.idle_us for device in window.devices),
        "loading_us": sum(step.data_loading_us for step in window.steps),
    }


def hta(trace: Path) -> Iterator[Facts]:
    """Open, and break device time down; an operation is what that breakdown takes for one."""
    from hta.trace_analysis import TraceAnalysis

    yield {"heading": f"HTA {version('HolisticTraceAnalysis')} (pandas {version('pandas')})"}
    analysis = TraceAnalysis(trace_files={0: str(trace)})
    on_device = analysis.t.get_trace(0)["stream"].ne(-1)
    yield {"steps": len(analysis.get_profiler_steps()), "operations": int(on_device.sum())}
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    yield {"idle_us": float(breakdown["idle_time(us)"].sum())}


def tb_profiler(trace: Path) -> Iterator[Facts]:
    """Everything that the tab shows; it has no idle time."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.overall_parser import ProfileRole
    from torch_tb_profiler.profiler.run_generator import RunGenerator
    from torch_tb_profiler.profiler.trace import EventTypes

    yield {"heading": f"torch-tb-profiler {version('torch-tb-profiler')} (pandas {version('pandas')})"}
    on_device = {EventTypes.KERNEL, EventTypes.MEMCPY, EventTypes.MEMSET}
    with tempfile.TemporaryDirectory() as cache:
        data = RunProfileData.parse("worker", None, str(trace), cache)
        yield {
            "steps": len(data.steps_costs),
            "operations": sum(event.type in on_device for event in data.events),
            "loading_us": sum(step.costs[ProfileRole.DataLoader] for step in data.steps_costs),
        }
        RunGenerator("worker", None, data).generate_run_profile()


READERS: dict[str, Reader] = {"in the file": in_the_file, "ours": ours, "HTA": hta, "torch-tb-profiler": tb_profiler}


def work(tool: str, trace: Path) -> Facts:
    """What one tool finds in this process, up to where it fails."""
    facts: Facts = {}
    try:
        for found in READERS[tool](trace):
            facts |= found
    except Exception as error:  # noqa: BLE001 - that tools fail, and how, is a result
        message = f"{type(error).__name__}: {error}".replace(str(trace), trace.name).replace("|", "/")
        facts["error"] = shorten(message, ERROR_LENGTH, placeholder=" ...")
    return facts


# What starts them.


def cell(found: Facts, file: Facts) -> str:
    """What a tool found, in words."""
    figures = ", ".join(
        _figure(name, float(found[name]), float(file.get(name, found[name])))
        for name in FIGURES
        if name in found and (found[name] or file.get(name))
    )
    if "error" in found:
        return f"{figures}{', then ' if figures else ''}fails: {found['error']}"
    return f"read: {figures}" if figures else "read"


def _figure(name: str, value: float, expected: float) -> str:
    if name == "idle_us":
        text = f"idle {value / 1e3:,.1f} ms"
    elif name == "loading_us":
        text = f"loading {value / 1e3:,.1f} ms"
    else:
        text = f"{value:,.0f} {name if value != 1 else name.removesuffix('s')}"
    return f"**{text}**" if abs(value - expected) > TOLERANCE * expected else text


def main() -> None:
    """Print the table, and how to install what is missing from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="FILE", help="trace files, or folders of them")
    parser.add_argument("--hta-python", metavar="PYTHON", help="Python of an environment that has HTA")
    parser.add_argument("--in-a-process", nargs=2, metavar=("TOOL", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_a_process:
        tool, path = options.in_a_process
        print(f"\n{json.dumps(work(tool, Path(path)))}")
        return

    pythons = {"in the file": sys.executable, **pythons_of(options.hta_python)}
    with tempfile.TemporaryDirectory() as folder:
        traces = traces_at(options.traces) or [record_trace(Path(folder))]
        print(f"`{command(options.traces)}`\n\n{machine(['torch-tb-profiler', 'pandas'])}\n")
        print(coverage_table(traces, pythons))
    for tool in READERS:
        if tool not in pythons:
            print(f"\n{tool} is not installed: {INSTALL[tool]}.")


def coverage_table(traces: Sequence[Path], pythons: dict[str, str]) -> str:
    """One row for each trace."""
    headings = {tool: tool for tool in READERS}
    rows = []
    for done, trace in enumerate(traces):
        found: dict[str, Facts] = {}
        for tool in READERS:
            progress(f"{done + 1} of {len(traces)}: {name_of(trace)}, {tool}")
            if tool in pythons:
                found[tool] = in_a_process(pythons[tool], tool, trace.resolve(), __file__)
                headings[tool] = str(found[tool].get("heading", headings[tool]))
        file = found["in the file"]
        cells = [cell(found[tool], file) if tool in found else UNKNOWN for tool in READERS]
        rows.append([name_of(trace), cells[0].removeprefix("read: "), *cells[1:]])
    progress("")
    return table(["trace", *headings.values()], rows, texts=1 + len(headings))


if __name__ == "__main__":
    main()
