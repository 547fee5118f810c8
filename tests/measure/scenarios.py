"""Trainings that are slow for one reason, and the same trainings repaired: programs for the simulator.

The step time after a repair is not predicted here: the repaired program runs, too. Times in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_perf.decode.trace import Trace
from lightning_perf.measure.replay import Change
from tests.measure.simulator import CALL, COMPUTE, Instruction, Machine, Work

STEPS = 6
LATENCY = 4_000
US, MS = 1_000, 1_000_000

HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
SINGLE = "ampere_sgemm_128x64_tn"
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}


@dataclass
class Training(Machine):
    """A machine with an A100, whose matrix products use 16 bit numbers unless they say otherwise."""

    def __post_init__(self) -> None:
        self.labels = "ours"
        self.trace.metadata["deviceProperties"] = [A100]

    def product(self, before: int, ns: int, name: str = HALF) -> None:
        """An operator that launches a kernel by name."""

        def body() -> None:
            self._pass(before, "launch")
            self._launch("cudaLaunchKernel", name, LATENCY, ns, stream=COMPUTE)

        self._operator("aten::mm", body)

    def pause(self, ns: int) -> None:
        """What comes next on the device comes a moment later."""
        self.ready[COMPUTE] += ns

    def loading(self, ns: int) -> None:
        """A kernel's first launch, with the module to load; the kernel itself takes 10 us."""
        self.load_and_launch(ns, 10 * US)

    def pinned(self, ns: int, size: int) -> None:
        """A copy from pinned memory on the stream of the kernels."""

        def body() -> None:
            name = "Memcpy HtoD (Pinned -> Device)"
            self._launch("cudaMemcpyAsync", name, LATENCY, ns, stream=COMPUTE, cat="gpu_memcpy")
            self.trace.events[-1]["args"]["bytes"] = size

        self._operator("aten::copy_", body)

    def pageable(self, staging: int, ns: int, size: int) -> None:
        """A copy from pageable memory."""
        self.pageable_copy(staging, ns)
        copy = next(event for event in reversed(self.trace.events) if event["cat"] == "gpu_memcpy")
        copy["args"]["bytes"] = size

    def _device(self, name: str, work: Work, stream: int, cat: str) -> None:
        super()._device(HALF if name == "gemm" else name, work, stream, cat)


@dataclass(frozen=True)
class Scenario:
    """A slow training, the changes that repair it, the repaired training, and what to say first about the slow one.

    ``rule`` is None where nothing is wrong. ``within`` is how near the predicted step time is to the repaired one's.
    """

    name: str
    slow: list[Instruction]
    fixed: list[Instruction]
    changes: list[Change]
    rule: str | None
    within: float = 0.0005
    steps: int = STEPS

    def machine(self, program: list[Instruction]) -> Training:
        """The program after its steps."""
        training = Training()
        training.run(program)
        return training

    def trace(self, program: list[Instruction], folder: Path) -> Trace:
        """What a profiler would have recorded of it."""
        return self.machine(program).trace.trace(folder)

    def step_ns(self, program: list[Instruction]) -> float:
        """Its mean step, from the end of the work before the first step to the end of the last one's."""
        machine = self.machine(program)
        start, end = machine.window()
        before = [work.end for work in machine.works if work.call_start < start]
        return (end - max([start, *before])) / self.steps


def inside(phase: str, *program: Instruction) -> Instruction:
    return ("inside", phase, list(program))


def products(count: int, before: int, ns: int, name: str = HALF) -> list[Instruction]:
    return [("product", before, ns, name)] * count


def forward(count: int, ns: int, before: int = 20 * US, name: str = HALF) -> Instruction:
    """Some matrix products that take the device a time together."""
    return inside("forward", *products(count, before, ns // count, name))


def data(ns: int) -> Instruction:
    return inside("data", ("python", ns))


def repeated(*program: Instruction) -> list[Instruction]:
    return [("step", list(program))] * STEPS


def every_other(often: list[Instruction], seldom: list[Instruction]) -> list[Instruction]:
    return [("step", [*often, *(seldom if number % 2 == 0 else [])]) for number in range(STEPS)]


def adam(launches: int, ns: int = 2 * US) -> Instruction:
    return inside("optimizer", *products(launches, 24 * US, ns))


ITEM: Instruction = ("item", LATENCY)
BATCH = data(50 * US)
WORK_18 = forward(18, 18 * MS, before=50 * US)
QUEUED: list[Instruction] = [("product", 20 * US, 20 * MS), ("pause", 1 * US)]
"""Work from before the first step, so that it finds the device as busy as the other steps do."""


def _scenario(
    name: str,
    rule: str | None,
    slow: list[Instruction],
    fixed: list[Instruction],
    *changes: Change,
    within: float = 0.0005,
) -> Scenario:
    return Scenario(name, slow, fixed, list(changes), rule, within)


def _with_items(count: int, kernels: int, ns: int, *, items: bool) -> list[Instruction]:
    part = products(kernels, 20 * US, ns)
    program = [*part, ITEM] * count if items else part * count
    return repeated(BATCH, inside("forward", *program))


def _optimizer(launches: int, *, sync: bool) -> list[Instruction]:
    work = forward(6, 6 * MS if sync else 600 * US)
    return repeated(BATCH, work, *([ITEM] if sync else []), adam(launches))


def _hidden(kind: str, ns: int, *, present: bool) -> list[Instruction]:
    hook = [inside(kind, ("python", ns))] if present else []
    return repeated(BATCH, WORK_18, *hook)


def _exposed(kind: str, device_ns: int, *program: Instruction) -> list[Instruction]:
    """Each step waits for the device before something else happens."""
    extra = [inside(kind, *program)] if program else []
    return repeated(BATCH, forward(6, device_ns), ITEM, *extra)


def _communication(ns: int) -> list[Instruction]:
    return repeated(BATCH, WORK_18, inside("optimizer", ("collective", LATENCY, ns), ("synchronise",)))


def _pageable(*copies: Instruction) -> list[Instruction]:
    return repeated(BATCH, inside("transfer", *copies), WORK_18)


SIZE = 64 << 20
LABELS: Instruction = ("pinned", 500 * US, SIZE // 8)
VALIDATION = (("python", 10 * MS), *products(10, 1 * MS, 1 * MS), ("item", LATENCY), ("python", 10 * MS))

SCENARIOS = [
    _scenario(
        "a loader that the device hides in part",
        "data.sync_loader",
        [*QUEUED, *repeated(data(20 * MS), forward(12, 18 * MS))],
        [*QUEUED, *repeated(data(0), forward(12, 18 * MS))],
        Change("data_loading"),
    ),
    _scenario(
        "a loader that the device hides",
        None,
        [*QUEUED, *repeated(data(10 * MS), forward(12, 18 * MS))],
        [*QUEUED, *repeated(data(0), forward(12, 18 * MS))],
        Change("data_loading"),
    ),
    _scenario(
        "item() in the forward pass",
        "sync.item",
        _with_items(6, 2, 300 * US, items=True),
        _with_items(6, 2, 300 * US, items=False),
        Change("sync"),
        within=0.02,
    ),
    _scenario(
        "item(), but the launches are what takes long",
        "host.launch_bound",
        _with_items(6, 25, 4 * US, items=True),
        _with_items(6, 25, 4 * US, items=False),
        Change("sync"),
        within=0.02,
    ),
    _scenario(
        "many small launches",
        "host.launch_bound",
        repeated(data(0), inside("forward", *products(400, 21 * US, 4 * US))),
        repeated(data(0), inside("forward", *products(400, (21 * US - CALL) // 2, 4 * US))),
        Change("launch_half"),
    ),
    _scenario(
        "an optimizer with a launch per parameter after a synchronisation",
        "host.optimizer_loop",
        _optimizer(300, sync=True),
        _optimizer(3, sync=True),
        Change("optimizer"),
    ),
    _scenario(
        "the same, repaired by dropping the synchronisation",
        "host.optimizer_loop",
        _optimizer(300, sync=True),
        _optimizer(300, sync=False),
        Change("sync"),
        within=0.05,
    ),
    _scenario(
        "an optimizer with a launch per parameter",
        "host.optimizer_loop",
        _optimizer(300, sync=False),
        _optimizer(3, sync=False),
        Change("optimizer"),
    ),
    _scenario(
        "single precision on a busy device",
        "gpu.amp",
        repeated(BATCH, forward(54, 54 * MS, name=SINGLE)),
        repeated(BATCH, forward(54, 27 * MS)),
        Change("mixed_precision"),
    ),
    _scenario(
        "single precision, but the launches are what takes long",
        "host.launch_bound",
        repeated(BATCH, inside("forward", *products(500, 21 * US, 8 * US, SINGLE))),
        repeated(BATCH, inside("forward", *products(500, 21 * US, 4 * US))),
        Change("mixed_precision"),
    ),
    _scenario(
        "recompilation in every step",
        "host.recompile",
        repeated(BATCH, inside("forward", inside("compile", ("python", 30 * MS))), WORK_18),
        repeated(BATCH, WORK_18),
        Change("compile"),
    ),
    _scenario(
        "memory from the driver in every step",
        "host.alloc",
        repeated(BATCH, WORK_18, ("allocate", 25 * MS)),
        repeated(BATCH, WORK_18, ("allocate", 0)),
        Change("allocation"),
    ),
    _scenario(
        "modules loaded in every step",
        "host.module_load",
        repeated(BATCH, WORK_18, ("loading", 40 * MS)),
        repeated(BATCH, WORK_18, ("loading", 0)),
        Change("module_load"),
    ),
    _scenario(
        "validation in every step",
        "host.validation",
        _exposed("validation", 18 * MS, *VALIDATION),
        _exposed("validation", 18 * MS),
        Change("validation"),
    ),
    _scenario(
        "logging that waits for the device",
        "host.logging",
        _exposed("logging", 6 * MS, ("python", 6 * MS), ITEM, ("python", 6 * MS)),
        _exposed("logging", 6 * MS),
        Change("logging"),
    ),
    _scenario(
        "a batch in pageable memory",
        "h2d.pageable",
        _pageable(LABELS, ("pageable", 200 * US, 8 * MS, SIZE)),
        _pageable(LABELS, ("pinned", 4 * MS, SIZE)),
        Change("pinned_copies"),
    ),
    _scenario(
        "a checkpoint every other step",
        "host.checkpoint",
        every_other([BATCH, forward(6, 18 * MS), ITEM], [inside("checkpoint", ("python", 60 * MS))]),
        every_other([BATCH, forward(6, 18 * MS), ITEM], []),
        Change("checkpoint"),
    ),
    _scenario(
        "garbage collection in every step",
        "host.gc",
        repeated(BATCH, forward(30, 6 * MS, before=47 * US), ("collect_garbage", 6 * MS)),
        repeated(BATCH, forward(30, 6 * MS, before=47 * US)),
        Change("gc"),
    ),
    _scenario(
        "a busy device",
        None,
        repeated(BATCH, forward(54, 54 * MS)),
        repeated(BATCH, forward(54, 54 * MS)),
    ),
    _scenario(
        "communication that nothing hides",
        "comm.exposed",
        _communication(9 * MS),
        _communication(0),
        Change("communication"),
    ),
    _scenario(
        "a hook that the device hides",
        None,
        _hidden("callback", 4 * MS, present=True),
        _hidden("callback", 4 * MS, present=False),
        Change("callbacks"),
    ),
    _scenario(
        "a slow hook",
        "host.hook",
        _hidden("callback", 25 * MS, present=True),
        _hidden("callback", 25 * MS, present=False),
        Change("callbacks", "EarlyStopping.on_train_batch_end"),
    ),
]
"""The scenarios by which advice is judged."""
