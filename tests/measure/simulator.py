"""A tiny host and device that run a program, write the trace of it, and know why the device was idle.

The host runs one instruction after the other and notes what it does; the device runs what it is given. Why the device
was idle at an instant is then asked of these notes, instant by instant, without a look at the trace.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.traces import BACKWARD, MAIN, TraceBuilder

Labels = Literal["ours", "lightning", "plain"]
Instruction = tuple[Any, ...]
"""Name of a method of :class:`Machine` and its arguments."""

COMPUTE, COPY, COMMUNICATION = 7, 8, 9
CALL, RETURN = 3_000, 500
"""How long a call that launches takes, and how long a blocking one needs to return; nanoseconds."""

CONTEXTS: dict[str, dict[Labels, tuple[str, str, str]]] = {
    # name: for each kind of trace, the range's name, the cause of generic work in it, and the activity
    "data": {
        "ours": ("perf/data", "data_loading", "data"),
        "lightning": ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "data_loading", "data"),
        "plain": ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data_loading", "data"),
    },
    "transfer": {
        "ours": ("perf/transfer", "transfer", "transfer"),
        "lightning": ("[pl][profile][Strategy]SingleDeviceStrategy.batch_to_device", "transfer", "transfer"),
    },
    "forward": {
        "ours": ("perf/forward", "", "forward"),
        "lightning": ("[pl][profile][Strategy]SingleDeviceStrategy.training_step", "", "forward"),
    },
    "optimizer": {
        "ours": ("perf/optimizer", "optimizer", "optimizer"),
        "lightning": ("[pl][profile][LightningModule]Net.optimizer_step", "optimizer", "optimizer"),
        "plain": ("Optimizer.step#SGD.step", "optimizer", "optimizer"),
    },
    "zero_grad": dict.fromkeys(
        ("ours", "lightning", "plain"), ("Optimizer.zero_grad#SGD.zero_grad", "optimizer", "optimizer")
    ),
    "callback": {
        "ours": ("perf/callbacks/EarlyStopping.on_train_batch_end", "callbacks", "EarlyStopping.on_train_batch_end"),
        "lightning": (
            "[pl][profile][Callback]EarlyStopping{'monitor': 'a.b'}.on_train_batch_end",
            "callbacks",
            "EarlyStopping.on_train_batch_end",
        ),
    },
    "logging": {
        "ours": ("perf/logging/self.log", "logging", "self.log"),
        "lightning": (
            "[pl][profile][Callback]TQDMProgressBar.on_train_batch_end",
            "logging",
            "TQDMProgressBar.on_train_batch_end",
        ),
    },
    "checkpoint": {
        "ours": ("perf/checkpoint", "checkpoint", "checkpoint"),
        "lightning": ("[pl][profile]save_checkpoint", "checkpoint", "save_checkpoint"),
    },
    "validation": {
        "ours": ("perf/validation", "validation", "validation"),
        "lightning": ("[pl][profile][Strategy]SingleDeviceStrategy.validation_step", "validation", "validation"),
    },
    "compile": dict.fromkeys(("ours", "lightning", "plain"), ("_compile.inner (dynamo_timed)", "compile", "")),
    "collective": dict.fromkeys(("ours", "lightning", "plain"), ("nccl:all_reduce", "communication_host", "")),
}
SWALLOWS = {"data_loading", "checkpoint", "compile"}
"""Everything inside belongs to these."""
GENERIC = {"python", "launch"}
REFILLS = {*GENERIC, "optimizer", "communication_host", "between_steps"}


@dataclass(frozen=True)
class Doing:
    cause: str
    activity: str


@dataclass
class Context:
    """A range of the loop: the cause of generic work in it, and the activity."""

    cause: str
    activity: str

    def at(self, time: int) -> tuple[str, str]:
        return self.cause, self.activity


@dataclass
class PlainStep(Context):
    """A step of the optimizer in a trace without labels: what it does becomes clear only when it is over.

    ``autograd`` has starts and ends of autograd's events in it, ``operators`` the other operators' starts, in order.
    """

    autograd: list[tuple[int, int]] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)

    def at(self, time: int) -> tuple[str, str]:
        before = [end for start, end in self.autograd if start <= time]
        after = [start for start, _ in self.autograd if start > time]
        if before and time < before[-1]:
            return "", "backward"
        if not after:
            return self.cause, self.activity
        if before and not any(before[-1] <= start < after[0] for start in self.operators):
            return "", "backward"
        return "", "forward"


@dataclass
class Span:
    """What a thread was doing, and in which ranges it and the main thread were."""

    start: int
    end: int
    thread: int
    action: str
    activity: str
    contexts: list[Context]
    main_contexts: list[Context]

    @property
    def doing(self) -> Doing:
        return doing(self.start, self.action, self.activity, self.contexts)

    @property
    def main(self) -> Doing:
        """What the main thread showed meanwhile."""
        if self.thread == MAIN:
            return self.doing
        action = self.action if self.action == "profiler" else "python"
        return doing(self.start, action, "", self.main_contexts)


def doing(time: int, action: str, activity: str, contexts: list[Context]) -> Doing:
    """What an action is inside some ranges."""
    around = [context.at(time) for context in contexts]
    causes = [cause for cause, _ in around]
    told = next((name for _, name in reversed(around) if name), "host")
    swallowing = next((cause for cause in causes if cause in SWALLOWS), None)
    if action in ("gc", "profiler"):
        return Doing(action, told)
    if swallowing:
        validating = swallowing == "data_loading" and "validation" in causes[: causes.index(swallowing)]
        return Doing("validation" if validating else swallowing, told)
    if action == "transfer" or (action == "sync" and "transfer" in causes):
        return Doing("transfer", activity if told == "host" and activity else told)
    if action in GENERIC and causes and causes[-1]:
        return Doing(causes[-1], told)
    return Doing(action, told)


@dataclass
class Work:
    """An operation of the device and how it was launched."""

    start: int
    end: int
    call_start: int
    call_end: int
    thread: int
    contexts: list[Context]
    staged: bool = False

    @property
    def activity(self) -> str:
        return doing(self.call_start, *(("transfer",) * 2 if self.staged else ("launch", "")), self.contexts).activity


@dataclass
class Wait:
    """A blocking call."""

    start: int
    end: int
    transfer: bool
    thread: int


@dataclass
class Machine:
    """Runs a program. ``trace`` is what a profiler would have written of it.

    ``autograd`` is the thread of the backward pass: on a CPU it is the one that calls it.
    """

    labels: Labels = "plain"
    autograd: int = BACKWARD
    trace: TraceBuilder = field(default_factory=TraceBuilder)
    now: int = 0
    thread: int = MAIN
    contexts: list[Context] = field(default_factory=list)
    main_contexts: list[Context] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    correlation: int = 0

    def run(self, program: list[Instruction]) -> None:
        for name, *arguments in program:
            getattr(self, name)(*arguments)

    # What the host does

    def step(self, program: list[Instruction]) -> None:
        start = self.now
        self.run(program)
        self.steps.append((start, self.now))
        self.trace.step(len(self.steps), start, self.now)

    def between_steps(self, ns: int) -> None:
        self._pass(ns, "between_steps")

    def inside(self, context: str, program: list[Instruction]) -> None:
        """A range of the loop; traces without labels show only some of them."""
        if self.labels not in CONTEXTS[context]:
            self.run(program)
            return
        name, cause, activity = CONTEXTS[context][self.labels]
        start = self.now
        plain = context == "optimizer" and self.labels == "plain"
        around = self.contexts
        self.contexts = [*around, PlainStep(cause, activity) if plain else Context(cause, activity)]
        self.run(program)
        self.contexts = around
        self.trace.range(name, start, self.now, tid=self.thread)

    def python(self, ns: int) -> None:
        self._pass(ns, "python")

    def operator(self, ns: int) -> None:
        self._operator("aten::view", lambda: self._pass(ns, "launch"))

    def kernel(self, before: int, latency: int, ns: int, stream: int = COMPUTE, late: int = 0) -> None:
        """An operator that launches a kernel; ``late`` holds it back on the device."""

        def body() -> None:
            self._pass(before, "launch")
            self._launch("cudaLaunchKernel", "gemm", latency, ns, stream=stream, late=late)

        self._operator("aten::mm", body)

    def collective(self, latency: int, ns: int) -> None:
        self.ready[COMMUNICATION] = max(self.ready.get(COMMUNICATION, 0), self.ready.get(COMPUTE, 0))
        launch = ("_launch", "cudaLaunchKernelExC", "ncclDevKernel_AllReduce", latency, ns, COMMUNICATION)
        self.inside("collective", [launch])

    def backward(self, program: list[Instruction]) -> None:
        """The backward pass, in most cases on its own thread, while the main thread waits."""
        start, name = self.now, {"ours": "perf/backward", "lightning": "[pl][profile][Strategy]S.backward"}
        self.thread = self.autograd
        around = self.contexts
        steps = [context for context in around if isinstance(context, PlainStep)]
        if self.labels in name:
            self.main_contexts = [*around, Context("", "backward")]
        else:
            self.main_contexts = around
        for instruction in program:
            if instruction[0] == "python":  # between two functions nothing shows on this thread
                self.contexts = self.main_contexts
                self.run([instruction])
                continue
            self.contexts = [*self.main_contexts, Context("", "backward")]
            begin = self.now
            self._pass(1, "launch")
            self.run([instruction])
            self.trace.op("autograd::engine::evaluate_function: MmBackward0", begin, self.now, tid=self.thread)
            if steps:
                steps[-1].autograd.append((begin, self.now))
        self.contexts, self.thread, self.main_contexts = around, MAIN, []
        if self.labels in name:
            self.trace.range(name[self.labels], start, self.now)

    def synchronise(self) -> None:
        self._wait("cudaDeviceSynchronize", max(self.ready.values(), default=0))

    def item(self, latency: int) -> None:
        def body() -> None:
            end = self._launch(
                "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", latency, 1_000, COMPUTE, cat="gpu_memcpy"
            )
            self._wait("cudaStreamSynchronize", end)

        self._operator("aten::item", body)

    def pinned_copy(self, latency: int, ns: int) -> None:
        name = "Memcpy HtoD (Pinned -> Device)"
        self._operator(
            "aten::copy_", lambda: self._launch("cudaMemcpyAsync", name, latency, ns, COPY, cat="gpu_memcpy")
        )

    def blocking_copy(self, latency: int, ns: int) -> None:
        """From pinned memory, but waited for."""

        def body() -> None:
            name = "Memcpy HtoD (Pinned -> Device)"
            end = self._launch("cudaMemcpyAsync", name, latency, ns, COPY, cat="gpu_memcpy")
            self._wait("cudaStreamSynchronize", end, "transfer")

        self._operator("aten::copy_", body)

    def pageable_copy(self, staging: int, ns: int) -> None:
        """The call copies into a pinned buffer when the stream has come to it, and returns when the copy is done."""

        def body() -> None:
            start = self.now
            begin = max(start, self.ready.get(COMPUTE, 0)) + staging
            end = begin + ns
            self._call_out("cudaMemcpyAsync", end + RETURN - start, "transfer", "transfer")
            self._device(
                "Memcpy HtoD (Pageable -> Device)",
                Work(begin, end, start, self.now, self.thread, self.contexts, staged=True),
                COMPUTE,
                "gpu_memcpy",
            )
            self.waits.append(Wait(start, self.now, transfer=True, thread=self.thread))

        self._operator("aten::copy_", body)

    def allocate(self, ns: int) -> None:
        self._operator("aten::empty", lambda: self._call_out("cudaMalloc", ns, "allocation"))

    def load_and_launch(self, loading: int, ns: int) -> None:
        """A kernel's first launch: the module is loaded inside the call."""

        def body() -> None:
            start = self.now
            self._pass(1_000, "launch")
            begin = self.now
            self._pass(loading, "module_load")
            self.trace.range("cuModuleLoadData", begin, self.now, cat="cuda_driver", tid=self.thread)
            self._pass(1_000, "launch")
            self._launched(start, "cudaLaunchKernel", "gemm", 0, ns, COMPUTE)

        self._operator("aten::mm", body)

    def overhead(self, ns: int) -> None:
        start = self.now
        self._pass(ns, "profiler")
        self.trace.complete("Activity Buffer Request", start, self.now, cat="overhead", pid=-1, tid=0)

    def collect_garbage(self, ns: int) -> None:
        start = self.now
        self._pass(ns, "gc")
        self.trace.range("Python GC", start, self.now, cat="python_function", tid=self.thread)

    def graph(self, latency: int, kernels: list[tuple[int, int]]) -> None:
        """One call launches many kernels, each with a pause before it."""
        start = self.now
        self._pass(CALL, "launch")
        self.correlation += 1
        begin = max(start + 1 + latency, self.ready.get(COMPUTE, 0))
        for pause, ns in kernels:
            begin += pause
            work = Work(begin, begin + ns, start, self.now, self.thread, self.contexts)
            self._device("gemm", work, COMPUTE, "kernel")
            begin += ns
        self._trace_call("cudaGraphLaunch", start)

    # How it does it

    def _operator(self, name: str, body: Any) -> None:
        start = self.now
        if self.thread == MAIN:
            for context in self.contexts:
                if isinstance(context, PlainStep):
                    context.operators.append(start)
        body()
        self.trace.op(name, start, self.now, tid=self.thread)

    def _pass(self, ns: int, action: str, activity: str = "") -> None:
        start, self.now = self.now, self.now + ns
        self.spans.append(Span(start, self.now, self.thread, action, activity, self.contexts, self.main_contexts))

    def _trace_call(self, name: str, start: int) -> None:
        self.trace.range(name, start, self.now, cat="cuda_runtime", tid=self.thread, correlation=self.correlation)

    def _call_out(self, name: str, ns: int, action: str, activity: str = "") -> None:
        self.correlation += 1
        start = self.now
        self._pass(ns, action, activity)
        self._trace_call(name, start)

    def _launch(
        self, call: str, name: str, latency: int, ns: int, stream: int, late: int = 0, cat: str = "kernel"
    ) -> int:
        start = self.now
        self._pass(CALL, "launch")
        return self._launched(start, call, name, latency, ns, stream, late, cat)

    def _launched(
        self, start: int, call: str, name: str, latency: int, ns: int, stream: int, late: int = 0, cat: str = "kernel"
    ) -> int:
        self.correlation += 1
        self._trace_call(call, start)
        begin = max(start + 1 + latency, self.ready.get(stream, 0)) + late
        work = Work(begin, begin + ns, start, self.now, self.thread, self.contexts)
        self._device(name, work, stream, cat)
        return begin + ns

    def _device(self, name: str, work: Work, stream: int, cat: str) -> None:
        self.works.append(work)
        self.ready[stream] = work.end
        self.trace.kernel(work.start, work.end, name=name, cat=cat, stream=stream, correlation=self.correlation)

    def _wait(self, name: str, until: int, action: str = "sync") -> None:
        start = self.now
        self._call_out(name, max(until - start, 0) + RETURN, action, action if action == "transfer" else "")
        self.waits.append(Wait(start, self.now, transfer=action == "transfer", thread=self.thread))

    # Why the device was idle

    def truth(self) -> Counter[tuple[str, str]]:
        """Idle nanoseconds from the first step's start to the end of the last step or its work."""
        pieces = list(self._pieces())
        busy = self._busy_cuts()
        credit: list[list[Any]] = []
        driving = {MAIN, *(work.thread for work in self.works)}
        waits = sorted((wait for wait in self.waits if wait.thread in driving), key=lambda wait: wait.end)
        found: Counter[tuple[str, str]] = Counter()
        for start, end, doing, refills in pieces:
            while waits and waits[0].end <= start:
                wait = waits.pop(0)
                lost = sum(min(b, wait.end) - max(a, wait.start) for a, b in busy if a < wait.end and b > wait.start)
                credit.append([lost, "transfer" if wait.transfer else "sync"])
            left = end - start
            while refills and left and credit:
                taken = min(left, credit[-1][0])
                found[credit[-1][1], doing.activity] += taken
                credit[-1][0] -= taken
                left -= taken
                if not credit[-1][0]:
                    credit.pop()
            found[doing.cause, doing.activity] += left
        return +found

    def window(self) -> tuple[int, int]:
        return self.steps[0][0], max(self.steps[-1][1], *(work.end for work in self.works))

    def _cuts(self) -> list[int]:
        start, end = self.window()
        times = {start, end}
        for one in (*self.spans, *self.works):
            times |= {one.start, one.end}
        times |= {work.call_start for work in self.works}
        return sorted(time for time in times if start <= time <= end)

    def _busy_cuts(self) -> list[tuple[int, int]]:
        cuts = self._cuts()
        return [
            (a, b) for a, b in itertools.pairwise(cuts) if any(work.start <= a and b <= work.end for work in self.works)
        ]

    def _pieces(self):
        cuts = self._cuts()
        for start, end in itertools.pairwise(cuts):
            if any(work.start <= start and end <= work.end for work in self.works):
                continue
            following = min(
                (work for work in self.works if work.start >= end),
                key=lambda work: (work.start, work.call_start),
                default=None,
            )
            since = max((work.end for work in self.works if work.end <= start), default=None)
            doing, refills = self._why(start, following, since)
            yield start, end, doing, refills

    def _why(self, at: int, following: Work | None, since: int | None) -> tuple[Doing, bool]:
        running = next((span for span in self.spans if span.start <= at < span.end), None)
        if following is None:  # nothing comes any more
            doing = running.doing if running.thread == MAIN else running.main
            return (replace(doing, cause="step_edge"), False) if doing.cause in REFILLS else (doing, False)
        if at < following.call_start:  # the host is late
            doing = running.doing if running.thread in (MAIN, following.thread) else running.main
            return doing, doing.cause in REFILLS
        queued = since is not None and following.call_start <= since
        waited = following.start - (since if since is not None else following.call_start)
        tail = Doing("launch", following.activity)
        if queued and waited < 20_000:
            return replace(tail, cause="device_gap"), False
        if following.staged:
            return replace(tail, cause="transfer"), False
        if queued and following.call_end <= since:
            return replace(tail, cause="device_wait"), False
        if at < following.call_end and running.doing.cause in {"module_load", "profiler", "gc"}:
            return running.doing, False
        return tail, True
