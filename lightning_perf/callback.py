"""PerfCallback: the Trainer's hooks -> capture; after a window and at the end -> pipeline -> loggers and files.

The only module that imports lightning.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, cast

import msgspec

from lightning_perf.capture import environment, memory
from lightning_perf.capture.background import Background
from lightning_perf.capture.clock import LoopClock
from lightning_perf.capture.instrument import Instrument, instrument
from lightning_perf.capture.profiler import Recording, SavedWindow
from lightning_perf.capture.session import Session
from lightning_perf.capture.window import Schedule, fit_to, schedule_from
from lightning_perf.errors import ConfigError, PerfError
from lightning_perf.measure.analysis import Analysis, Loop, Window
from lightning_perf.measure.loop import measure_loop
from lightning_perf.names import STAGES, Stage
from lightning_perf.pipeline import analyze_elsewhere, analyze_trace
from lightning_perf.report import console, scalars
from lightning_perf.runinfo import ANALYSIS_FILE, RUN_FILE, RunInfo, WindowRecord, rank_file, write_json

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.profilers import PassThroughProfiler, Profiler
elif ("pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules) or find_spec("lightning") is None:
    from pytorch_lightning import Callback
    from pytorch_lightning.profilers import PassThroughProfiler, Profiler
else:
    from lightning.pytorch import Callback
    from lightning.pytorch.profilers import PassThroughProfiler, Profiler

log = logging.getLogger("lightning_perf")

P = ParamSpec("P")


class _ClockProfiler(Profiler):
    """The loop clock in the place of ``trainer.profiler``. Everything but spans goes to the user's own."""

    def __init__(self, clock: LoopClock, user: Profiler) -> None:
        super().__init__(dirpath=user.dirpath, filename=user.filename)
        self.user = user
        # On the instance, past Lightning's generator.
        self.profile = clock.entry  # type: ignore[method-assign, assignment]
        self._clock = clock

    def start(self, action_name: str) -> None:
        self._clock.start(action_name)

    def stop(self, action_name: str) -> None:
        self._clock.stop(action_name)

    def summary(self) -> str:
        return self.user.summary()

    def describe(self) -> None:
        self.user.describe()

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        self.user.setup(stage, local_rank, log_dir)

    def teardown(self, stage: str | None) -> None:
        """Nothing to close here; the trainer closes the user's profiler once it is back."""

    def __getattr__(self, name: str) -> object:
        if "user" not in self.__dict__:  # while it is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.user, name)


@dataclass
class _Run:
    """What lives while one stage runs, and is gone afterwards."""

    stage: Stage
    clock: LoopClock
    session: Session
    profiler: _ClockProfiler
    instrument: Instrument
    folder: Path | None
    background: Background[Window]


def _guarded(
    hook: Callable[Concatenate[PerfCallback, Trainer, P], None],
) -> Callable[Concatenate[PerfCallback, Trainer, P], None]:
    """Keep what goes wrong in here away from the training run: say it once, put everything back, stay out."""

    @functools.wraps(hook)
    def guarded(self: PerfCallback, trainer: Trainer, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(self, trainer, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the one guard between a measuring tool and the run it measures
            self._give_up(trainer, error)

    return cast("Callable[Concatenate[PerfCallback, Trainer, P], None]", guarded)


class PerfCallback(Callback):
    """Finds out where the time of a run goes, while it trains as before.

    Works for ``fit`` and, called on their own, for ``validate``, ``test`` and ``predict``. A clock keeps the time
    of every action of the loop for the whole run; on a schedule, torch.profiler records a few steps. At the end
    the figures go to the trainer's loggers (group ``perf``), to ``run.json`` and ``analysis.json`` beside the
    traces, and as a summary to the ``lightning_perf`` logger. Nothing that fails in here stops the run.

    After a stage, ``analysis`` holds the :class:`~lightning_perf.measure.analysis.Analysis`, on the ranks that
    recorded (in the worker processes where the strategy spawns them).

    Args:
        dirpath: folder for traces and results; default ``<log dir>/perf``. Stages other than ``fit`` use a
            subfolder of their name. With ``fast_dev_run`` and no ``dirpath`` nothing is written.
        schedule: which steps to record, as a mapping of some of ``skip_first``, ``wait``, ``warmup``, ``active``,
            ``repeat`` (or a ``Schedule``), obeyed exactly. Default: skip 10 steps, wait 2, warm up 2, record 6, once;
            a run shorter than that gets a shorter schedule.
        record_shapes: record the operators' input shapes.
        with_stack: record Python stacks; slows the recorded steps down.
        profile_memory: record allocations; slows the recorded steps down.
        module_depth: label the forward of modules down to this depth in the traces, 0 for none.
        ranks: ranks that measure and record; default rank 0 only.
        log_metrics: send scalars to the trainer's loggers.
        summary: show the summary at the end.

    Raises:
        ConfigError: a setting is wrong.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[PerfCallback()])  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        dirpath: str | Path | None = None,
        schedule: Schedule | dict[str, int] | None = None,
        record_shapes: bool = True,
        with_stack: bool = False,
        profile_memory: bool = False,
        module_depth: int = 0,
        ranks: list[int] | None = None,
        log_metrics: bool = True,
        summary: bool = True,
    ) -> None:
        if module_depth < 0:
            raise ConfigError(f"module_depth={module_depth}; expected 0 or more. Set 0 to label no modules.")
        if ranks is not None and (not ranks or min(ranks) < 0):
            raise ConfigError(f"ranks={ranks}; expected at least one rank, counted from 0. Leave it out for rank 0.")
        self.dirpath = None if dirpath is None else str(dirpath)
        self.schedule = schedule_from(schedule)
        self.recording = Recording(shapes=record_shapes, stack=with_stack, memory=profile_memory)
        self.module_depth = module_depth
        self.ranks = [0] if ranks is None else list(ranks)
        self.log_metrics = log_metrics
        self.summary = summary
        self.analysis: Analysis | None = None
        self._run: _Run | None = None

    def __getstate__(self) -> dict[str, object]:
        """Settings and the last analysis; a running clock and profiler belong to one process."""
        return {**self.__dict__, "_run": None}

    # Lightning calls every hook of every callback, four of them a step for nothing here. It skips what is not callable.
    on_before_zero_grad = None  # type: ignore[assignment]
    on_before_backward = None  # type: ignore[assignment]
    on_after_backward = None  # type: ignore[assignment]
    on_before_optimizer_step = None  # type: ignore[assignment]

    # Hooks: every stage

    @_guarded
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put the clock in the place of the trainer's profiler."""
        log_dir = trainer.log_dir  # a collective call: on every rank, before anything that some ranks skip
        if trainer.global_rank not in self.ranks:
            return
        if self._run is not None:  # the last stage ended without teardown or on_exception
            self._put_back(trainer, self._run)
        user = cast("Profiler", trainer.profiler)  # type: ignore[attr-defined]
        if isinstance(user, _ClockProfiler):
            log.warning("lightning-perf: this trainer has two PerfCallbacks; the second one does nothing")
            return
        self._begin(trainer, pl_module, _stage(stage), user, log_dir)

    @_guarded
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Finish: analyse, write, log, show."""
        run = self._run
        if run is None:
            return
        info = self._stop(trainer, pl_module, run, interrupted=False)
        self.analysis = Analysis(run=info, loop=_loop(info), windows=_windows(run))
        if run.folder is not None:
            write_json(run.folder / rank_file(ANALYSIS_FILE, info.rank), self.analysis)
        self._log(trainer, run.stage, scalars.all_scalars(self.analysis))
        if self.summary and trainer.is_global_zero:
            console.emit("\n" + console.summarize_run(self.analysis, run.folder))

    @_guarded
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The run failed or was interrupted: keep what was recorded, with no long work."""
        run = self._run
        if run is None:
            return
        run.session.note(f"the run was ended by {type(exception).__name__}")
        info = self._stop(trainer, pl_module, run, interrupted=True)
        self.analysis = Analysis(run=info, loop=_loop(info), windows=[])
        if self.summary and trainer.is_global_zero and run.folder is not None and info.windows:
            log.warning(
                "lightning-perf: what was recorded is kept; read it with: lightning-perf analyze %s", run.folder
            )

    # Hooks: the loops

    @_guarded
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._choose_schedule(trainer, pl_module, "fit")

    @_guarded
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._choose_schedule(trainer, pl_module, "validate")

    @_guarded
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._choose_schedule(trainer, pl_module, "test")

    @_guarded
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._choose_schedule(trainer, pl_module, "predict")

    @_guarded
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        self._batch_begins("fit", batch)

    @_guarded
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._batch_ends(trainer, "fit", batch)

    @_guarded
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch_begins("validate", batch)

    @_guarded
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._batch_ends(trainer, "validate", batch)

    @_guarded
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch_begins("test", batch)

    @_guarded
    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._batch_ends(trainer, "test", batch)

    @_guarded
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._batch_begins("predict", batch)

    @_guarded
    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._batch_ends(trainer, "predict", batch)

    def _choose_schedule(self, trainer: Trainer, module: LightningModule, stage: Stage) -> None:
        run = self._run
        if run is None or run.stage != stage:
            return
        steps = environment.total_steps(trainer, module, stage)
        run.session.schedule = self.schedule or fit_to(steps)
        if self.schedule is None and run.session.schedule != Schedule():
            run.session.note(f"the run has only {steps} steps: recording {run.session.schedule.active} of them")

    def _batch_begins(self, stage: Stage, batch: object) -> None:
        run = self._run
        if run is not None and run.stage == stage:
            run.clock.batch_size = environment.batch_size(batch)

    def _batch_ends(self, trainer: Trainer, stage: Stage, batch: object) -> None:
        run = self._run
        if run is None or run.stage != stage:
            return
        if run.clock.batch_size is None:  # with dataloader_iter the batch is known only now
            run.clock.batch_size = environment.batch_size(batch)
        for window in run.background.newly_analyzed():
            self._log(trainer, stage, scalars.device_scalars(window))

    # Begin and end of a stage

    def _begin(
        self, trainer: Trainer, module: LightningModule, stage: Stage, user: Profiler, log_dir: str | None
    ) -> None:
        folder, why_not = self._choose_folder(trainer, stage, log_dir)
        clock = LoopClock(stage, None if type(user) is PassThroughProfiler else user)
        session = Session(
            clock=clock,
            folder=folder,
            recording=self.recording,
            rank=trainer.global_rank,
            module=module,
            module_depth=self.module_depth,
            on_saved=lambda saved: self._window_saved(trainer, saved),
        )
        if why_not:
            session.note(why_not)
        if self.module_depth and environment.is_compiled(module):
            session.module_depth = 0
            session.note("modules are not labelled: hooks would make torch.compile compile the model again")
        if any(kind.__name__ == "PyTorchProfiler" for kind in type(user).__mro__):
            session.folder = None
            session.note("no trace was recorded: the trainer's own PyTorchProfiler is in use, and two cannot run")
        clock.on_boundary = lambda step: self._boundary(trainer, step)
        self._run = _Run(
            stage=stage,
            clock=clock,
            session=session,
            profiler=_ClockProfiler(clock, user),
            instrument=Instrument(clock.span),
            folder=folder,
            background=Background(analyze_elsewhere),
        )
        instrument(trainer, module, stage, self._run.instrument)
        trainer.profiler = self._run.profiler  # type: ignore[attr-defined]

    def _choose_folder(self, trainer: Trainer, stage: Stage, log_dir: str | None) -> tuple[Path | None, str | None]:
        """Folder of a stage's files, or None and the reason."""
        if self.dirpath is None and trainer.fast_dev_run:  # type: ignore[attr-defined]
            return None, "fast_dev_run: nothing was written; set dirpath to record traces in it"
        base = self.dirpath if self.dirpath is not None else str(Path(log_dir or trainer.default_root_dir) / "perf")
        if "://" in base:
            return None, f"nothing was written: {base} is not a local folder; set dirpath to one"
        return Path(base) if stage == "fit" else Path(base) / stage, None

    def _stop(self, trainer: Trainer, module: LightningModule, run: _Run, *, interrupted: bool) -> RunInfo:
        """End the capture, put everything back, and write ``run.json``."""
        run.session.finish()
        loop = run.clock.finish()
        self._put_back(trainer, run)
        windows = run.background.finish(in_a_hurry=interrupted)
        info = environment.describe_run(
            trainer,
            module,
            run.stage,
            loop=loop,
            windows=windows,
            notes=run.session.notes,
        )
        if run.folder is not None:
            write_json(run.folder / rank_file(RUN_FILE, info.rank), info, keep_older=True)
        return info

    def _put_back(self, trainer: Trainer, run: _Run) -> None:
        self._run = None
        run.clock.on_boundary = None
        run.instrument.restore()
        if trainer.profiler is run.profiler:  # type: ignore[attr-defined]
            trainer.profiler = run.profiler.user  # type: ignore[attr-defined]

    def _give_up(self, trainer: Trainer, error: Exception) -> None:
        log.warning(
            "lightning-perf: measuring stopped (%s: %s); training goes on. Please report this.",
            type(error).__name__,
            error,
            exc_info=not isinstance(error, (PerfError, OSError)),
        )
        run = self._run
        if run is not None:
            self._put_back(trainer, run)
            run.session.abandon()
            run.background.abandon()

    # Windows

    @_guarded
    def _boundary(self, trainer: Trainer, next_step: int | None) -> None:
        if self._run is not None:
            self._run.session.boundary(next_step)

    def _window_saved(self, trainer: Trainer, saved: SavedWindow) -> None:
        """On the training thread, between two steps: log what the clock knows, leave the rest to other threads."""
        run = self._run
        if run is None:
            return
        record = WindowRecord(
            trace=saved.path.name,
            first_step=saved.first_step,
            last_step=saved.last_step,
            rank=trainer.global_rank,
            global_step=_logging_step(trainer),
        )
        run.background.take(saved, record, analyze=bool(memory.devices()))
        loop = measure_loop(run.clock.record())
        self._log(trainer, run.stage, {**scalars.loop_scalars(loop), **scalars.memory_scalars(memory.memory_peaks())})

    def _log(self, trainer: Trainer, stage: Stage, figures: dict[str, float | None]) -> None:
        if not self.log_metrics or not figures:
            return
        for logger in trainer.loggers:
            separator = getattr(logger, "group_separator", "/")
            logger.log_metrics(scalars.named(figures, stage, separator), step=_logging_step(trainer))


def _stage(name: str) -> Stage:
    """Stage from what Lightning passes to ``setup``: a string, or an enum of strings."""
    value = getattr(name, "value", name)
    return next(stage for stage in STAGES if stage == value)


def _logging_step(trainer: Trainer) -> int:
    """The step under which Lightning itself logs, so that our figures stand beside the user's."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _loop(info: RunInfo) -> Loop | None:
    return measure_loop(info.loop) if info.loop is not None else None


def _windows(run: _Run) -> list[Window]:
    """The run's windows, named as their files in its folder."""
    windows = run.background.analyses(analyze_trace)
    return [msgspec.structs.replace(window, trace=Path(window.trace).name) for window in windows]
