"""RunInfo: the facts of one run, written by capture as ``run.json`` and read by everything after it.

Plain data: it holds no figure that was computed from a trace. Times are integer nanoseconds of wall clock,
sizes are bytes. A fact that could not be found out is None.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from lightning_perf.errors import RecordError
from lightning_perf.names import Phase, Stage

SCHEMA = 1

RUN_FILE = "run.json"
ANALYSIS_FILE = "analysis.json"
REPORT_FILE = "report.html"

AnyRecord = TypeVar("AnyRecord", bound="Record")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all stored records: immutable, named fields only, unknown fields ignored when read."""


class Versions(Record, frozen=True, kw_only=True):
    """Versions of what ran."""

    lightning_perf: str
    python: str
    torch: str
    lightning: str
    cuda: str | None = None


class LoaderFacts(Record, frozen=True, kw_only=True):
    """One DataLoader of the run, as it was when the loop started."""

    stage: str
    loader_class: str
    dataset_class: str | None = None
    collate: str | None = None
    iterable: bool | None = None
    length: int | None = None
    batch_size: int | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None


class OptimizerFacts(Record, frozen=True, kw_only=True):
    """One optimizer: its class, how it steps, and what it steps over."""

    optimizer_class: str
    parameter_tensors: int
    parameters: int
    foreach: bool | None = None
    fused: bool | None = None


class Flags(Record, frozen=True, kw_only=True):
    """Global switches of torch that change speed."""

    cudnn_benchmark: bool
    cudnn_deterministic: bool
    deterministic_algorithms: bool
    matmul_tf32: bool | None
    cudnn_tf32: bool | None
    float32_matmul_precision: str | None
    detect_anomaly: bool
    compiled: bool
    channels_last: bool | None
    torch_threads: int


class TrainerFacts(Record, frozen=True, kw_only=True):
    """What the trainer was told to do. ``None`` limits are unlimited or unknown."""

    strategy: str
    precision: str
    accumulate_grad_batches: int
    automatic_optimization: bool
    max_epochs: int | None
    max_steps: int | None
    batches_per_epoch: int | None
    log_every_n_steps: int
    val_check_interval: float | None
    check_val_every_n_epoch: int | None
    checkpoint_every_n_train_steps: int | None
    gradient_clip_val: float | None
    progress_bar: str | None
    loggers: list[str]
    callbacks: list[str]
    ddp: DdpFacts | None = None


class DdpFacts(Record, frozen=True, kw_only=True):
    """How DistributedDataParallel was set up. ``unused_parameter_bytes`` is what it found unused so far."""

    backend: str | None
    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    unused_parameter_bytes: int | None = None


class DeviceFacts(Record, frozen=True, kw_only=True):
    """One accelerator that this rank used."""

    index: int
    name: str
    memory_bytes: int | None = None


class MemoryPeaks(Record, frozen=True, kw_only=True):
    """Peaks since the process started or since somebody reset them; this package never resets them.

    ``retries`` counts how often a device's allocator had to give its cache back before an allocation succeeded,
    ``out_of_memory`` how often none did.
    """

    rss_bytes: int | None = None
    allocated_bytes: dict[str, int] = {}
    reserved_bytes: dict[str, int] = {}
    retries: dict[str, int] = {}
    out_of_memory: dict[str, int] = {}


class StepSeries(Record, frozen=True, kw_only=True):
    """One entry per kept step, in order. Every ``stride``-th step is kept, beginning with the first.

    ``phases_ns[phase][i]`` over all phases add up to ``duration_ns[i]`` exactly.
    """

    stride: int
    number: list[int]
    epoch: list[int]
    duration_ns: list[int]
    phases_ns: dict[Phase, list[int]]
    complete: list[bool]
    traced: list[bool]


class StepTotals(Record, frozen=True, kw_only=True):
    """Sums over all complete steps of one kind, none left out. ``phases_ns`` adds up to ``duration_ns``."""

    steps: int
    duration_ns: int
    phases_ns: dict[Phase, int]
    samples: int | None = None


class SpanTotal(Record, frozen=True, kw_only=True):
    """Exclusive time of one named span, summed as in ``LoopRecord.plain`` and ``LoopRecord.traced``.

    Over all spans, ``plain_ns`` adds up to ``plain.duration_ns`` and ``traced_ns`` to ``traced.duration_ns``.
    ``calls`` counts every call, also outside steps.
    """

    name: str
    phase: Phase
    calls: int
    plain_ns: int
    traced_ns: int


class EpochStart(Record, frozen=True, kw_only=True):
    """What an epoch cost before its first batch was there, all of it in the phase ``data``."""

    epoch: int
    iterator_ns: int
    first_fetch_ns: int


class LoopRecord(Record, frozen=True, kw_only=True):
    """The loop clock's tables: whole run, no sampling.

    ``plain`` sums the steps that ran without torch.profiler, ``traced`` those that ran under it (its warm-up
    included). ``outside_ns`` is the wall time of the stage that belongs to no step (set-up, the epoch's ends,
    writing traces), ``profiler_ns`` the part of it spent starting, stopping and saving torch.profiler. ``epoch_starts``
    holds the latest 4096 epochs. ``cpu_ns`` is the processor time of the whole process (worker processes are others)
    without that under torch.profiler; ``fetch_cpu_ratio`` is the share of a batch fetch in which its thread computed
    and did not wait, from a sample of the fetches.
    """

    plain: StepTotals
    traced: StepTotals
    incomplete_steps: int
    outside_ns: int
    profiler_ns: int
    series: StepSeries
    spans: list[SpanTotal]
    epoch_starts: list[EpochStart]
    cpu_ns: int | None = None
    fetch_cpu_ratio: float | None = None


class WindowRecord(Record, frozen=True, kw_only=True):
    """One recorded window: which steps it holds and where its trace lies (relative to ``run.json``)."""

    trace: str
    first_step: int
    last_step: int
    rank: int
    global_step: int


class RunInfo(Record, frozen=True, kw_only=True):
    """Everything known about one run of the trainer on one rank.

    ``worker_cpu_ratio`` is the share of its life in which a worker process of the loaders computed and did not wait.
    """

    schema: int = SCHEMA
    created_unix_ns: int
    stage: Stage
    model: str
    rank: int
    world_size: int
    versions: Versions
    cpu_count: int
    devices: list[DeviceFacts]
    trainer: TrainerFacts | None
    flags: Flags
    loaders: list[LoaderFacts]
    optimizers: list[OptimizerFacts]
    memory: MemoryPeaks
    loop: LoopRecord | None
    windows: list[WindowRecord]
    notes: list[str]
    worker_cpu_ratio: float | None = None


def rank_file(name: str, rank: int) -> str:
    """Name of a rank's own record: ``run.json`` for rank 0, ``run.rank3.json`` for rank 3."""
    stem, suffix = name.split(".", 1)
    return name if rank == 0 else f"{stem}.rank{rank}.{suffix}"


def write_json(path: Path, record: Record, *, keep_older: bool = False) -> None:
    """Write a record as JSON, atomically: readers see the old file or the new one, never half of one.

    With ``keep_older`` a file that is there already is first renamed after the time of its last change.

    Raises:
        OSError: the folder cannot be made or written.
    """
    if keep_older and path.is_file():
        path.rename(path.with_name(f"{path.stem}.{path.stat().st_mtime_ns}{path.suffix}"))
    write_bytes(path, msgspec.json.format(msgspec.json.encode(record), indent=1))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically (temporary file in the same folder, then rename).

    Raises:
        OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_run(path: Path) -> RunInfo:
    """Read and validate ``run.json``.

    Raises:
        RecordError: the file is missing, is not JSON, or does not have the fields of this schema.
    """
    return read_record(path, RunInfo)


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """Read a stored record and check it against its type.

    Raises:
        RecordError: the file is missing, is not JSON, or does not have the fields of this schema.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); expected a {kind.__name__} record") from error
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path}: not a {kind.__name__} record of schema {SCHEMA} ({error}); record the run again"
        ) from error
