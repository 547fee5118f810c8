"""What interrupts the loop, what collating costs, and how much of it all the processor worked."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lightning_perf import PerfCallback
from lightning_perf.capture.interruptions import Interruptions
from lightning_perf.runinfo import LoopRecord
from tests.training import Net, Plant, loader, quiet

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def recorded(folder: Path, module: Net, data: DataLoader, **settings: Any) -> PerfCallback:
    callback = PerfCallback(dirpath=str(folder / "perf"), summary=False)
    quiet(folder, callbacks=[callback], logger=False, **settings).fit(module, data)
    return callback


def loop_of(callback: PerfCallback) -> LoopRecord:
    record = callback.analysis.run.loop
    assert record is not None
    return record


def span_ns(record: LoopRecord, name: str) -> int:
    return sum(span.plain_ns + span.traced_ns for span in record.spans if span.name == name)


class Cyclic(Net):
    """Leaves cycles behind and collects them in the step."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        for _ in range(20_000):
            cycle: list[Any] = []
            cycle.append(cycle)
        began = time.perf_counter_ns()
        gc.collect()
        self.plant.slept_ns.append(time.perf_counter_ns() - began)
        return super().training_step(batch, batch_idx)


class Recompiled(Net):
    """Meets another shape in every step."""

    def __init__(self, plant: Plant) -> None:
        super().__init__(plant)
        self.compiled = torch.compile(lambda x: (x * 2).sum(), backend="eager", dynamic=False)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) + 0 * self.compiled(torch.ones(batch_idx + 1))


def test_collections_have_a_span_of_their_own(tmp_path):
    plant = Plant()
    record = loop_of(recorded(tmp_path, Cyclic(plant), loader(plant, 6)))
    found_ns, truth_ns = span_ns(record, "other/gc"), sum(plant.slept_ns)
    assert found_ns > 0.8 * truth_ns
    collections = next(span.calls for span in record.spans if span.name == "other/gc")
    assert collections >= 6


def test_compilations_have_a_span_of_their_own(tmp_path):
    record = loop_of(recorded(tmp_path, Recompiled(Plant()), loader(Plant(), 5)))
    assert next(span.calls for span in record.spans if span.name == "other/compile") == 5
    assert span_ns(record, "other/compile") > 1_000_000


def test_both_are_ranges_in_a_trace(tmp_path):
    from lightning_perf.decode.reader import read_trace

    class Both(Cyclic, Recompiled):
        pass

    recorded(tmp_path, Both(Plant()), loader(Plant(), 8))
    names = read_trace(next((tmp_path / "perf").glob("*.gz"))).names
    assert {"perf/other/gc", "perf/other/compile"} <= set(names)


@pytest.mark.parametrize("interrupted", [False, True])
def test_nobody_is_left_watching(tmp_path, interrupted):
    from torch._dynamo.callback import callback_handler

    before = (list(gc.callbacks), list(callback_handler.start_callbacks), list(callback_handler.end_callbacks))
    plant = Plant()
    data = loader(plant, 4)
    collate = data.collate_fn

    class Failing(Net):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            assert data.collate_fn is not collate
            assert copy.deepcopy(data).collate_fn.plant.place == plant.place
            assert pickle.loads(pickle.dumps(data)).collate_fn(list(torch.ones(2, 8))).shape == (2, 8)
            if interrupted:
                raise RuntimeError("planted")
            return super().training_step(batch, batch_idx)

    if interrupted:
        with pytest.raises(RuntimeError, match="planted"):
            recorded(tmp_path, Failing(plant), data)
    else:
        recorded(tmp_path, Failing(plant), data)
    assert (list(gc.callbacks), list(callback_handler.start_callbacks), list(callback_handler.end_callbacks)) == before
    assert data.collate_fn is collate


@pytest.mark.parametrize("epochs", [1, 3])
def test_collating_in_the_training_thread(tmp_path, epochs):
    """Also in the first epoch, whose iterator is older than the wrapper, and in those that follow."""
    plant = Plant("collate", seconds=0.01)
    record = loop_of(recorded(tmp_path, Net(plant), loader(plant, 4), max_epochs=epochs))
    slept_ns = sum(plant.slept_ns)
    assert len(plant.slept_ns) == 4 * epochs
    # Lightning fetches one batch ahead: those of an epoch's start are fetched with its iterator.
    assert 0.5 * slept_ns < span_ns(record, "data/collate") < 1.2 * slept_ns


def test_collating_in_workers_is_left_alone(tmp_path):
    plant = Plant()
    data = loader(plant, 4, num_workers=1)
    collate = data.collate_fn

    class Looking(Net):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            assert data.collate_fn is collate
            return super().training_step(batch, batch_idx)

    recorded(tmp_path, Looking(plant), data)


class Busy(Plant):
    """Computes where the others sleep."""

    def at(self, place: str) -> None:
        if place == self.place:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                pass


@pytest.mark.parametrize(("kind", "least", "most"), [(Plant, 0.0, 0.3), (Busy, 0.5, 1.0)])
def test_whether_a_fetch_computes_or_waits(tmp_path, kind, least, most):
    plant = kind("getitem", seconds=0.02)
    record = loop_of(recorded(tmp_path, Net(plant), loader(plant, 40)))
    assert record.fetch_cpu_ratio is not None
    assert least <= record.fetch_cpu_ratio <= most
    assert record.cpu_ns is not None
    per_step_ns = record.cpu_ns / record.plain.steps
    assert (per_step_ns > 15e6) == (kind is Busy)


def test_anomaly_detection_of_the_trainer_is_a_fact(tmp_path):
    plant = Plant()
    assert recorded(tmp_path, Net(plant), loader(plant, 2), detect_anomaly=True).analysis.run.flags.detect_anomaly
    assert not recorded(tmp_path, Net(plant), loader(plant, 2)).analysis.run.flags.detect_anomaly


def test_the_clock_never_runs_backwards():
    """A collection between looking at the clock and writing the time down: no span gets negative time."""
    from lightning_perf.capture.books import Books
    from lightning_perf.capture.kinds import SpanKind
    from lightning_perf.capture.span import Span

    def span(name: str) -> Span:
        return Span(lambda _: None, lambda: 0, name, SpanKind("other", name), "other")

    outer, inner, collection = span("outer"), span("inner"), span("gc")
    books = Books(span("root"), 0)
    books.work_up([outer, 10, collection, 25, collection, ~40, inner, 20, inner, ~50, outer, ~60])
    assert (outer.ns, collection.ns, inner.ns) == (15 + 10, 15, 10)


def test_a_compilation_that_ends_in_another_thread():
    """torch announces the end where the last of several compilations ends. The clock belongs to its own thread."""
    written: list[str] = []

    class Written:
        def __enter__(self) -> None:
            written.append("begins")

        def __exit__(self, *_: object) -> None:
            written.append("ends")

    interruptions = Interruptions(lambda _: Written())
    interruptions._compilation_begins()
    thread = threading.Thread(target=interruptions._compilation_ends)
    thread.start()
    thread.join()
    assert written == ["begins"]
    interruptions._compilation_begins()
    interruptions._collects("start", {"generation": 2})
    interruptions._collects("stop", {"generation": 2})
    interruptions._compilation_ends()
    assert written == ["begins"] * 3 + ["ends"] * 2
    interruptions._compilation_ends()
    assert len(written) == 5


def test_modules_compile_as_before(tmp_path):
    """Nothing is compiled again because somebody watches."""
    counts = []
    for watched in (False, True):
        torch._dynamo.reset()
        module = Net(Plant())
        module.body = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager")
        callbacks = [PerfCallback(dirpath=str(tmp_path / "perf"), summary=False)] if watched else []
        torch._dynamo.utils.counters.clear()
        quiet(tmp_path, callbacks=callbacks, logger=False).fit(module, loader(Plant(), 6))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == counts[1] > 0
