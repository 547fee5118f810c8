"""The rule about loops over elements."""

from __future__ import annotations

from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Operator
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.host import call_site
from lightning_perf.recommend.predict import Saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import DISPATCH, loop_us, lost_us, operators, recorded

ELEMENT_CALLS: Final = 50
"""Calls of one indexing operator in a step from which on they are taken for a loop. PyTorch's own rule took 10 in one
operator and was switched off for being noisy; here the saving decides, too."""

BODY_CALLS: Final = 0.4
"""Calls of other operators over those of the indexing from which on they are taken for the loop's body."""

BODY_US: Final = 10.0
"""Operators on one element take less than this on average, also under the profiler."""

LOOP_SHARE: Final = 0.04
"""Share of all calls of operators that index from which on the body counts, too: models slice here and there."""

_ELEMENT: Final = ("aten::select", "aten::index", "aten::item", "aten::index_put_")
_FETCHED: Final = frozenset({"aten::select", "aten::as_strided"})
"""What a TensorDataset calls for each tensor of each sample, where batches are made in the loop's thread."""


def loop_index(evidence: Evidence) -> Finding | None:
    """One indexing operator is called 50 times a step or more: a loop over elements.

    It costs the indexing, the operators that are called about as often, their backward pass, and as much of the Python
    time of the forward pass as their share of all calls. A vectorised form takes a tenth.
    """
    looped = {row.name: _calls(evidence, row) for row in operators(evidence, _ELEMENT)}
    name = max(looped, key=lambda one: looped[one], default=None)
    if evidence.window is None or name is None or looped[name] < ELEMENT_CALLS:
        return None
    cost = _cost_us(evidence, looped[name])
    if evidence.device is not None:  # what the device's work hides brings nothing
        if trusted_window(evidence) is None:
            return None
        cost = min(cost, lost_us(evidence, *DISPATCH, "sync"))
    sites = [row.call_site for row in operators(evidence, (name,)) if row.call_site is not None]
    return finding(
        evidence,
        "host.loop_index",
        f"A loop over elements calls {name} {units.count(round(looped[name]))} times in {evidence.per}.",
        saves=Saving(0.9 * cost, 0.5 * cost, cost, "a vectorised form takes a tenth of the loop's time"),
        because=[f"With the operators and the Python code around, it takes {units.duration(cost)} of {evidence.per}."],
        action="Index once with a tensor (x[indices], torch.gather, masks), and compute on whole tensors.",
        confidence="medium",
        where=sites[0] if sites else call_site(evidence),
        from_trace=True,
    )


def _calls(evidence: Evidence, row: Operator) -> float:
    """Calls of an operator per step, without those that fetching a batch seems to make: two tensors per sample."""
    calls = row.calls / recorded(evidence)
    loader = evidence.loader
    if loader is None or loader.num_workers != 0 or row.name not in _FETCHED:
        return calls
    return max(0.0, calls - 2 * (loader.batch_size or 0))


def _cost_us(evidence: Evidence, calls: float) -> float:
    """Cost per step of the loop around an operator that is called so often."""
    rows = evidence.window.operators if evidence.window is not None else []
    total = sum(row.calls for row in rows) / recorded(evidence)
    whole = calls >= LOOP_SHARE * total
    body = [row for row in rows if row.name in _ELEMENT or (whole and _in_body(row, calls * recorded(evidence)))]
    called = sum(_calls(evidence, row) for row in body)
    own = sum(row.self_us * _calls(evidence, row) / row.calls for row in body) / evidence.inflation
    around = min(1.0, called / total) * loop_us(evidence, {"python"}, {"forward"})
    return min(own + around, _host_us(evidence))


def _in_body(row: Operator, calls: float) -> bool:
    return row.calls >= BODY_CALLS * calls and row.self_us < BODY_US * row.calls


def _host_us(evidence: Evidence) -> float:
    """Most that a loop in the forward pass can cost: all of the pass, and of the backward pass."""
    return loop_us(evidence, {"launch", "python"}, {"forward", "backward", "host"}) or evidence.step_us
