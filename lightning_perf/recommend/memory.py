"""Rules about memory: too little of it, too much of it, growth and fragments. All are notes: they save no time."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.host import launch_bound_too_much
from lightning_perf.recommend.quality import DOUBTFUL, trusted_window
from lightning_perf.recommend.saturation import low_occupancy

NEAR_LIMIT_RATIO: Final = 0.9
"""Peak over the device's memory from which on torch-tb-profiler warns, too."""

HEADROOM_RATIO: Final = 0.5
"""Peak over the device's memory below which twice the batch would fit."""

GROWING_STEPS: Final = 3
"""Steps that must all end with more memory than the one before."""

GROWTH_BYTES: Final = 1 << 20
"""Growth per step from which on a run of thousands of steps ends in running out of memory."""

FRAGMENTED_RATIO: Final = 1.5
"""Reserved over allocated memory at their peaks from which on fragments are likely: a cache that fits is close to 1."""

FRAGMENTED_BYTES: Final = 1 << 30
"""Reserved memory beyond the allocated that is worth looking at."""


def near_limit(evidence: Evidence) -> Finding | None:
    """The peak of allocated memory is beyond 90 % of the device's."""
    used = _used(evidence)
    if used is None or used[1] <= NEAR_LIMIT_RATIO * used[2]:
        return None
    index, peak, total = used
    return finding(
        evidence,
        "mem.near_limit",
        f"Device {index} is nearly full: {units.size(peak)} of {units.size(total)} at the peak.",
        saves=None,
        because=[f"{units.percent(peak / total)} allocated at the peak; a longer sequence or a larger batch may fail."],
        action="Activation checkpointing, 16 bit precision, or a smaller batch with accumulate_grad_batches",
        risks=["Activation checkpointing computes the forward pass twice."],
    )


def headroom(evidence: Evidence) -> Finding | None:
    """Less than half of the memory is used, and the device is kept waiting by dispatching or is hardly filled.

    Never where the trace lacks device work: such a device only seems idle. Nor where it waits for something that a
    larger batch makes longer, such as data.
    """
    used = _used(evidence)
    codes = {note.code for note in evidence.window.quality} if evidence.window is not None else set()
    if used is None or used[1] >= HEADROOM_RATIO * used[2] or trusted_window(evidence) is None or codes & DOUBTFUL:
        return None
    waiting = launch_bound_too_much(evidence)
    if not waiting and low_occupancy(evidence) is None:
        return None
    index, peak, total = used
    why = "waits for the host to launch work" if waiting else "has multiprocessors without work"
    return finding(
        evidence,
        "mem.headroom",
        f"Device {index} {why} and uses {units.percent(peak / total)} of its memory: a larger batch fits.",
        saves=None,
        because=[f"Peak {units.size(peak)} of {units.size(total)}; larger batches do more work per launch."],
        action=f"DataLoader(..., batch_size={_larger_batch(evidence)})",
        risks=["A larger batch changes training: scale the learning rate, and compare results."],
        confidence="medium",
    )


def retries(evidence: Evidence) -> Finding | None:
    """The allocator had to give its cache back, once or more, before an allocation succeeded."""
    counts = evidence.run.memory.retries if evidence.run is not None else {}
    index = max(counts, key=lambda one: counts[one], default=None)
    if index is None or not counts[index]:
        return None
    failed = evidence.run.memory.out_of_memory.get(index, 0) if evidence.run is not None else 0
    because = ["Each time the device is synchronised and its cache is given back and allocated again."]
    if failed:
        because.append(f"{units.count(failed)} allocations failed altogether.")
    return finding(
        evidence,
        "mem.retries",
        f"Device {index} ran out of memory {units.count(counts[index])} times and its cache had to be freed.",
        saves=None,
        because=because,
        action="A smaller batch, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        risks=["Retries in the first steps, while the cache settles, cost nothing later."],
    )


def growth(evidence: Evidence) -> Finding | None:
    """Each recorded step ends with at least 1 MiB more than the one before, for three steps or more: a leak."""
    memory = evidence.window.memory if evidence.window is not None else None
    growing = {
        device: steps
        for device, steps in (memory.step_growth_bytes.items() if memory is not None else ())
        if len(steps) >= GROWING_STEPS and min(steps) >= GROWTH_BYTES
    }
    if not growing:
        return None
    device, steps = max(growing.items(), key=lambda item: min(item[1]))
    where = "the process's memory" if device == "cpu" else f"device {device}"
    mean = sum(steps) / len(steps)
    return finding(
        evidence,
        "mem.growth",
        f"Each step leaves {units.size(mean)} more on {where}: memory leaks.",
        saves=None,
        because=[f"At the end of {len(steps)} steps: {', '.join('+' + units.size(one) for one in steps[:5])}."],
        action="Keep loss.detach() or loss.item() instead of the loss, and clear lists of outputs every epoch.",
        confidence="medium",
        from_trace=True,
    )


def fragmentation(evidence: Evidence) -> Finding | None:
    """The allocator reserves 1.5 times what was ever allocated, and 1 GiB more: fragments, or changing sizes."""
    memory = evidence.run.memory if evidence.run is not None else None
    if memory is None:
        return None
    unused = {
        index: reserved - memory.allocated_bytes[index]
        for index, reserved in memory.reserved_bytes.items()
        if index in memory.allocated_bytes
        if reserved >= FRAGMENTED_RATIO * memory.allocated_bytes[index]
    }
    index = max(unused, key=lambda one: unused[one], default=None)
    if index is None or unused[index] < FRAGMENTED_BYTES:
        return None
    return finding(
        evidence,
        "mem.fragmentation",
        f"Device {index} reserves {units.size(unused[index])} more than was ever allocated.",
        saves=None,
        because=[
            f"Reserved at the peak: {units.size(memory.reserved_bytes[index])}.",
            f"Allocated at the peak: {units.size(memory.allocated_bytes[index])}.",
        ],
        action="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        risks=["Batches of changing sizes do this, too: padding to a few sizes helps."],
        confidence="medium",
    )


def _used(evidence: Evidence) -> tuple[str, int, int] | None:
    """The fullest device of the run: its number, its peak of allocated memory and its size."""
    if evidence.run is None:
        return None
    peaks = evidence.run.memory.allocated_bytes
    known = [
        (str(one.index), peaks[str(one.index)], one.memory_bytes)
        for one in evidence.run.devices
        if str(one.index) in peaks and one.memory_bytes
    ]
    return max(known, key=lambda one: one[1] / one[2], default=None)


def _larger_batch(evidence: Evidence) -> str:
    size = evidence.loader.batch_size if evidence.loader is not None else None
    return str(2 * size) if size else "twice as large"
