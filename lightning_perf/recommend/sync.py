"""Rules about a host that waits for its device and has to fill its queue again."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.predict import Saving, saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import lost_us, operators, predicted, recorded

_ITEM: Final = ("aten::item", "aten::_local_scalar_dense")
"""What ``.item()``, ``float(tensor)`` and ``if tensor:`` call; the inner one launches a copy from a device's tensor."""


def item(evidence: Evidence) -> Finding | None:
    """``.item()`` and its kin drain the queue: the device waits until it is filled again.

    The idle time after a wait, for as long as the host had been ahead, is the cause ``sync``: what removing the wait
    would give back. It is this rule's where at least half of the copies to the host are read by ``.item()``.
    """
    saves = _saves(evidence)
    items, copies = _items(evidence)
    if saves is None or items < 1 or 2 * items < copies:
        return None
    calls = items / recorded(evidence)
    return finding(
        evidence,
        "sync.item",
        f"Reading tensors on the host ({units.number(calls)} times in {evidence.per}) lets the device run dry.",
        saves=saves,
        because=[
            f"{units.duration(lost_us(evidence, 'sync'))} of idle time in {evidence.per} follows waits for the device.",
            f"{units.number(calls)} calls of .item(), float() or if on a device's tensor in {evidence.per}.",
        ],
        action="Keep values as tensors (loss.detach()), log every N steps, and read them once at the epoch's end.",
        risks=["A value that decides what the next operator is has to be read."],
        where=_where(evidence),
        from_trace=True,
    )


def explicit(evidence: Evidence) -> Finding | None:
    """Synchronising calls and blocking copies, not ``.item()``, drain the queue."""
    saves = _saves(evidence)
    items, copies = _items(evidence)
    if saves is None or (items >= 1 and 2 * items >= copies):
        return None
    lost = units.duration(lost_us(evidence, "sync"))
    because = [f"{lost} of idle time in {evidence.per} follows waits for the device."]
    if copies:
        because.append(
            f"{units.number(copies / recorded(evidence))} copies to the host in {evidence.per}, "
            f"{units.number(items / recorded(evidence))} of them for .item()."
        )
    return finding(
        evidence,
        "sync.explicit",
        "Waiting for the device (synchronising calls, blocking copies) lets it run dry.",
        saves=saves,
        because=because,
        action="Drop torch.cuda.synchronize(); copy with .to('cpu', non_blocking=True) and use the value a step later.",
        risks=["After a copy that does not block, synchronise an event before reading the value."],
        where=_where(evidence),
        from_trace=True,
    )


def _saves(evidence: Evidence) -> Saving | None:
    if trusted_window(evidence) is None:
        return None
    lost = lost_us(evidence, "sync")
    if not lost:
        return None
    return predicted(evidence, "sync", saving(lost, "the values are used later, or never", low=0.5), dispatch=True)


def _items(evidence: Evidence) -> tuple[int, int]:
    """Copies to the host that ``.item()`` launched, and all of them."""
    items = sum(row.launches or 0 for row in operators(evidence, _ITEM))
    copies = sum(copy.calls for copy in (evidence.window.copies if evidence.window else []) if copy.kind == "DtoH")
    return items, max(copies, items)


def _where(evidence: Evidence) -> str | None:
    """The call site of the reads, else the activity in which most of the idle time lies."""
    sites = [row.call_site for row in operators(evidence, _ITEM) if row.call_site is not None]
    shares = evidence.idle_shares("sync")
    return sites[0] if sites else shares[0].activity if shares else None
