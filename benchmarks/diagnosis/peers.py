"""Other tools on the same slow trainings, each in an environment of its own.

TraceML starts the training itself (``traceml run``) and puts its own callback into the trainer; its verdict is the
``primary_diagnosis`` of ``final_summary.json``. gpuprof is its LightningCallback; its verdict is the most severe of its
insights, the first of equals, its estimate of costs left out. Both work without a GPU, and neither predicts what a
change brings.

Their verdicts are classes that are coarser than a rule. One counts as right if it names where the bottleneck lies, in
its title or its advice: TraceML's "residual-heavy" for hooks, logging, checkpoints and validation, for example, and
"compute-bound" for whatever happens inside forward, backward or optimizer.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis.measured import Outcome, case, looked_at

PEERS = ("traceml", "gpuprof")
HEADINGS = {"traceml": "TraceML 0.5.0", "gpuprof": "gpuprof 0.7.1"}

_LOADING = frozenset({"data.sync_loader", "data.too_few_workers", "data.worker_restart", "data.collate_slow"})
_BESIDE = frozenset(
    {"host.hook", "host.logging", "host.checkpoint", "host.validation", "host.progress_bar", "h2d.slow_transfer"}
)
_INSIDE = frozenset(
    {"host.python", "host.loop_index", "host.optimizer_loop", "host.anomaly", "host.recompile", "host.gc"}
    | {"host.threads", "gpu.layout", "gpu.float64"}
)
_HEALTHY = frozenset({None})


@dataclass(frozen=True)
class Class:
    """A verdict, and the rules for which it is right (None: a healthy run)."""

    text: str
    right_for: frozenset[str | None]


CLASSES: dict[str, dict[str, Class]] = {
    "traceml": {
        "INPUT_BOUND": Class("input-bound", _LOADING),
        "H2D_BOUND": Class("H2D-bound", frozenset({"h2d.slow_transfer"})),
        "RESIDUAL_HEAVY": Class("residual-heavy", _BESIDE | {"host.gc"}),
        "COMPUTE_BOUND": Class("compute-bound", _INSIDE | _HEALTHY),
        "NO_CLEAR_PERFORMANCE_BOTTLENECK": Class("nothing", _HEALTHY),
        "INSUFFICIENT_STEP_TIME_DATA": Class("too little data", frozenset()),
    },
    # By what the titles of its insights hold.
    "gpuprof": {
        "waiting on the loader": Class("loader stall", _LOADING),
        "Dataloader": Class("loader stall", _LOADING),
        "Prefetch queue": Class("loader stall", _LOADING),
        "Cold-cache": Class("cold cache", frozenset()),
        "unaccounted": Class("Python overhead", _BESIDE | {"host.python", "host.loop_index", "host.optimizer_loop"}),
        "tail latency": Class("slow tail", frozenset({"host.checkpoint", "host.logging", "host.gc"})),
        "First step": Class("warm-up", _HEALTHY),
        "Step 0": Class("warm-up", _HEALTHY),
        "backward/forward": Class("recomputation", frozenset()),
        "No major bottlenecks": Class("nothing", _HEALTHY),
    },
}
_SEVERITIES = ("high", "medium", "low")


def command(how: str, python: str, arguments: list[str], folder: str) -> list[str]:
    """What starts a run: the Python itself, or TraceML's launcher beside it."""
    if how != "traceml":
        return [python, *arguments]
    script, *rest = arguments
    launcher = str(Path(python).parent / "traceml")
    return [launcher, "run", script, "--mode", "summary", "--logs-dir", folder, "--run-name", "run", "--args", *rest]


def train(name: str, how: str, folder: Path) -> dict[str, str]:
    """Train under another tool, in its environment; what it says, as far as this process learns it."""
    from benchmarks.diagnosis.training import fit

    training = looked_at(case(name))
    if how == "traceml":
        fit(training, folder)
        return {}
    from gpuprof import LightningCallback
    from gpuprof.insights import analyze

    database = str(folder / "gpuprof.db")
    fit(training, folder, LightningCallback(run_name=name, db_path=database))
    insights = [one for one in analyze(database, 1)["insights"] if not one["title"].startswith("Estimated cost")]
    insights.sort(key=lambda one: _SEVERITIES.index(one["severity"]))
    return {"verdict": insights[0]["title"] if insights else "No major bottlenecks"}


def outcome(how: str, folder: Path, output: str) -> Outcome:
    """The verdict after a run, in short."""
    try:
        if how == "traceml":
            summary = json.loads((folder / "run" / "final_summary.json").read_text(encoding="utf-8"))
            said = summary["primary_diagnosis"]["kind"]
        else:
            said = json.loads(output.splitlines()[-1])["verdict"]
    except (OSError, LookupError, ValueError) as error:
        return {"error": f"no verdict ({type(error).__name__})"}
    return {"verdict": next((key for key in CLASSES[how] if key in said), said)}


def is_right(how: str, verdict: str, expected: str | None) -> bool:
    """Whether a verdict names where the bottleneck lies."""
    known = CLASSES[how].get(verdict)
    return known is not None and expected in known.right_for


def text(how: str, verdict: str) -> str:
    """A verdict in short."""
    known = CLASSES[how].get(verdict)
    return known.text if known is not None else verdict


def missing(pythons: dict[str, str]) -> list[str]:
    """Lines that say how to install what was not asked."""
    packages = {"traceml": "traceml-ai==0.5.0", "gpuprof": '"gpuprof[host,torch]==0.7.1"'}
    return [
        f"{HEADINGS[tool]} was not asked: `python -m venv {tool} && {tool}/bin/pip install torch lightning pillow "
        f"{packages[tool]}`, `--{tool}-python {tool}/bin/{Path(sys.executable).name}`."
        for tool in PEERS
        if tool not in pythons
    ]
