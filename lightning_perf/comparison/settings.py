"""What differs between how two runs were set up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lightning_perf.comparison.records import Setting
from lightning_perf.runinfo import RunInfo

_WORKERS = frozenset({"loader.num_workers", "loader.prefetch_factor", "loader.persistent_workers"})
"""One knob to people: torch sets the others with the first, or refuses them without."""

_COUNTED = frozenset({"loader.length", "trainer.batches_per_epoch", "trainer.max_epochs", "trainer.max_steps"})
"""How long a run is: no reason for a step to take longer."""


def settings(base: RunInfo, candidate: RunInfo) -> list[Setting]:
    """What differs, in the order of the record: first the knobs, then where it ran."""
    before, after = dict(_facts(base)), dict(_facts(candidate))
    names = dict.fromkeys([*before, *after])
    different = [name for name in names if before.get(name) != after.get(name)]
    rows = [
        Setting(name=name, base=_text(before.get(name)), candidate=_text(after.get(name)), knob=_is_knob(name))
        for name in different
    ]
    return sorted(rows, key=lambda row: not row.knob)


def knobs(rows: list[Setting]) -> int:
    """How many knobs were turned between the two runs."""
    return len({"workers" if row.name in _WORKERS else row.name for row in rows if row.knob})


def _is_knob(name: str) -> bool:
    return name not in _COUNTED and name.startswith(("trainer", "flags", "loader", "optimizer", "model"))


def _facts(run: RunInfo) -> Iterator[tuple[str, object]]:
    yield "model", run.model
    yield from _fields("trainer", run.trainer)
    yield from _fields("flags", run.flags)
    loaders = [loader for loader in run.loaders if loader.stage == run.stage]
    for place, loader in enumerate(loaders):
        yield from _fields("loader" if place == 0 else f"loader {place}", loader)
    for place, optimizer in enumerate(run.optimizers):
        yield from _fields("optimizer" if place == 0 else f"optimizer {place}", optimizer)
    yield "devices", [device.name for device in run.devices]
    yield "world_size", run.world_size
    yield "cpu_count", run.cpu_count
    yield from _fields("versions", run.versions)


def _fields(group: str, record: msgspec.Struct | None) -> Iterator[tuple[str, object]]:
    if record is None:
        return
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, msgspec.Struct):
            yield from _fields(f"{group}.{name}", value)
        elif name not in ("stage", "unused_parameter_bytes"):
            yield f"{group}.{name}", value


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
