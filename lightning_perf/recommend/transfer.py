"""Rules about moving batches to the device."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Copy
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import between, exposed, replayed, saving, without

DEFAULT_US: Final = 50.0
"""What Lightning's own transfer hooks take for a batch on a CPU; 17 µs were measured for two tensors."""

FASTER_PINNED: Final = 2.0
"""How much faster a copy out of pinned memory is where the trace has none to measure."""

_OWN_HOOKS: Final = ("transfer/on_before_batch_transfer", "transfer/on_after_batch_transfer")
_TRANSFER: Final = "transfer/transfer_batch_to_device"


def slow_transfer(evidence: Evidence) -> Finding | None:
    """A hook of the user's own around the batch's transfer takes long.

    By default ``on_before_batch_transfer`` and ``on_after_batch_transfer`` do nothing, and on a CPU
    ``transfer_batch_to_device`` takes some 50 µs. On a device it has to copy, and whether it is the user's is not
    known: what the copies take is left to it, and it is left out where they are from pageable memory and hold the host
    (:func:`pageable`). Threshold: none but the saving, which is all beyond that.
    """
    copies = _copies(evidence)
    blocked = any(copy.memory == "pageable" for copy in copies)
    looked_at = _OWN_HOOKS if blocked else (*_OWN_HOOKS, _TRANSFER)
    hooks = {name: spent for name, spent in evidence.spans_us("transfer/").items() if name in looked_at}
    if not hooks:
        return None
    copying = 0.0 if blocked else sum(copy.total_us for copy in copies)
    needed_us = DEFAULT_US + copying / max(1, evidence.steps_recorded) if evidence.device is not None else DEFAULT_US
    spent_us = max(0.0, sum(hooks.values()) - needed_us)
    lost_us = exposed(evidence, "transfer", spent_us)
    if lost_us <= 0:
        return None
    where = max(hooks, key=lambda name: hooks[name]).split("/", 1)[1]
    return finding(
        evidence,
        "h2d.slow_transfer",
        f"Moving the batch ({where}) takes {units.percent(lost_us / evidence.step_us)} of a step.",
        saves=without(evidence, lost_us, "the hook only moves the batch"),
        because=[
            f"{name.split('/', 1)[1]} takes {units.duration(spent)} a step." for name, spent in list(hooks.items())[:2]
        ],
        action=f"Do in the dataset or the collate function what {where} does beside moving the batch: "
        "workers do it while the loop trains.",
        risks=["What is done on the device on purpose (augmentation of whole batches) belongs where it is."],
        confidence="high" if evidence.device is None else "medium",
        where=where,
    )


def pageable(evidence: Evidence) -> Finding | None:
    """Batches are copied to the device out of pageable memory, as the loader does not pin them.

    Such a copy is staged by the driver, and holds the host until it is done. The prediction is the replay's; without
    one it is the device's idle time for transfers, and the high end adds half of the copies' time. Threshold: none but
    the saving. Where the facts of the run are known, ``pin_memory`` must be off.
    """
    loader = evidence.loader
    copies = [copy for copy in _copies(evidence) if copy.memory == "pageable"]
    if evidence.device is None or not copies or (evidence.run is not None and loader is None):
        return None
    if (loader is not None and loader.pin_memory) or (loader is None and _pinned(evidence)):
        return None
    steps = max(1, evidence.steps_recorded)
    copied_us = sum(copy.total_us for copy in copies) / steps
    freed_us = replayed(evidence, "pinned_copies")
    idle_us = evidence.idle_us("transfer")
    best_us = idle_us if freed_us is None else freed_us
    size = sum(copy.bytes or 0 for copy in copies) / steps
    return finding(
        evidence,
        "h2d.pageable",
        f"Copying batches from pageable memory keeps the device waiting {units.percent(best_us / evidence.step_us)} "
        f"of {evidence.per}.",
        saves=between(
            0.5 * best_us,
            best_us,
            best_us + copied_us * (1 - 1 / FASTER_PINNED),
            "batches are pinned when they are moved",
        ),
        because=[
            f"{units.number(sum(copy.calls for copy in copies) / steps)} copies a step from pageable memory"
            + (f", {units.size(size)}" if size else "")
            + f": {units.duration(copied_us)}."
        ],
        action="DataLoader(..., pin_memory=True)",
        risks=["Pinned memory cannot be swapped out: on a machine short of memory it makes others slow."],
        confidence="high" if freed_us is not None else "medium",
        where=f"DataLoader of {loader.dataset_class}" if loader is not None and loader.dataset_class else None,
        from_trace=True,
    )


def unneeded_copy(evidence: Evidence) -> Finding | None:
    """Tensors are made on the host in the step, and copied to the device.

    The loader's batches come in pinned copies; what is copied out of pageable memory beside them was made in the step.
    Threshold: at least one such copy a step, and the saving: the replay's without them holding the host, else the
    device's idle time for transfers.
    """
    loader = evidence.loader
    copies = [copy for copy in _copies(evidence) if copy.memory == "pageable"]
    steps = max(1, evidence.steps_recorded)
    count = sum(copy.calls for copy in copies) / steps
    if evidence.device is None or count < 1:
        return None
    if not _pinned(evidence) or (loader is not None and not loader.pin_memory):
        return None
    freed_us = replayed(evidence, "pinned_copies")
    best_us = evidence.idle_us("transfer") if freed_us is None else freed_us
    copied = units.duration(sum(copy.total_us for copy in copies) / steps)
    return finding(
        evidence,
        "h2d.unneeded_copy",
        f"Each step copies tensors to the device that it has just made on the host: {units.number(count)} copies.",
        saves=saving(best_us, "they are made on the device", low=0.5),
        because=[
            "Batches are copied from pinned memory; these copies are from pageable memory.",
            f"They take {copied} a step, and the host waits for each.",
        ],
        action="torch.zeros(..., device=self.device)  # instead of torch.zeros(...).to(self.device)",
        risks=["A batch of a type of your own is pinned only if it has a method pin_memory."],
        confidence="medium",
        from_trace=True,
    )


def _copies(evidence: Evidence) -> list[Copy]:
    """Copies to the device."""
    return [copy for copy in evidence.window.copies if copy.kind == "HtoD"] if evidence.window is not None else []


def _pinned(evidence: Evidence) -> bool:
    """Whether a step copies at least once from pinned memory."""
    calls = sum(copy.calls for copy in _copies(evidence) if copy.memory == "pinned")
    return calls >= max(1, evidence.steps_recorded)
