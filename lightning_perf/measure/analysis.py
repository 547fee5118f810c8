"""Analysis: everything measured about a run and its traces, stored as ``analysis.json``.

Times are float microseconds, sizes bytes, ratios between 0 and 1. A figure that the data cannot give is None
or absent, never 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_perf.measure.finding import Achieved, Finding
from lightning_perf.measure.timeline import MemoryCurve, Timeline
from lightning_perf.names import Cause, Phase
from lightning_perf.runinfo import SCHEMA, Record, RunInfo, read_record

if TYPE_CHECKING:
    from lightning_perf.report.figures import Figures


class Spread(Record, frozen=True, kw_only=True):
    """Distribution of a time over steps, microseconds. Percentiles interpolate linearly between steps."""

    mean: float
    p50: float
    p95: float
    max: float


class EpochStarts(Record, frozen=True, kw_only=True):
    """What an epoch costs before its first batch is there, microseconds, means over the run's epochs.

    ``iterator`` makes the loader's iterator and starts its workers, ``first_fetch`` waits for the first batch.
    """

    epochs: int
    iterator: float
    first_fetch: float


class Loop(Record, frozen=True, kw_only=True):
    """The whole run as the loop clock saw it, over complete steps.

    Steps that ran under torch.profiler are left out as long as there are others (``steps`` counts the ones
    used); ``traced_step_time_us`` is the median of those left out, for comparison. ``phases_us`` are means and
    add up to ``step_time_us.mean``. ``hooks_us`` is the exclusive time of every named span per step, largest first.
    ``samples_per_second`` leaves out time spent in validation.
    """

    steps: int
    step_time_us: Spread
    samples_per_second: float | None
    phases_us: dict[Phase, float]
    hooks_us: dict[str, float]
    data_loading_ratio: float
    traced_steps: int
    traced_step_time_us: float | None
    epoch_start_us: EpochStarts | None


class Step(Record, frozen=True, kw_only=True):
    """One recorded step, ``ProfilerStep#<number>``; ``start_us`` counts from the trace's first event.

    ``data_loading_us`` is the union of the loader's ranges inside the step, those of validation aside. ``phases_us``
    adds up to ``duration_us``; it is empty where the trace has no labels of this package.
    """

    number: int
    start_us: float
    duration_us: float
    complete: bool
    data_loading_us: float
    phases_us: dict[Phase, float]
    device_busy_us: dict[str, float]


class IdleShare(Record, frozen=True, kw_only=True):
    """Idle time with one cause during one activity of the host (``forward``, ``optimizer``, a hook's name, ...)."""

    cause: Cause
    activity: str
    idle_us: float


class Gap(Record, frozen=True, kw_only=True):
    """One idle interval of a device. ``shares`` add up to ``duration_us`` exactly, the largest first.

    ``step`` is the step in which it begins, ``host`` the innermost thing that the host ran for the longest time in
    it, ``ended_by`` the operation that ended it; each is None where the trace does not tell.
    """

    start_us: float
    duration_us: float
    step: int | None
    cause: Cause
    activity: str
    host: str | None
    ended_by: str | None
    shares: list[IdleShare]


class DeviceWindow(Record, frozen=True, kw_only=True):
    """A device over the window of device-adjusted complete steps. Busy and idle add up to the duration.

    ``idle_causes_us`` adds up to ``idle_us`` exactly; so does ``idle_shares``, which splits each cause by activity.
    ``largest_gaps`` holds the longest gaps, the longest first. ``steps`` is the number of steps that the window
    spans, 0 where the trace marks none that is complete: the window is then the host's recorded time, or the
    device's span if there is no host.
    """

    steps: int
    duration_us: float
    busy_us: float
    idle_us: float
    gaps: int
    largest_gap_us: float
    idle_causes_us: dict[Cause, float] = {}
    idle_shares: list[IdleShare] = []
    largest_gaps: list[Gap] = []


class Device(Record, frozen=True, kw_only=True):
    """A device over its span, from the first to the last device operation of the trace.

    ``busy_us`` is the union of all its operations over all streams, ``gaps`` the number of maximal idle
    intervals (an operation that took no time ends one and begins another), ``compute_us`` the union of kernels
    that are not collectives, ``communication_us`` of collectives, ``exposed_communication_us`` the busy time
    during which only collectives ran, ``copy_us`` the union of copies.
    """

    index: str
    name: str | None
    operations: int
    span_us: float
    busy_us: float
    idle_us: float
    gaps: int
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    copy_us: float
    window: DeviceWindow | None


class MemoryPeak(Record, frozen=True, kw_only=True):
    """The moment at which a device had most memory allocated, and what the host did then.

    ``allocated_bytes`` is None in traces without totals: these tell when it was most, not how much. ``reserved``
    memory beyond it is ``unallocated_bytes``: the allocator's cache, and what is lost to fragmentation. ``step`` is
    the step it lies in, ``phase`` the one that this package's labels name, ``operator`` the innermost operator and
    ``module`` the innermost module in its forward on the thread that allocated. Each is None where the trace does
    not tell, or none was running.
    """

    time_us: float
    allocated_bytes: int | None
    unallocated_bytes: int | None
    step: int | None
    phase: Phase | None
    operator: str | None
    module: str | None


class TraceMemory(Record, frozen=True, kw_only=True):
    """Memory as the trace's allocator events show it, bytes, by device ("0", "1", ...).

    ``cpu_growth_bytes`` is the largest growth since recording began: a trace does not know what was there before.
    ``step_growth_bytes`` is how much more is allocated at the end of each complete step than at the end of the one
    before, also for "cpu"; it is empty with fewer than two. Growth that goes on is a leak.
    """

    peak_allocated_bytes: dict[str, int]
    peak_reserved_bytes: dict[str, int]
    cpu_growth_bytes: int | None
    peaks: dict[str, MemoryPeak] = {}
    step_growth_bytes: dict[str, list[int]] = {}
    curves: list[MemoryCurve] = []


class Operator(Record, frozen=True, kw_only=True):
    """An operator of the host (``aten::mm``, ``autograd::engine::...``), also by its input shapes and call site.

    ``self_us`` is the time as innermost operator of its thread, ``total_us`` the whole time, where a call inside
    one of the same row is not counted again. ``launches`` counts the runtime calls that launched device work, and
    ``self_device_us`` is the duration of that work, while the operator was the innermost one; ``device_us`` is that
    of all work launched inside. They are None where the trace holds no device operations. ``shapes`` is None where
    rows are not grouped by shapes, or none were recorded. ``call_site`` is the innermost function of the user's code
    around the operator, or around the one whose gradient it computes, as the profiler names it: a file, its first line
    and the function. It is None where rows are not grouped by it, or no Python stack tells.

    ``backward_us`` is the host time of the backward pass of the operator and of those inside it, matched by sequence
    number, and ``backward_device_us`` the device work launched there. That work is also in the rows of the backward
    pass's own operators. They are None where the trace holds no backward pass that can be matched.

    ``flops`` is what the calls computed, see :class:`Arithmetic`; of calls inside each other only the outermost one
    that tells has any. It is None where no call tells.

    Over all rows, ``self_device_us`` adds up to the duration of all device operations. The row ``(no operator)``
    holds what no operator launched, or whose launch is not in the trace; ``(others)`` sums the cheapest operators.
    """

    name: str
    shapes: str | None = None
    call_site: str | None = None
    calls: int
    self_us: float
    total_us: float
    launches: int | None
    self_device_us: float | None
    device_us: float | None
    backward_us: float | None = None
    backward_device_us: float | None = None
    flops: int | None = None


ModuleSource = Literal["label", "frame"]
"""Where a module's calls were seen: this package's labels, or Python frames (``with_stack``)."""


class Module(Record, frozen=True, kw_only=True):
    """Forward calls of a module. Labels name it (``layer4.1``), frames give its class and a number (``Conv2d_3``).

    Figures are those of :class:`Operator`, of modules among themselves: those without ``backward`` in their name are
    of the forward pass, and of what else ran inside the call. The backward pass belongs to the module in which the
    operator ran whose gradient it computes, by sequence number: ``self_backward_us`` is its host time and
    ``self_backward_device_us`` the device work that it launched for operators that ran while the module was the
    innermost one, ``backward_us`` and ``backward_device_us`` for all that ran inside. They are None where the trace
    holds no backward pass that can be matched. What has no operator in the forward pass (adding up the parameters'
    gradients, reducing them between ranks) belongs to no module.
    """

    name: str
    source: ModuleSource
    calls: int
    self_us: float
    total_us: float
    launches: int | None
    self_device_us: float | None
    device_us: float | None
    self_backward_us: float | None = None
    backward_us: float | None = None
    self_backward_device_us: float | None = None
    backward_device_us: float | None = None


class Kernel(Record, frozen=True, kw_only=True):
    """Kernels of one name on all devices of the trace; ``(others)`` sums those with the least time.

    ``busy_ratio`` is their time over the devices' busy time: kernels that run at once make ratios add up to more
    than 1. Of ``calls``, ``launched`` have a launch call in the trace. ``launch_latency_us`` is the mean time from
    the call's end to the kernel's start, 0 for a kernel that starts before; ``negative_latencies`` counts those that
    seem to start before their call does, which only clocks that disagree can show. ``shorter_than_launch`` counts
    those that took less time than their call, ``graph_calls`` those launched by a CUDA or HIP graph.
    ``queue_depth`` is the mean number of operations that waited on the same stream when one was launched.
    """

    name: str
    calls: int
    total_us: float
    mean_us: float
    min_us: float
    max_us: float
    busy_ratio: float | None
    launched: int
    launch_latency_us: float | None
    negative_latencies: int
    shorter_than_launch: int
    graph_calls: int
    queue_depth: float | None


HostMemory = Literal["pinned", "pageable"]


class Copy(Record, frozen=True, kw_only=True):
    """Copies of one kind (``HtoD``, ``DtoH``, ``DtoD``, ... or ``Memset``).

    ``memory`` is None where no host memory takes part, or the trace does not tell which. ``bytes`` and ``gb_per_s``
    (10**9 bytes a second) are those of the copies whose size the trace tells.
    """

    kind: str
    memory: HostMemory | None
    calls: int
    total_us: float
    bytes: int | None
    gb_per_s: float | None


class Collective(Record, frozen=True, kw_only=True):
    """Collectives of one device operation's name, and of the same arguments where torch recorded them.

    ``collective`` is the call's name (``allreduce``), ``in_elements`` and ``out_elements`` are what one rank puts in
    and gets out in one call. Traces of torch before 2.1 have no such arguments: the call's range (``nccl:all_reduce``)
    and its input shapes, if recorded, then tell the name, the type and what goes in. Of the time of each call,
    ``overlapped_us`` is when other work than collectives ran on its device, ``exposed_us`` the rest. The union of
    exposed times is the device's ``exposed_communication_us``: sums over rows are the same where no two collectives run
    at once, and larger where they do.

    ``bytes`` is the size of all calls, the larger of what goes in and comes out of one rank (None where a trace tells
    only what goes in, and more may come out), and ``gb_per_s`` that size over the time: the algorithm bandwidth of
    nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
    """

    name: str
    collective: str | None
    dtype: str | None
    in_elements: int | None
    out_elements: int | None
    group: str | None
    group_size: int | None
    calls: int
    total_us: float
    exposed_us: float
    overlapped_us: float
    bytes: int | None
    gb_per_s: float | None


class Arithmetic(Record, frozen=True, kw_only=True):
    """Floating point operations that the operators of a window began, by their recorded input shapes.

    They count as ``torch.utils.flop_counter`` counts them: products of matrices, convolutions and attention, a
    multiplication and an addition as two. ``achieved_flops_per_s`` is ``flops`` over the window's duration, idle time
    included. ``mfu`` (model FLOP/s utilisation) is that over the device's dense peak for ``flops_dtype``, the type in
    which most of the operations were; work that activation checkpointing repeats counts each time.

    A trace tells the type of the inputs: float32 is taken for ``tf32`` where most of the time of its kernels was in
    those whose names tell that they use tensor cores. ``uncounted_calls`` are operators of the same kinds whose
    operations are not known; the other figures are then lower bounds, and None where nothing is known.
    """

    flops: int | None
    flops_per_step: float | None
    achieved_flops_per_s: float | None
    mfu: float | None
    flops_dtype: str | None
    uncounted_calls: int


class Efficiency(Record, frozen=True, kw_only=True):
    """How well the kernels of a device used it, over the window of complete steps. Estimates of torch-tb-profiler.

    ``sm_efficiency`` is the share of multiprocessors that had work, over the whole window: kernels of fewer blocks
    than there are multiprocessors use some. ``occupancy`` is the share of warps that were resident on one, over the
    kernels' time. ``tensor_core_ratio`` is the share of the kernels' time in those whose names tell that they use
    tensor cores: at least so much. They are None where kernels do not tell of multiprocessors, as AMD's do not.

    ``peak_flops`` holds the device's dense peak by type, floating point operations per second; it is empty for a
    device that is not known.

    ``arithmetic`` is what operators computed whose kernels ran on the device; it is None where no input shapes were
    recorded. In a trace without devices, ``device`` is "cpu" and ``arithmetic`` that of the host, over its steps.
    """

    device: str
    sm_efficiency: float | None
    occupancy: float | None
    tensor_core_ratio: float | None
    peak_flops: dict[str, float] = {}
    arithmetic: Arithmetic | None = None


class Quality(Record, frozen=True, kw_only=True):
    """Something wrong with a trace, and what was done about it."""

    code: str
    message: str
    count: int


class HostShare(Record, frozen=True, kw_only=True):
    """Time that the main thread spent in one way during one activity, over the complete steps of a trace.

    ``cause`` is what an idle device would have waited for (``launch`` is dispatching and, on a CPU, running operators,
    ``python`` the interpreter with no operator running). All shares add up to the steps' time.
    """

    cause: Cause
    activity: str
    time_us: float


class WhatIf(Record, frozen=True, kw_only=True):
    """The step time after some changes, as a replay of the window predicts it.

    ``changes`` name what is changed: a :data:`~lightning_perf.names.ChangeKind`, ``<kind>:<activity>`` for one activity
    of the host alone. ``step_us`` is the mean, ``step_times_us`` has the single steps.
    """

    changes: list[str]
    step_us: float
    saving_us_per_step: float
    step_times_us: list[float] = []


class Replay(Record, frozen=True, kw_only=True):
    """What changes would bring: the window of the busiest device, run again with other costs.

    ``step_us`` is the measured mean over the window's ``steps``, ``replayed_us`` and ``step_times_us`` what the replay
    gives without a change, ``error_ratio`` how far these means are apart. Without steps all are of the whole window.

    ``what_if`` has one row per change whose object occurs in the window, the largest saving first. ``graph`` and
    ``communication`` are bounds of what can be reached. ``together`` has the best two and the best three of the others
    at once: savings of single changes do not add up.
    """

    device: str
    steps: int
    step_us: float
    replayed_us: float
    error_ratio: float
    step_times_us: list[float] = []
    what_if: list[WhatIf] = []
    together: list[WhatIf] = []


class Window(Record, frozen=True, kw_only=True):
    """Everything measured in one trace file."""

    rank: int | None
    trace: str
    events: int
    duration_us: float
    steps: list[Step]
    devices: list[Device]
    memory: TraceMemory | None
    quality: list[Quality]
    operators: list[Operator] = []
    kernels: list[Kernel] = []
    modules: list[Module] = []
    collectives: list[Collective] = []
    copies: list[Copy] = []
    efficiency: list[Efficiency] = []
    host: list[HostShare] = []
    replay: Replay | None = None
    timeline: Timeline | None = None


class Analysis(Record, frozen=True, kw_only=True):
    """Everything measured: facts of the run, the loop clock's table, one window per trace, and what to change.

    ``findings`` are ranked by what they save, of a run or of each trace. ``achieved`` is what the advice of an earlier
    run of the same project has brought.
    """

    schema: int = SCHEMA
    run: RunInfo | None
    loop: Loop | None
    windows: list[Window]
    findings: list[Finding] = []
    achieved: Achieved | None = None

    @property
    def figures(self) -> Figures:
        """The figures of this analysis, for notebooks: ``analysis.figures.steps()`` is a plotly figure."""
        from lightning_perf.report.figures import Figures

        return Figures(self)


def last_window(analysis: Analysis) -> Window | None:
    """The run's own last window: its folder may hold those of other stages and of older runs too."""
    own = {record.trace for record in analysis.run.windows} if analysis.run is not None else set()
    return next((window for window in reversed(analysis.windows) if Path(window.trace).name in own), None)


def busiest_device(window: Window) -> Device | None:
    """The device with the most operations, if the window saw any."""
    return max(window.devices, key=lambda device: device.operations, default=None)


def read_analysis(path: Path) -> Analysis:
    """Read and validate ``analysis.json``.

    Raises:
        RecordError: the file is missing, is not JSON, or does not have the fields of this schema.
    """
    return read_record(path, Analysis)
