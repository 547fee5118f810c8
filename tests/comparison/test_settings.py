"""What differs between two set-ups, and what of it people turned."""

from __future__ import annotations

import msgspec

from lightning_perf.comparison.records import Setting
from lightning_perf.comparison.settings import knobs, settings
from lightning_perf.runinfo import DeviceFacts, LoaderFacts, MemoryPeaks
from tests.records import run_info

RUN = run_info(devices=[], memory=MemoryPeaks())
LOADER = LoaderFacts(stage="fit", loader_class="DataLoader", batch_size=32, num_workers=0, length=10)


def with_loader(**changes: object):
    return msgspec.structs.replace(RUN, loaders=[msgspec.structs.replace(LOADER, **changes)])


def test_the_same_run_differs_in_nothing() -> None:
    assert settings(RUN, RUN) == []


def test_workers_are_one_knob() -> None:
    rows = settings(with_loader(), with_loader(num_workers=4, prefetch_factor=2, persistent_workers=True))
    assert rows[0] == Setting(name="loader.num_workers", base="0", candidate="4", knob=True)
    assert len(rows) == 3
    assert knobs(rows) == 1


def test_where_it_ran_is_no_knob() -> None:
    other = msgspec.structs.replace(
        RUN,
        cpu_count=4,
        devices=[DeviceFacts(index=0, name="A100")],
        versions=msgspec.structs.replace(RUN.versions, torch="2.6.0"),
        trainer=msgspec.structs.replace(RUN.trainer, precision="bf16-mixed", max_epochs=9),
        created_unix_ns=5,
    )
    rows = settings(RUN, other)
    assert [(row.name, row.knob) for row in rows] == [
        ("trainer.precision", True),
        ("trainer.max_epochs", False),
        ("devices", False),
        ("cpu_count", False),
        ("versions.torch", False),
    ]
    assert knobs(rows) == 1
    assert rows[2].base == "none"


def test_other_stages_loaders_do_not_count() -> None:
    validates = msgspec.structs.replace(LOADER, stage="validate", num_workers=8)
    assert settings(with_loader(), msgspec.structs.replace(RUN, loaders=[LOADER, validates])) == []
