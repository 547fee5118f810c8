"""Whether worker processes compute or wait."""

from __future__ import annotations

import os
import sys

import pytest

from lightning_perf import PerfCallback
from lightning_perf.capture.workers import WorkerTimes, processor_and_age_s
from tests.capture.test_interruptions import Busy
from tests.training import Net, Plant, loader, quiet

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(("kind", "least", "most"), [(Plant, 0.0, 0.4), (Busy, 0.45, 1.0)])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_compute_and_workers_that_wait(tmp_path, kind, least, most, persistent):
    plant = kind("getitem", seconds=0.05)
    callback = PerfCallback(dirpath=str(tmp_path / "perf"), summary=False)
    data = loader(plant, 20, num_workers=1, persistent_workers=persistent)
    quiet(tmp_path, callbacks=[callback], logger=False, max_epochs=2).fit(Net(Plant()), data)
    ratio = callback.analysis.run.worker_cpu_ratio
    assert ratio is not None
    assert least <= ratio <= most


def test_without_workers_it_is_unknown(tmp_path):
    callback = PerfCallback(dirpath=str(tmp_path / "perf"), summary=False)
    quiet(tmp_path, callbacks=[callback], logger=False).fit(Net(Plant()), loader(Plant(), 20))
    assert callback.analysis.run.worker_cpu_ratio is None


def test_a_process_that_is_gone():
    assert processor_and_age_s(2**22 + 1) is None
    spent_s, age_s = processor_and_age_s(os.getpid())
    assert spent_s > 0
    assert age_s > 0
    times = WorkerTimes()
    times.look([object()])
    assert times.cpu_ratio is None
