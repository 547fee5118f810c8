"""PerfCallback on real trainings: what it writes, logs and says, and that it never hurts the run."""

from __future__ import annotations

import copy
import csv
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LearningRateFinder
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.profilers import PyTorchProfiler, SimpleProfiler
from lightning.pytorch.tuner import Tuner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_perf import ConfigError, PerfCallback
from lightning_perf.capture.profiler import WindowProfiler
from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.analysis import read_analysis
from lightning_perf.names import PHASES, label
from lightning_perf.runinfo import RunInfo, read_run
from tests.training import BATCH, IteratorNet, Net, Plant, loader, quiet

SHORT = {"skip_first": 2, "wait": 0, "warmup": 1, "active": 3}


def fit(folder: Path, callback: PerfCallback, net: Net | None = None, **settings: Any) -> pl.Trainer:
    trainer = quiet(folder, **{"logger": CSVLogger(folder), "callbacks": [callback], **settings})
    trainer.fit(net or Net(Plant()), loader(Plant(), 8), loader(Plant(), 2))
    return trainer


def rows(trainer: pl.Trainer) -> list[dict[str, str]]:
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


# What it writes, logs and says


def test_files_and_analysis_of_a_run(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT)
    trainer = fit(tmp_path, callback)
    folder = Path(trainer.log_dir) / "perf"
    traces = list(folder.glob("rank0.*.pt.trace.json.gz"))
    files = ["analysis.json", traces[0].name, "report.html", "run.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    analysis = read_analysis(folder / "analysis.json")
    assert analysis == callback.analysis
    run = read_run(folder / "run.json")
    assert run == analysis.run
    check_facts(run)
    (window,) = analysis.windows
    assert window.trace == run.windows[0].trace == traces[0].name
    assert [(step.number, step.complete) for step in window.steps] == [(3, True), (4, True), (5, True)]
    assert window.rank == 0
    assert window.devices == []
    assert "no_device_operations" in {note.code for note in window.quality}
    for step in window.steps:
        assert sum(step.phases_us.values()) == pytest.approx(step.duration_us, abs=1e-6)
        assert all(step.phases_us[phase] > 0 for phase in ("data", "transfer", "forward", "backward", "optimizer"))
    loop = analysis.loop
    assert (loop.steps, loop.traced_steps) == (4, 4)
    assert sum(loop.phases_us.values()) == pytest.approx(loop.step_time_us.mean)
    assert sum(loop.hooks_us.values()) == pytest.approx(loop.step_time_us.mean)
    assert loop.samples_per_second == pytest.approx(
        BATCH * 1e6 / (loop.step_time_us.mean - loop.phases_us["validation"])
    )


def check_facts(run: RunInfo) -> None:
    assert (run.stage, run.model, run.rank, run.world_size) == ("fit", "Net", 0, 1)
    assert run.versions.torch == torch.__version__
    train, validate = run.loaders
    assert (train.stage, train.loader_class, train.dataset_class, train.collate) == (
        "fit",
        "DataLoader",
        "Items",
        "Collate",
    )
    assert (train.batch_size, train.num_workers, train.length, train.iterable) == (BATCH, 0, 8, False)
    assert validate.stage == "validate"
    (optimizer,) = run.optimizers
    assert (optimizer.optimizer_class, optimizer.parameter_tensors, optimizer.parameters) == ("SlowSGD", 4, 81)
    assert run.trainer.batches_per_epoch == 8
    assert run.trainer.callbacks == ["PerfCallback"]
    assert run.memory.rss_bytes > 50e6


def test_the_trace_is_labelled(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, module_depth=2)
    trainer = fit(tmp_path, callback)
    trace = read_trace(next((Path(trainer.log_dir) / "perf").glob("*.gz")))
    labels = {name for name in trace.names if name.startswith("perf/")}
    assert {label("data"), label("transfer"), label("forward"), label("backward"), label("optimizer")} <= labels
    assert {"perf/forward/body", "perf/forward/body.0", "perf/forward/head"} <= labels
    assert "perf/logging/self.log" in labels
    assert "perf/callbacks/PerfCallback.on_train_batch_end" in labels
    assert not any(name.startswith("[pl]") for name in trace.names)


def test_scalars_after_the_window_and_at_the_end(tmp_path: Path) -> None:
    trainer = fit(tmp_path, PerfCallback(schedule=SHORT))
    logged = [(int(row["step"]), row) for row in rows(trainer) if "perf/step_time_ms" in row]
    assert [step for step, _ in logged] == [6, 8]
    final = logged[-1][1]
    assert set(final) - {"step"} == {
        "perf/step_time_ms",
        "perf/step_time_p95_ms",
        "perf/samples_per_second",
        "perf/data_loading_ratio",
        "perf/memory_peak_rss_mib",
        "perf/profiling_overhead_ratio",
        *(f"perf/phase_{phase}_ratio" for phase in PHASES),
    }
    assert sum(float(final[f"perf/phase_{phase}_ratio"]) for phase in PHASES) == pytest.approx(1)


def test_every_logger_gets_the_scalars(tmp_path: Path) -> None:
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="tb")]
    trainer = fit(tmp_path, PerfCallback(schedule=SHORT), logger=loggers)
    assert any("perf/step_time_ms" in row for row in rows(trainer))
    events = EventAccumulator(loggers[1].log_dir)
    events.Reload()
    assert [event.step for event in events.Scalars("perf/step_time_ms")] == [6, 8]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_stages_on_their_own_have_their_own_folder_and_names(stage: str, tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT)
    trainer = quiet(tmp_path, callbacks=[callback], logger=CSVLogger(tmp_path))
    getattr(trainer, stage)(Net(Plant()), loader(Plant(), 8))
    folder = Path(trainer.log_dir) / "perf" / stage
    assert read_analysis(folder / "analysis.json").run.stage == stage
    assert any(f"perf/{stage}_step_time_ms" in row for row in rows(trainer))
    assert not any("perf/step_time_ms" in row for row in rows(trainer))
    (window,) = callback.analysis.windows
    assert [step.number for step in window.steps] == [3, 4, 5]
    for step in window.steps:
        assert step.complete
        assert {phase for phase, us in step.phases_us.items() if us} <= {
            "data",
            "transfer",
            "forward",
            "callbacks",
            "logging",
            "other",
        }


def test_validation_inside_a_fit_is_a_phase_of_the_fit(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT)
    trainer = fit(tmp_path, callback, val_check_interval=1)
    assert callback.analysis.loop.phases_us["validation"] > 0
    assert all(step.phases_us["validation"] > 0 for step in callback.analysis.windows[0].steps)
    assert sorted(path.name for path in (Path(trainer.log_dir) / "perf").iterdir() if path.is_dir()) == []
    assert callback.analysis.run.loop.plain.samples == 4 * BATCH


def test_summary_is_one_screen_through_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lightning_perf"):
        fit(tmp_path, PerfCallback(schedule=SHORT))
    (record,) = [record for record in caplog.records if record.name == "lightning_perf"]
    text = record.getMessage()
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 160
    assert "lightning-perf · Net · 8 steps, 3 of them traced · CPU" in text
    assert "it/s" in text
    assert "(% of step)" in text
    assert "report.html" in text


def test_no_metrics_and_no_summary_when_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lightning_perf"):
        trainer = fit(tmp_path, PerfCallback(schedule=SHORT, log_metrics=False, summary=False))
    assert not [record for record in caplog.records if record.name == "lightning_perf"]
    assert not any(key.startswith("perf/") for row in rows(trainer) for key in row)


def test_a_short_run_says_how_the_schedule_was_fitted(tmp_path: Path) -> None:
    callback = PerfCallback(summary=False)
    fit(tmp_path, callback)
    assert callback.analysis.run.notes == ["the run has only 8 steps: recording 4 of them"]
    assert [step.number for step in callback.analysis.windows[0].steps] == [4, 5, 6, 7]


def test_a_run_that_recorded_nothing_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lightning_perf"):
        fit(tmp_path, PerfCallback(schedule={"skip_first": 100}))
    assert "the run ended after 8 steps, and the schedule records from step 104 on" in caplog.text


def test_a_run_that_ends_inside_a_window_keeps_it(tmp_path: Path) -> None:
    callback = PerfCallback(schedule={"skip_first": 6, "wait": 0, "warmup": 0, "active": 5}, summary=False)
    fit(tmp_path, callback)
    assert [step.number for step in callback.analysis.windows[0].steps] == [6, 7]
    assert "the run ended inside a window" in callback.analysis.run.notes[0]


def test_fast_dev_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    callback = PerfCallback()
    trainer = pl.Trainer(
        fast_dev_run=3, accelerator="cpu", callbacks=[callback], enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(Net(Plant()), loader(Plant()))
    assert callback.analysis.loop.steps == 3
    assert callback.analysis.windows == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_logger_results_go_under_the_root_folder(tmp_path: Path) -> None:
    fit(tmp_path, PerfCallback(schedule=SHORT), logger=False)
    assert (tmp_path / "perf" / "run.json").is_file()


def test_a_second_fit_starts_afresh_and_loses_nothing(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, summary=False, dirpath=str(tmp_path / "perf"))
    fit(tmp_path, callback)
    first = callback.analysis
    fit(tmp_path, callback)
    assert callback.analysis.run.loop.plain.steps == 4
    assert read_run(tmp_path / "perf" / "run.json") == callback.analysis.run
    older = list((tmp_path / "perf").glob("run.*.json"))
    assert [read_run(path) for path in older] == [first.run]
    assert len(list((tmp_path / "perf").glob("*.gz"))) == 2


def test_dataloader_iter_counts_samples(tmp_path: Path) -> None:
    callback = PerfCallback(schedule={"skip_first": 100}, summary=False)
    fit(tmp_path, callback, IteratorNet(Plant()))
    assert callback.analysis.run.loop.plain.samples == 8 * BATCH


# That it never hurts the run


def weights_after(folder: Path, callbacks: list[Callback]) -> list[torch.Tensor]:
    pl.seed_everything(7)
    net = Net(Plant())
    quiet(folder, callbacks=callbacks, logger=False).fit(net, loader(Plant(), 8, shuffle=True))
    return [*net.parameters(), torch.rand(3)]


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    with_callback = weights_after(tmp_path, [PerfCallback(schedule=SHORT, module_depth=3)])
    without = weights_after(tmp_path, [])
    assert all(torch.equal(a, b) for a, b in zip(with_callback, without, strict=True))


def test_everything_is_put_back(tmp_path: Path) -> None:
    net = Net(Plant())
    before = set(vars(net))
    trainer = fit(tmp_path, PerfCallback(schedule=SHORT, module_depth=3), net)
    assert type(trainer.profiler).__name__ == "PassThroughProfiler"
    for owner in (trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer.strategy, trainer._logger_connector):
        assert not [name for name, value in vars(owner).items() if hasattr(value, "__wrapped__")]
    for part in net.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert not [name for name in set(vars(net)) - before if hasattr(vars(net)[name], "__wrapped__")]
    assert not hasattr(Net.transfer_batch_to_device, "__wrapped__")


def test_callback_pickles_before_and_after(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, summary=False)
    assert pickle.loads(pickle.dumps(callback)).schedule == callback.schedule
    fit(tmp_path, callback)
    again = pickle.loads(pickle.dumps(callback))
    assert again.analysis == callback.analysis
    fit(tmp_path, again)


class Explode(Callback):
    def __init__(self, error: BaseException, step: int) -> None:
        self.error = error
        self.step = step

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.step:
            raise self.error


@pytest.mark.parametrize("step", [1, 2, 4, 7])
def test_a_failing_run_keeps_what_was_recorded(step: int, tmp_path: Path) -> None:
    """Step 1 is before the window, 2 in its warm-up, 4 inside it, 7 after it."""
    callback = PerfCallback(schedule=SHORT, dirpath=str(tmp_path / "perf"))
    with pytest.raises(RuntimeError, match="planted"):
        fit(tmp_path, callback, callbacks=[callback, Explode(RuntimeError("planted"), step)])
    run = read_run(tmp_path / "perf" / "run.json")
    assert "the run was ended by RuntimeError" in run.notes
    assert run.loop.plain.steps + run.loop.traced.steps == step
    traces = list((tmp_path / "perf").glob("*.pt.trace.json.gz"))
    assert len(traces) == len(run.windows) == (step >= 4)
    fit(tmp_path, callback)  # and the process can be used again
    assert callback.analysis.run.loop.plain.steps == 4


def test_keyboard_interrupt_keeps_the_window(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, dirpath=str(tmp_path / "perf"))
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            fit(tmp_path, callback, callbacks=[callback, Explode(KeyboardInterrupt(), 5)])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(list((tmp_path / "perf").glob("*.pt.trace.json.gz"))) == 1
    assert read_run(tmp_path / "perf" / "run.json").loop.traced.steps == 3


def messages(caplog: pytest.LogCaptureFixture, level: str = "WARNING") -> list[str]:
    records = [record for record in caplog.records if record.name == "lightning_perf"]
    return [record.getMessage() for record in records if record.levelname == level]


def test_a_defect_of_a_window_leaves_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lightning_perf.capture.profiler.WindowProfiler.begin_step", explode)
    callback = PerfCallback(schedule=SHORT)
    trainer = fit(tmp_path, callback)
    assert trainer.global_step == 8
    assert messages(caplog) == ["lightning-perf: ValueError: planted; training and measuring go on"]
    assert callback.analysis.loop.steps + callback.analysis.loop.traced_steps == 8
    assert "ValueError: planted" in callback.analysis.run.notes


def explode(*_: object, **__: object) -> None:
    raise ValueError("planted")


def test_a_defect_of_ours_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lightning_perf.callback.environment.total_steps", explode)
    trainer = fit(tmp_path, PerfCallback(schedule=SHORT))
    assert trainer.global_step == 8
    assert messages(caplog) == [
        "lightning-perf: measuring stopped (ValueError: planted); training goes on. Please report this."
    ]
    assert type(trainer.profiler).__name__ == "PassThroughProfiler"


def test_a_folder_that_cannot_be_written_costs_only_the_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "perf").write_text("in the way")
    callback = PerfCallback(schedule=SHORT, dirpath=str(tmp_path / "perf"))
    with caplog.at_level(logging.INFO, "lightning_perf"):
        trainer = fit(tmp_path, callback)
    assert trainer.global_step == 8
    assert callback.analysis.loop is not None
    assert any("(% of step)" in text for text in messages(caplog, "INFO"))
    assert any("perf/step_time_ms" in row for row in rows(trainer))


class Broken(CSVLogger):
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if any(key.startswith("perf/") for key in metrics):
            raise ConnectionError("planted")


def test_a_failing_logger_costs_only_its_own_scalars(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT)
    trainer = fit(tmp_path, callback, logger=[Broken(tmp_path, name="broken"), CSVLogger(tmp_path, name="sound")])
    sound = Path(trainer.loggers[1].log_dir) / "metrics.csv"
    assert "perf/step_time_ms" in sound.read_text()
    assert len(callback.analysis.windows) == 1
    assert "ConnectionError: planted" in callback.analysis.run.notes


@pytest.mark.parametrize("name", ["_flags", "_optimizer_facts", "_loader_facts", "_trainer_facts"])
def test_facts_that_cannot_be_read_cost_only_themselves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "_flags":
        monkeypatch.setattr(torch, "get_float32_matmul_precision", raise_runtime_error)
    else:
        monkeypatch.setattr(f"lightning_perf.capture.environment.{name}", raise_runtime_error)
    callback = PerfCallback(schedule=SHORT, summary=False)
    trainer = fit(tmp_path, callback)
    assert read_run(Path(trainer.log_dir) / "perf" / "run.json").loop is not None


def raise_runtime_error(*_: object) -> None:
    raise RuntimeError("planted")


def test_a_run_that_changes_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Move(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            os.chdir("/")

    monkeypatch.chdir(tmp_path)
    callback = PerfCallback(schedule=SHORT, dirpath="perf")
    fit(tmp_path, callback, callbacks=[callback, Move()])
    assert (tmp_path / "perf" / "analysis.json").is_file()


def test_a_remote_folder_is_not_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    callback = PerfCallback(schedule=SHORT, dirpath="s3://bucket/run")
    fit(tmp_path / "root", callback)
    assert "s3://bucket/run is not a local folder" in callback.analysis.run.notes[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


class Profile(Net):
    """A model that uses torch.profiler itself, in one step."""

    def __init__(self, plant: Plant, how: str) -> None:
        super().__init__(plant)
        self.how = how
        self.seen = 0

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx != 4:
            return super().training_step(batch, batch_idx)
        if self.how == "thread":
            thread = threading.Thread(target=self.profile, args=(batch, None))
            thread.start()
            thread.join()
            return super().training_step(batch, batch_idx)
        return self.profile(batch, batch_idx)

    def profile(self, batch: torch.Tensor, batch_idx: int | None) -> torch.Tensor:
        make = torch.autograd.profiler.profile if self.how == "legacy" else torch.profiler.profile
        with make() as mine:
            loss = self.loss(batch) if batch_idx is None else super().training_step(batch, batch_idx)
        self.seen = len(mine.key_averages())
        return loss


@pytest.mark.parametrize("how", ["kineto", "legacy"])
def test_the_users_own_profiler_goes_first(how: str, tmp_path: Path) -> None:
    """Started inside our window, which is step 3 to 5: the window ends there, and its cut step counts as none."""
    callback = PerfCallback(schedule=SHORT, summary=False)
    net = Profile(Plant(), how)
    fit(tmp_path, callback, net)
    assert net.seen > 10
    assert "another torch profiler was started inside a window" in callback.analysis.run.notes[0]
    (window,) = callback.analysis.windows
    assert [(step.number, step.complete) for step in window.steps] == [(3, True), (4, False)]
    assert callback.analysis.run.loop.plain.steps + callback.analysis.run.loop.traced.steps == 8


def test_the_users_own_profiler_in_a_thread(tmp_path: Path) -> None:
    done = run_script(
        """
        from tests.test_callback import *
        from tests.training import *

        if __name__ == "__main__":
            callback = PerfCallback(schedule=SHORT, summary=False)
            fit(Path("."), callback, Profile(Plant(), "thread"))
            print(callback.analysis.run.notes, callback.analysis.windows)
        """,
        tmp_path,
    )
    assert "another torch profiler was started inside a window" in done.stdout


def test_two_trainers_in_two_threads(tmp_path: Path) -> None:
    done = run_script(
        """
        from concurrent.futures import ThreadPoolExecutor
        from tests.test_callback import *
        from tests.training import *

        def train(number):
            callback = PerfCallback(schedule=SHORT, summary=False, dirpath=f"perf{number}")
            quiet(Path("."), callbacks=[callback], logger=False).fit(Net(Plant()), loader(Plant(), 12))
            return callback.analysis.loop.steps + callback.analysis.loop.traced_steps

        if __name__ == "__main__":
            with ThreadPoolExecutor(2) as pool:
                print("steps", *pool.map(train, range(2)))
        """,
        tmp_path,
    )
    assert "steps" in done.stdout


def test_the_trainer_can_be_pickled_in_mid_run(tmp_path: Path) -> None:
    """Worker processes that are spawned get a pickle of whatever the dataset holds on to."""

    class Pickles(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            logger = pickle.loads(pickle.dumps(trainer.logger))
            assert not type(logger.log_metrics).__name__.startswith("_Timed")
            assert type(pickle.loads(pickle.dumps(trainer.profiler))).__name__ == "PassThroughProfiler"
            copied = copy.deepcopy(trainer.fit_loop.epoch_loop.batch_progress)
            assert copied.current.ready == trainer.fit_loop.epoch_loop.batch_progress.current.ready
            strategy = copy.copy(trainer._logger_connector)
            assert strategy is not None

    callback = PerfCallback(schedule=SHORT, summary=False)
    fit(tmp_path, callback, callbacks=[callback, Pickles()])


def test_validation_on_its_own_inside_a_fit_belongs_to_the_fit(tmp_path: Path) -> None:
    class Validate(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            state = trainer.state.fn, trainer.state.stage, trainer.state.status
            trainer.validate(module, loader(Plant(), 2), verbose=False)
            trainer.state.fn, trainer.state.stage, trainer.state.status = state

    callback = PerfCallback(schedule=SHORT, summary=False)
    fit(tmp_path, callback, callbacks=[callback, Validate()])
    assert callback.analysis.run.stage == "fit"
    assert callback.analysis.run.loop.plain.steps + callback.analysis.run.loop.traced.steps == 8


def test_a_run_that_died_unseen_is_cleaned_up(tmp_path: Path) -> None:
    """Another callback's on_exception raises before ours is called."""

    class Selfish(Callback):
        def on_exception(self, *_: Any) -> None:
            raise OSError("planted too")

    callback = PerfCallback(schedule=SHORT, summary=False)
    with pytest.raises(OSError, match="planted too"):
        fit(tmp_path, callback, callbacks=[Selfish(), callback, Explode(RuntimeError("planted"), 4)])
    assert torch.autograd._profiler_enabled()
    fit(tmp_path, callback)
    assert len(callback.analysis.windows) == 1


@pytest.mark.parametrize("method", ["stop", "save"])
def test_an_interrupt_while_a_window_ends_loses_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(WindowProfiler, method)
    calls: list[int] = []

    def interrupted(self: WindowProfiler, *args: Any) -> Any:
        result = original(self, *args)
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(WindowProfiler, method, interrupted)
    callback = PerfCallback(schedule=SHORT, dirpath=str(tmp_path / "perf"))
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            fit(tmp_path, callback)
    finally:
        signal.signal(signal.SIGINT, handler)
    (trace,) = (tmp_path / "perf").glob("*.pt.trace.json.gz")
    assert len(read_trace(trace)) > 100
    assert [window.trace for window in read_run(tmp_path / "perf" / "run.json").windows] == [trace.name]


def test_a_subclass_may_call_super_in_any_hook(tmp_path: Path) -> None:
    class Mine(PerfCallback):
        def on_after_backward(self, trainer: Any, module: Any) -> None:
            super().on_after_backward(trainer, module)
            self.calls = getattr(self, "calls", 0) + 1

    callback = Mine(schedule=SHORT, summary=False)
    fit(tmp_path, callback)
    assert callback.calls == 8


def test_profile_can_be_used_as_lightnings(tmp_path: Path) -> None:
    class Uses(Net):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            with self.trainer.profiler.profile("mine") as name:
                assert name == "mine"
            return self.trainer.profiler.profile("decorated")(super().training_step)(batch, batch_idx)

    callback = PerfCallback(schedule=SHORT, summary=False)
    fit(tmp_path, callback, Uses(Plant()))
    assert {"forward/mine", "forward/decorated"} <= callback.analysis.loop.hooks_us.keys()


def test_the_pickle_holds_no_model(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, summary=False)
    net = Net(Plant())
    net.unpicklable = lambda: None
    fit(tmp_path, callback, net)
    assert pickle.loads(pickle.dumps(callback)).analysis == callback.analysis


def test_a_learning_rate_finders_steps_are_none_of_the_run(tmp_path: Path) -> None:
    class Tunable(Net):
        def __init__(self, plant: Plant) -> None:
            super().__init__(plant)
            self.lr = 0.01

    callback = PerfCallback(schedule=SHORT, summary=False)
    finder = LearningRateFinder(num_training_steps=10)
    trainer = fit(tmp_path, callback, Tunable(Plant()), callbacks=[callback, finder])
    loop = callback.analysis.run.loop
    assert loop.plain.steps + loop.traced.steps == trainer.fit_loop.epoch_loop.batch_progress.total.completed
    # Lightning 2.5.0 goes on where the finder stopped, so that fewer batches are left than the loader has.
    last = min(5, loop.plain.steps + loop.traced.steps - 1)
    assert [(window.first_step, window.last_step) for window in callback.analysis.run.windows] == [(3, last)]
    assert loop.plain.samples == loop.plain.steps * BATCH


def test_a_tuner_alone_leaves_no_results(tmp_path: Path) -> None:
    class Tunable(Net):
        def __init__(self, plant: Plant) -> None:
            super().__init__(plant)
            self.lr = 0.01

    callback = PerfCallback(schedule=SHORT)
    trainer = quiet(tmp_path, callbacks=[callback], logger=False)
    Tuner(trainer).lr_find(Tunable(Plant()), loader(Plant(), 8), num_training=8)
    assert callback.analysis is None
    assert not (tmp_path / "perf").exists()


def test_a_resumed_run_counts_the_steps_that_are_left(tmp_path: Path) -> None:
    trainer = quiet(tmp_path, logger=False, max_epochs=1, enable_checkpointing=True)
    trainer.fit(Net(Plant()), loader(Plant(), 8))
    checkpoint = tmp_path / "after.ckpt"
    trainer.save_checkpoint(checkpoint)
    callback = PerfCallback(summary=False)
    again = quiet(tmp_path, callbacks=[callback], logger=False, max_epochs=2)
    again.fit(Net(Plant()), loader(Plant(), 8), ckpt_path=checkpoint)
    assert callback.analysis.run.notes == ["the run has only 8 steps: recording 4 of them"]
    assert len(callback.analysis.windows[0].steps) == 4


def test_the_users_profiler_sees_everything_and_comes_back(tmp_path: Path) -> None:
    mine = SimpleProfiler()
    trainer = fit(tmp_path, PerfCallback(schedule=SHORT), profiler=mine)
    assert trainer.profiler is mine
    assert len(mine.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]) == 8
    assert len(mine.recorded_durations["run_training_batch"]) == 8


def test_beside_lightnings_pytorch_profiler_only_the_clock_runs(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, summary=False)
    mine = PyTorchProfiler(dirpath=tmp_path, filename="mine", emit_nvtx=False)
    trainer = fit(tmp_path, callback, profiler=mine)
    assert trainer.global_step == 8
    assert callback.analysis.loop.steps == 8
    assert "two cannot run" in callback.analysis.run.notes[0]


def test_another_running_profiler_is_left_alone(tmp_path: Path) -> None:
    callback = PerfCallback(schedule=SHORT, summary=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        fit(tmp_path, callback)
    assert callback.analysis.windows == []
    assert callback.analysis.loop.steps == 8
    assert "another torch profiler is running" in callback.analysis.run.notes[0]
    assert any(event.key == "aten::linear" for event in theirs.key_averages())


def test_two_callbacks_in_one_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Second(PerfCallback):
        pass

    first, second = PerfCallback(schedule=SHORT, summary=False), Second(schedule=SHORT, summary=False)
    fit(tmp_path, first, callbacks=[first, second])
    assert first.analysis is not None
    assert second.analysis is None
    assert "two PerfCallbacks" in caplog.text


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    fit(tmp_path, PerfCallback(schedule=SHORT))
    time.sleep(0.05)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module_depth": -1}, "module_depth=-1; expected 0 or more"),
        ({"ranks": []}, r"ranks=\[\]; expected at least one rank"),
        ({"schedule": {"active": 0}}, "active=0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PerfCallback(**settings)


# In processes of their own


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_ddp_spawn_with_two_processes(tmp_path: Path) -> None:
    run_script(
        """
        from tests.training import *
        from lightning_perf import PerfCallback

        if __name__ == "__main__":
            callback = PerfCallback(schedule={"skip_first": 1, "wait": 0, "warmup": 1, "active": 2}, ranks=[0, 1])
            strategy = pl.strategies.DDPStrategy(start_method="spawn", find_unused_parameters=True)
            trainer = quiet(Path("."), callbacks=[callback], strategy=strategy, devices=2, logger=CSVLogger("."))
            trainer.fit(Net(Plant()), loader(Plant(), 16))
        """,
        tmp_path,
    )
    folder = tmp_path / "lightning_logs" / "version_0" / "perf"
    for rank, name in enumerate(("run.json", "run.rank1.json")):
        run = read_run(folder / name)
        assert (run.rank, run.world_size, run.trainer.strategy) == (rank, 2, "DDPStrategy")
        assert run.loop.plain.steps + run.loop.traced.steps == 8
        ddp = run.trainer.ddp
        assert (ddp.backend, ddp.find_unused_parameters, ddp.static_graph) == ("gloo", True, False)
        assert ddp.unused_parameter_bytes == 0
        trace = read_trace(folder / run.windows[0].trace)
        assert (trace.rank, trace.world_size) == (rank, 2)


def test_rank_zero_only_by_default(tmp_path: Path) -> None:
    run_script(
        """
        from tests.training import *
        from lightning_perf import PerfCallback

        if __name__ == "__main__":
            trainer = quiet(Path("."), callbacks=[PerfCallback()], strategy="ddp_spawn", devices=2, logger=False)
            trainer.fit(Net(Plant()), loader(Plant(), 16))
        """,
        tmp_path,
    )
    assert not (tmp_path / "perf" / "run.rank1.json").exists()
    assert [path.name.split(".")[0] for path in (tmp_path / "perf").glob("*.gz")] == ["rank0"]


@pytest.mark.parametrize("first", ["pytorch_lightning", "lightning_perf"])
def test_users_of_pytorch_lightning(first: str, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed beside lightning")
    imports = ["import pytorch_lightning as pl", "from lightning_perf import PerfCallback"]
    if first == "lightning_perf":
        imports.reverse()
    done = run_script(
        "\n".join(imports)
        + """
import torch

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=4)
callback = PerfCallback(dirpath="perf")
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False,
                     enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
trainer.fit(Net(), data)
print("steps", callback.analysis.loop.steps + callback.analysis.loop.traced_steps, len(callback.analysis.windows))
print("logging", callback.analysis.loop.phases_us["logging"] > 0)
""",
        tmp_path,
    )
    assert "steps 8 1" in done.stdout
    assert "logging True" in done.stdout


def test_kineto_says_nothing_to_the_user(tmp_path: Path) -> None:
    done = run_script(
        """
        from tests.training import *
        from lightning_perf import PerfCallback

        if __name__ == "__main__":
            quiet(Path("."), callbacks=[PerfCallback()], logger=False).fit(Net(Plant()), loader(Plant(), 8))
        """,
        tmp_path,
    )
    assert "profiler_start" not in done.stderr
    assert "gpuGetDeviceCount" not in done.stderr
    assert "lightning-perf · Net · 8 steps" in done.stderr


def test_a_baseline_is_compared_with_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = fit(tmp_path / "first", PerfCallback(schedule=SHORT, summary=False))
    logger = CSVLogger(tmp_path / "second")
    with caplog.at_level(logging.INFO, "lightning_perf"):
        fit(tmp_path / "second", PerfCallback(schedule=SHORT, baseline=first.log_dir), logger=logger)
    assert "-> this run · " in caplog.records[-1].getMessage()
    logged = Path(logger.log_dir, "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"perf/change_step_time", "perf/change_step_time_low", "perf/change_data_loading_ratio"} <= set(logged)


def test_a_baseline_that_is_not_there_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lightning_perf"):
        fit(tmp_path, PerfCallback(schedule=SHORT, summary=False, baseline=tmp_path / "nowhere"))
    (record,) = caplog.records
    assert "nowhere" in record.getMessage()
