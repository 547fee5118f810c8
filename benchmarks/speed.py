"""How fast and in how much memory traces are read: this package, the floor beneath it, and other tools.

``python benchmarks/speed.py FILE...`` prints one table. Without a file it uses one that it records itself.
The floor is what no reader of these files can go below: unpacking, and the typed JSON decode that ``decode`` uses.
Every measurement runs in a process of its own, interleaved with the others. Time excludes imports; memory is the
process's peak resident size less that after the imports.

HolisticTraceAnalysis (HTA) needs JupyterLab; to keep it out of this environment, install
``HolisticTraceAnalysis==0.5.0`` in another one and name that one's Python with ``--hta-python``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# Nothing heavy is imported up here: on Linux, a process that is started inherits the peak of the one that starts it.
from printing import command, machine, table

Facts = dict[str, int | float | str]
Tool = Callable[[Path], Facts]

MIB = 1 << 20
MEANINGFUL = 1_000_000
"""Bytes of JSON from which on ratios are given."""
UNKNOWN = "-"
TIMEOUT_S = 300
"""Longest time that one process may take."""


def unpacked(trace: Path) -> bytes:
    """The JSON of a trace, gzipped or not."""
    import gzip

    content = trace.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


# What runs in the measured processes. Each function imports its tool and returns what is measured.


def floor() -> Tool:
    """Unpack and decode."""
    import gzip  # noqa: F401 - the first call would import it

    from lightning_perf.decode.events import decode_file

    def run(trace: Path) -> Facts:
        content = unpacked(trace)
        file = decode_file(content, exact=False)
        events = file if isinstance(file, list) else file.events or []
        return {"bytes": len(content), "events": len(events)}

    return run


def ours() -> Tool:
    """Decode and measure, without the replay that advice is made from."""
    # The first call would import these; numpy.ma is numpy's own doing.
    import numpy.ma  # noqa: F401

    import lightning_perf.decode.reader
    import lightning_perf.measure.window  # noqa: F401
    from lightning_perf.pipeline import analyze_trace

    def run(trace: Path) -> Facts:
        return {"events": analyze_trace(trace, what_if=False).events}

    return run


def hta() -> Tool:
    """HTA's two breakdowns of device time."""
    from hta.trace_analysis import TraceAnalysis

    def run(trace: Path) -> Facts:
        analysis = TraceAnalysis(trace_files={0: str(trace)})
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
        return {}

    return run


def tb_profiler() -> Tool:
    """Everything that torch-tb-profiler does before its tab can show a trace."""
    from torch_tb_profiler.profiler.data import DistributedRunProfileData, RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    def run(trace: Path) -> Facts:
        with tempfile.TemporaryDirectory() as cache:
            data = RunProfileData.parse("worker", None, str(trace), cache)
            RunGenerator("worker", None, data).generate_run_profile()
            DistributedRunProfileData(data)
        return {}

    return run


def hta_open() -> Tool:
    """What HTA sees in a trace without device events."""
    from hta.trace_analysis import TraceAnalysis

    def run(trace: Path) -> Facts:
        analysis = TraceAnalysis(trace_files={0: str(trace)})
        steps = ", ".join(map(str, analysis.get_profiler_steps()))
        return {"events": len(analysis.t.get_trace(0)), "steps": steps}

    return run


def record() -> Tool:
    """Train on the CPU with PerfCallback; the window's trace goes into the given folder."""
    import logging
    import warnings

    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn

    from lightning_perf import PerfCallback

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(60)))

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    def run(folder: Path) -> Facts:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            callbacks=[PerfCallback(dirpath=str(folder), summary=False)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(30 * 32, 64), batch_size=32))
        return {}

    return run


MEASURED: dict[str, Callable[[], Tool]] = {"floor": floor, "ours": ours, "HTA": hta, "torch-tb-profiler": tb_profiler}
IN_A_PROCESS = {**MEASURED, "open in HTA": hta_open, "record": record}


def work(tool: str, path: Path) -> Facts:
    """Run one tool in this process; seconds, peak in bytes, and the tool's own facts, or the error."""
    run = IN_A_PROCESS[tool]()
    before = _peak_bytes()
    began = time.perf_counter()
    try:
        facts = run(path)
    except Exception as error:  # noqa: BLE001 - that other tools fail, and how, is a result
        return {"error": type(error).__name__}
    return {"seconds": time.perf_counter() - began, "peak": _peak_bytes() - before, **facts}


def _peak_bytes() -> int:
    """Peak resident size of this process, or of the largest one that it started."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak if sys.platform == "darwin" else peak * 1024


# What starts them.


def in_a_process(python: str, tool: str, path: Path, script: str = __file__) -> Facts:
    """Run one tool of a script in a process of its own."""
    started = [python, script, "--in-a-process", tool, str(path)]
    try:
        done = subprocess.run(started, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {TIMEOUT_S} s"}
    try:
        facts: Facts = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"exit code {done.returncode}"}
    return facts


@dataclass
class Result:
    """What one tool took for one trace."""

    facts: list[Facts]

    @property
    def error(self) -> str | None:
        """What went wrong, if anything did."""
        return next((str(one["error"]) for one in self.facts if "error" in one), None)

    def median(self, key: str) -> float | None:
        """Median over the repetitions; None if the tool did not run or failed."""
        values = [float(one[key]) for one in self.facts if key in one]
        return statistics.median(values) if values and self.error is None else None


def measure(traces: Sequence[Path], pythons: dict[str, str], repeat: int) -> dict[tuple[Path, str], Result]:
    """Run every tool on every trace, ``repeat`` times, in shuffled order. What has failed once is not run again."""
    results = {(trace, tool): Result([]) for trace in traces for tool in MEASURED}
    jobs = [(trace, tool) for trace in traces for tool in pythons]
    for number in range(repeat):
        for done, (trace, tool) in enumerate(random.sample(jobs, len(jobs))):
            progress(f"round {number + 1} of {repeat}: {done + 1} of {len(jobs)}")
            result = results[trace, tool]
            if result.error is None:
                result.facts.append(in_a_process(pythons[tool], tool, trace.resolve()))
    progress("")
    return results


def progress(text: str) -> None:
    """Show how far it is, where someone is watching."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def results_table(traces: Sequence[Path], results: dict[tuple[Path, str], Result]) -> str:
    """One row for each trace."""
    rows = []
    for trace in traces:
        floors, our = results[trace, "floor"], results[trace, "ours"]
        size, peak = floors.median("bytes"), our.median("peak")
        rows.append(
            [
                name_of(trace),
                _number(size, 1 / 1e6, 1),
                _number(floors.median("events"), 1, 0),
                _seconds(floors),
                _seconds(our),
                _ratio(our.median("seconds"), floors.median("seconds"), size),
                _number(peak, 1 / MIB, 0),
                _ratio(peak, size, size),
                *(cell for tool in ("HTA", "torch-tb-profiler") for cell in _other(results[trace, tool])),
            ]
        )
    header = ["trace", "JSON, MB", "events", "floor, s", "ours, s", "ours / floor", "peak, MiB", "peak / JSON"]
    header += ["HTA, s", "peak, MiB", "torch-tb-profiler, s", "peak, MiB"]
    return table(header, rows)


def name_of(trace: Path) -> str:
    """The trace's name in a table."""
    return trace.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")


def _other(result: Result) -> list[str]:
    return [_seconds(result), _number(result.median("peak"), 1 / MIB, 0)]


def _seconds(result: Result) -> str:
    return f"fails: {result.error}" if result.error else _number(result.median("seconds"), 1, 3)


def _number(value: float | None, factor: float, digits: int) -> str:
    return UNKNOWN if value is None else f"{value * factor:,.{digits}f}"


def _ratio(value: float | None, base: float | None, size: float | None) -> str:
    """A ratio, where the trace is large enough for it to mean something: else fixed costs of milliseconds decide."""
    return UNKNOWN if value is None or not base or size is None or size < MEANINGFUL else f"{value / base:.1f}"


def pythons_of(hta_python: str | None) -> dict[str, str]:
    """The Python that runs each tool; tools that are not installed are left out."""
    pythons = {"floor": sys.executable, "ours": sys.executable}
    if hta_python is not None:
        pythons["HTA"] = hta_python
    elif find_spec("hta") is not None:
        pythons["HTA"] = sys.executable
    if find_spec("torch_tb_profiler") is not None:
        pythons["torch-tb-profiler"] = sys.executable
    return pythons


def record_trace(folder: Path) -> Path:
    """A trace written by PerfCallback on the CPU."""
    facts = in_a_process(sys.executable, "record", folder)
    traces = list(folder.glob("*.pt.trace.json*"))
    if "error" in facts or not traces:
        raise SystemExit(f"recording a trace failed: {facts.get('error', 'no trace was written')}")
    return traces[0]


def cpu_check(python: str | None, trace: Path) -> str:
    """Whether HTA opens what PerfCallback wrote on the CPU, as a sentence."""
    if python is None:
        return "HTA is not installed, so whether it opens a CPU trace of PerfCallback was not checked."
    facts = in_a_process(python, "open in HTA", trace)
    if "error" in facts:
        return f"HTA does not open a CPU trace of PerfCallback: {facts['error']}."
    return (
        f"HTA opens a CPU trace of PerfCallback: {facts['events']:,} events, profiler steps {facts['steps']}. "
        "Its breakdowns are of device time."
    )


def grow(trace: Path, folder: Path, target_bytes: int) -> Path:
    """The trace again and again, each time later, with its own correlations and steps, until it is so large."""
    import re

    text = unpacked(trace)
    original = json.loads(text)
    events = original.pop("traceEvents")
    times = [event["ts"] for event in events if event.get("ph") == "X"]
    span = round(max(times) - min(times)) + 1000
    step = re.compile(r"ProfilerStep#(\d+)")
    grown = folder / "grown.pt.trace.json"
    with grown.open("w") as file:
        file.write(json.dumps(original)[:-1] + ', "traceEvents": [\n')
        for copy in range(max(1, round(target_bytes / len(text)))):
            for event in events:
                later = dict(event)
                if "ts" in event:
                    later["ts"] = event["ts"] + copy * span
                if "correlation" in event.get("args", {}):
                    later["args"] = {**event["args"], "correlation": event["args"]["correlation"] + (copy << 24)}
                later["name"] = step.sub(
                    lambda found, copy=copy: f"ProfilerStep#{int(found[1]) + 1000 * copy}", event["name"]
                )
                file.write(("" if event is events[0] and copy == 0 else ",\n") + json.dumps(later))
        file.write("\n]}\n")
    return grown


def growth_table(trace: Path, target_mb: int, repeat: int) -> str:
    """Cost of each megabyte in a trace as it is and in a much longer one."""
    pythons = {"floor": sys.executable, "ours": sys.executable}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(size_mb), "grown.pt.trace.json") for size_mb in (1, target_mb)]
        for path in paths:
            path.parent.mkdir()
            # In a process of its own, whose memory the measured ones do not inherit.
            script = [
                sys.executable,
                __file__,
                str(trace),
                "--grow-mb",
                path.parent.name,
                "--grow-to",
                str(path.parent),
            ]
            subprocess.run(script, check=True)
        results = measure(paths, pythons, repeat)
        for path in paths:
            floors, our = results[path, "floor"], results[path, "ours"]
            size = floors.median("bytes") or 1
            rows.append(
                [
                    _number(size, 1 / 1e6, 0),
                    _seconds(floors),
                    _seconds(our),
                    _ratio(our.median("seconds"), floors.median("seconds"), size),
                    _number((our.median("seconds") or 0) / size, 1e9, 1),
                    _ratio(our.median("peak"), size, size),
                ]
            )
    return table(["JSON, MB", "floor, s", "ours, s", "ours / floor", "ours, ms / MB", "peak / JSON"], rows)


def main() -> None:
    """Print the table and what HTA makes of a CPU trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="FILE", help="trace files, or folders of them")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions, of which medians are shown (%(default)s)")
    parser.add_argument("--hta-python", metavar="PYTHON", help="Python of an environment that has HTA")
    parser.add_argument("--quick", action="store_true", help="one repetition")
    parser.add_argument("--grow-mb", type=int, metavar="MB", help="instead: the first trace beside a copy grown to MB")
    parser.add_argument("--in-a-process", nargs=2, metavar=("TOOL", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("--grow-to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grow_to is not None:
        grow(options.traces[0], options.grow_to, options.grow_mb * 10**6)
        return
    if options.in_a_process:
        tool, path = options.in_a_process
        print(f"\n{json.dumps(work(tool, Path(path)))}")
        return

    repeat = 1 if options.quick else options.repeat
    pythons = pythons_of(options.hta_python)
    if options.grow_mb is not None:
        print(f"`{command(options.traces)}`\n\n{machine(['numpy', 'msgspec'])}; medians of {repeat}\n")
        print(growth_table(traces_at(options.traces)[0], options.grow_mb, repeat))
        return
    with tempfile.TemporaryDirectory() as folder:
        recorded = record_trace(Path(folder))
        traces = traces_at(options.traces) or [recorded]
        results = measure(traces, pythons, repeat)
        packages = ["numpy", "msgspec", "torch-tb-profiler"]
        print(f"`{command(options.traces)}`\n\n{machine(packages)}; medians of {repeat}\n")
        print(results_table(traces, results))
        missing = [tool for tool in MEASURED if tool not in pythons]
        if missing:
            print(f"\nNot installed: {', '.join(missing)}.")
        print(f"\n{cpu_check(pythons.get('HTA'), recorded)}")


def traces_at(paths: Sequence[Path]) -> list[Path]:
    """The traces among files and in folders."""
    from lightning_perf.pipeline import find_traces

    return [trace for path in paths for trace in find_traces(path)]


if __name__ == "__main__":
    main()
