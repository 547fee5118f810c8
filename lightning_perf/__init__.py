"""Find out why PyTorch Lightning training is slow.

The folders are the data flow, left to right::

    capture    training run  -> trace files + run.json
    decode     trace file    -> Trace (columns)
    measure    Trace         -> Analysis
    recommend  Analysis      -> findings
    comparison two of them   -> Comparison
    report     any of these  -> console, HTML, figures, logger scalars
    tab        a log folder  -> TensorBoard's tab

``callback.py`` drives capture from the Trainer's hooks, ``pipeline.py`` chains the stages, ``cli.py`` is the
same for trace files from anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lightning_perf.callback import PerfCallback
    from lightning_perf.capture.window import Schedule
    from lightning_perf.comparison.records import Comparison
    from lightning_perf.errors import CompareError, ConfigError, PerfError, RecordError, TraceError
    from lightning_perf.measure.analysis import Analysis
    from lightning_perf.pipeline import analyze, compare
    from lightning_perf.runinfo import RunInfo

__all__ = [
    "Analysis",
    "CompareError",
    "Comparison",
    "ConfigError",
    "PerfCallback",
    "PerfError",
    "RecordError",
    "RunInfo",
    "Schedule",
    "TraceError",
    "__version__",
    "analyze",
    "compare",
]

_HOME = {
    "Analysis": "lightning_perf.measure.analysis",
    "CompareError": "lightning_perf.errors",
    "Comparison": "lightning_perf.comparison.records",
    "ConfigError": "lightning_perf.errors",
    "PerfCallback": "lightning_perf.callback",
    "PerfError": "lightning_perf.errors",
    "RecordError": "lightning_perf.errors",
    "RunInfo": "lightning_perf.runinfo",
    "Schedule": "lightning_perf.capture.window",
    "TraceError": "lightning_perf.errors",
    "analyze": "lightning_perf.pipeline",
    "compare": "lightning_perf.pipeline",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562): torch and lightning are slow to import."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
