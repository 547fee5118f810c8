"""Rules about moving batches to the device."""

from __future__ import annotations

import msgspec
import pytest

from lightning_perf.measure.analysis import Copy
from lightning_perf.recommend.evidence import evidence_of_trace
from lightning_perf.recommend.transfer import pageable, slow_transfer, unneeded_copy
from lightning_perf.runinfo import DeviceFacts
from tests.recommend.cases import evidence_of, loader
from tests.recommend.test_predict import seen

GPU = [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB")]
TRANSFER = ("transfer", "transfer")
OWN = "transfer/on_after_batch_transfer"
MOVE = "transfer/transfer_batch_to_device"


def copies(*, pageable_calls: int = 0, pinned_calls: int = 0) -> list[Copy]:
    """Copies to the device in two steps, 4 ms each."""
    rows = [("pageable", pageable_calls), ("pinned", pinned_calls)]
    return [
        Copy(kind="HtoD", memory=memory, calls=calls, total_us=4_000.0 * calls, bytes=calls << 20, gb_per_s=None)
        for memory, calls in rows
        if calls
    ] + [Copy(kind="DtoH", memory="pageable", calls=9, total_us=9.0, bytes=36, gb_per_s=None)]


def window(found: list[Copy], what_if: dict[str, float] | None = None, idle_us: float = 3_000.0):
    return msgspec.structs.replace(seen({TRANSFER: 5_000}, {TRANSFER: idle_us}, what_if), copies=found)


def test_a_slow_hook_on_a_cpu():
    evidence = evidence_of({"transfer": 6_500, "forward": 3_500}, hooks_us={MOVE: 6_450, OWN: 0.9, "transfer": 49})
    found = slow_transfer(evidence)
    assert found.title == "Moving the batch (transfer_batch_to_device) takes 64 % of a step."
    assert found.saving_us_per_step == pytest.approx(6_400.9 + 0.05 * 3_599.1)
    assert (found.where, found.confidence) == ("transfer_batch_to_device", "high")


def test_the_default_hooks_are_no_finding():
    assert (
        slow_transfer(evidence_of({"transfer": 35, "forward": 100}, hooks_us={MOVE: 17, OWN: 1, "transfer": 17}))
        is None
    )
    assert slow_transfer(evidence_of({"forward": 100})) is None


def test_a_slow_hook_with_a_device():
    # 8 ms in hooks, of which one pinned copy of 4 ms in each step is needed; the device idles for 3 of 5 ms.
    evidence = evidence_of(
        {"transfer": 8_050, "forward": 18_450},
        hooks_us={MOVE: 1_050, OWN: 7_000},
        window=window(copies(pinned_calls=2)),
        devices=GPU,
    )
    found = slow_transfer(evidence)
    assert found.saving_us_per_step == pytest.approx(4_000 * 3 / 5)
    assert (found.where, found.confidence) == ("on_after_batch_transfer", "medium")


def test_pageable_copies_are_no_slow_hook():
    evidence = evidence_of(
        {"transfer": 8_000, "forward": 18_500},
        hooks_us={MOVE: 8_000},
        window=window(copies(pageable_calls=2)),
        devices=GPU,
    )
    assert slow_transfer(evidence) is None


def test_pageable_copies():
    facts = [loader(pin_memory=False)]
    evidence = evidence_of(
        {"transfer": 8_000, "forward": 18_500},
        window=window(copies(pageable_calls=2), {"pinned_copies": 7_500}),
        devices=GPU,
        loaders=facts,
    )
    found = pageable(evidence)
    assert found.title == "Copying batches from pageable memory keeps the device waiting 28 % of a step."
    assert found.saving_us_per_step == pytest.approx(7_500)
    assert found.saving_range_us == (pytest.approx(3_750), pytest.approx(9_500))
    assert found.evidence == ["1.00 copies a step from pageable memory, 1.00 MiB: 4.00 ms."]
    assert (found.action, found.confidence) == ("DataLoader(..., pin_memory=True)", "high")
    assert found.trace is not None
    closed = evidence_of(
        {"transfer": 8_000, "forward": 18_500}, window=window(copies(pageable_calls=2)), devices=GPU, loaders=facts
    )
    assert (pageable(closed).saving_us_per_step, pageable(closed).confidence) == (pytest.approx(3_000), "medium")


@pytest.mark.parametrize(
    ("pin_memory", "found"), [(True, copies(pageable_calls=2)), (False, copies(pinned_calls=2)), (False, [])]
)
def test_copies_that_are_pinned(pin_memory, found):
    evidence = evidence_of(
        {"forward": 26_500}, window=window(found), devices=GPU, loaders=[loader(pin_memory=pin_memory)]
    )
    assert pageable(evidence) is None


def test_a_trace_alone():
    assert pageable(evidence_of_trace(window(copies(pageable_calls=2)))).saving_us_per_step == pytest.approx(3_000)
    assert pageable(evidence_of_trace(window(copies(pageable_calls=2, pinned_calls=2)))) is None


def test_tensors_made_on_the_host():
    evidence = evidence_of(
        {"forward": 26_500},
        window=window(copies(pageable_calls=20, pinned_calls=4)),
        devices=GPU,
        loaders=[loader(pin_memory=True)],
    )
    found = unneeded_copy(evidence)
    assert found.saving_us_per_step == pytest.approx(3_000)
    assert "10.0 copies" in found.title
    assert pageable(evidence) is None


@pytest.mark.parametrize(
    ("pin_memory", "found"),
    [
        (True, copies(pinned_calls=4)),
        (False, copies(pageable_calls=4)),
        (True, copies(pageable_calls=1, pinned_calls=4)),
    ],
)
def test_no_tensors_made_on_the_host(pin_memory, found):
    evidence = evidence_of(
        {"forward": 26_500}, window=window(found), devices=GPU, loaders=[loader(pin_memory=pin_memory)]
    )
    assert unneeded_copy(evidence) is None
