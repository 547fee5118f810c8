"""PerfCallback: the Trainer's hooks -> capture; after a window and at the end -> pipeline -> loggers and files.

The only module that imports lightning.
"""

from __future__ import annotations

import errno
import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import msgspec

from lightning_perf.capture import environment, memory
from lightning_perf.capture.background import END_SECONDS, Background
from lightning_perf.capture.clock import LoopClock
from lightning_perf.capture.forecast import MAX_TRACE_MIB, MIB, Forecast
from lightning_perf.capture.instrument import (
    Instrument,
    fetches_itself,
    instrument,
    instrument_collate,
    loader_iterators,
)
from lightning_perf.capture.interruptions import Interruptions
from lightning_perf.capture.profiler import Recording, SavedWindow
from lightning_perf.capture.session import Session
from lightning_perf.capture.window import Schedule, fit_to, schedule_from
from lightning_perf.capture.workers import FIRST_LOOK, LOOK_EVERY, WorkerTimes
from lightning_perf.comparison.compare import compare, label_of
from lightning_perf.errors import ConfigError, PerfError
from lightning_perf.measure.analysis import Analysis, Loop, Window
from lightning_perf.measure.loop import measure_loop
from lightning_perf.names import STAGES, Stage
from lightning_perf.pipeline import advised, analyze_aside, analyze_elsewhere, load
from lightning_perf.report import console, scalars
from lightning_perf.report.comparison import comparison_text
from lightning_perf.report.html import Report
from lightning_perf.runinfo import ANALYSIS_FILE, REPORT_FILE, RUN_FILE, RunInfo, WindowRecord, rank_file, write_json

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

KEEP_WINDOWS = 20
"""Windows that a run keeps: what a page of the tab or of a report can show, and 20 traces of disk at most."""

P = ParamSpec("P")
R = TypeVar("R")

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What writing to a full disk raises, without the file's name."""

REPORTED_WINDOWS = 3
"""Windows in the report of a fit, the latest ones: it should end soon. ``lightning-perf report`` shows more."""

_UNUSED_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_start",
    "on_validation_batch_start",
    "on_test_batch_start",
    "on_predict_batch_start",
)
"""Lightning times and calls every hook of every callback, these in each step, unless it is not callable."""


class _ClockProfiler(Profiler):
    """The loop clock in the place of ``trainer.profiler``. Everything but spans goes to the user's own."""

    def __init__(self, clock: LoopClock, user: Profiler) -> None:
        super().__init__(dirpath=getattr(user, "dirpath", None), filename=getattr(user, "filename", None))
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

    def __reduce__(self) -> tuple[Callable[[Profiler], Profiler], tuple[Profiler]]:
        """Copied or pickled, for a worker process say, it is the user's own profiler again."""
        return _same, (self.user,)

    def __getattr__(self, name: str) -> object:
        if "user" not in self.__dict__:  # while it is being made
            raise AttributeError(name)
        return getattr(self.user, name)


def _same(profiler: Profiler) -> Profiler:
    return profiler


@dataclass
class _Run:
    """What lives while one stage runs, and is gone afterwards."""

    trainer: Trainer
    stage: Stage
    clock: LoopClock
    session: Session
    profiler: _ClockProfiler
    instrument: Instrument
    interruptions: Interruptions
    workers: WorkerTimes
    folder: Path | None
    background: Background[Window]

    wrapped: object = None
    samples_path: list[object] | None = None
    batches_seen: bool = False
    causes: set[object] = field(default_factory=set)

    def look_at_first(self, batch: object) -> None:
        """Find out at the first batch where a batch tells how many samples it holds."""
        self.batches_seen = True
        self.samples_path = _attempt(lambda: environment.path_to_samples(batch), lambda _: None)

    def failed(self, error: Exception) -> None:
        """Something beside the clock went wrong: say it once for each cause, remember it, go on."""
        # A folder that cannot be written fails every file of ours, each with a name of its own in its message.
        below = error.__cause__ if isinstance(error, PerfError) and error.__cause__ else error
        of_files = isinstance(below, OSError) and (below.filename or below.errno in _FULL)
        cause = "files" if of_files else type(error)
        if cause in self.causes:
            return
        self.causes.add(cause)
        text = f"{type(error).__name__}: {error}"
        log.warning("lightning-perf: %s; training and measuring go on", text)
        self.session.note(text)


def _attempt(action: Callable[[], R], otherwise: Callable[[Exception], R]) -> R:
    """The one guard between a measuring tool and the run that it measures."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001
        return otherwise(error)


def _guarded(
    hook: Callable[Concatenate[PerfCallback, Trainer, P], None],
) -> Callable[Concatenate[PerfCallback, Trainer, P], None]:
    """Keep what goes wrong in here away from the run: say it once, put everything back, stay out."""

    @functools.wraps(hook)
    def guarded(self: PerfCallback, trainer: Trainer, *args: P.args, **kwargs: P.kwargs) -> None:
        _attempt(lambda: hook(self, trainer, *args, **kwargs), self._give_up)

    return cast("Callable[Concatenate[PerfCallback, Trainer, P], None]", guarded)


BatchEnd = Callable[["PerfCallback", "Trainer", "LightningModule", object, object, int, int], None]


def _batch_end(stage: Stage) -> BatchEnd:
    """The hook at the end of a batch of a stage: counts its samples, in few steps as it runs in every one."""

    def on_batch_end(
        self: PerfCallback,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        run = self._run
        if run is not None and run.stage == stage:
            if not run.batches_seen:
                run.look_at_first(batch)
            if run.samples_path is not None:
                run.clock.batch_size = environment.samples_at(batch, run.samples_path)
            if batch_idx % LOOK_EVERY == FIRST_LOOK:
                _attempt(lambda: run.workers.look(loader_iterators(run.trainer, stage)), run.failed)
            if run.background.pending:
                _attempt(lambda: self._log_newly_analyzed(run), run.failed)

    return on_batch_end


class PerfCallback(Callback):
    """Finds out where the time of a run goes, while it trains as before.

    Works for ``fit`` and, called on their own, for ``validate``, ``test`` and ``predict``. A clock keeps the time
    of every action of the loop for the whole run; on a schedule, torch.profiler records a few steps. At the end
    the figures go to the trainer's loggers (group ``perf``), to ``run.json``, ``analysis.json`` and ``report.html``
    beside the traces, and as a summary to the ``lightning_perf`` logger. Nothing that fails in here stops the run.

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
        ranks: ranks that measure and record; default rank 0 only. The first of them shows the summary; whether
            a rank's scalars are kept is up to the logger, and most keep those of rank 0.
        log_metrics: send scalars to the trainer's loggers.
        summary: show the summary at the end.
        baseline: an earlier run's folder, or its ``analysis.json``: a fit ends with the comparison with it, and with
            ``perf/change_*`` metrics.
        max_trace_mib: most MiB of one trace before it is compressed; a window that would get larger ends after the
            steps that fit, at least one. None for no limit.
        keep_windows: windows of a run to keep, at least 2, or None for all: the first one and the latest ones. Trace
            and analysis of each other one are removed when a later one comes; ``run.json`` still says which steps it
            held. Files of earlier runs are never touched.

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
        baseline: str | Path | None = None,
        max_trace_mib: int | None = MAX_TRACE_MIB,
        keep_windows: int | None = KEEP_WINDOWS,
    ) -> None:
        if module_depth < 0:
            raise ConfigError(f"module_depth={module_depth}; expected 0 or more. Set 0 to label no modules.")
        if ranks is not None and (not ranks or min(ranks) < 0):
            raise ConfigError(f"ranks={ranks}; expected at least one rank, counted from 0. Leave it out for rank 0.")
        if max_trace_mib is not None and max_trace_mib < 1:
            raise ConfigError(f"max_trace_mib={max_trace_mib}; expected at least 1. Set None for no limit.")
        if keep_windows is not None and keep_windows < 2:
            raise ConfigError(f"keep_windows={keep_windows}; expected at least 2. Set None to keep all.")
        self.dirpath = None if dirpath is None else str(dirpath)
        self.schedule = schedule_from(schedule)
        self.recording = Recording(shapes=record_shapes, stack=with_stack, memory=profile_memory)
        self.module_depth = module_depth
        self.ranks = [0] if ranks is None else list(ranks)
        self.log_metrics = log_metrics
        self.summary = summary
        self.baseline = None if baseline is None else str(baseline)
        self.max_trace_mib = max_trace_mib
        self.keep_windows = keep_windows
        self.analysis: Analysis | None = None
        self._run: _Run | None = None
        for hook in _UNUSED_HOOKS:
            if getattr(type(self), hook) is getattr(Callback, hook):
                setattr(self, hook, None)

    @property
    def report(self) -> Report:
        """What the last stage showed, for people: ``callback.report.figures`` for a notebook, ``save`` for a file.

        Raises:
            PerfError: nothing was measured yet.
        """
        if self.analysis is None:
            raise PerfError("nothing was measured yet; call trainer.fit(...) with this callback first")
        return Report(self.analysis)

    def __getstate__(self) -> dict[str, object]:
        """Settings and the last analysis: a clock and a profiler belong to one process, ``log`` to the model."""
        return {name: value for name, value in vars(self).items() if name not in ("log", "log_dict")} | {"_run": None}

    # Hooks: begin and end of a stage

    @_guarded
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put the clock in the place of the trainer's profiler."""
        log_dir = trainer.log_dir  # a collective call: on every rank, before anything that some ranks skip
        if trainer.global_rank not in self.ranks:
            return
        if self._run is not None and not self._is_over(self._run, trainer):
            return  # a stage inside the one that is measured, for example trainer.validate in a hook: part of it
        user = cast("Profiler", trainer.profiler)  # type: ignore[attr-defined]
        if isinstance(user, _ClockProfiler):
            log.warning("lightning-perf: this trainer has two PerfCallbacks; the second one does nothing")
            return
        self._begin(trainer, pl_module, _stage(stage), user, log_dir)

    @_guarded
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Finish: analyse, write, log, show."""
        run = self._run
        if run is None or run.trainer is not trainer or run.stage != _stage(stage):
            return
        info = self._stop(run, pl_module, interrupted=False)
        if run.session.schedule is None:
            return  # the loop never ran: a learning rate finder's own fit, or no batches
        self.analysis = Analysis(run=info, loop=_loop(info), windows=[])
        windows = self._analyses(run, info)
        windows = [msgspec.structs.replace(window, trace=Path(window.trace).name) for window in windows]
        self.analysis = self._advised(run, msgspec.structs.replace(self.analysis, windows=windows))
        self._write(run, ANALYSIS_FILE, self.analysis)
        self._log(run, scalars.all_scalars(self.analysis))
        if trainer.global_rank != min(self.ranks):
            return
        base = self._base(run) if run.stage == "fit" else None
        if run.folder is not None:
            target, report = run.folder / REPORT_FILE, Report(self.analysis, base)
            _attempt(lambda: report.save(target, REPORTED_WINDOWS), run.failed)
        if self.summary:
            console.emit("\n" + console.summarize_run(self.analysis, run.folder))
        if base is not None:
            _attempt(functools.partial(self._compare, run, base, self.analysis), run.failed)

    @_guarded
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The run failed or was interrupted: keep what was recorded, with no long work."""
        run = self._run
        if run is None or run.trainer is not trainer:
            return
        run.session.note(f"the run was ended by {type(exception).__name__}")
        info = self._stop(run, pl_module, interrupted=True)
        self.analysis = Analysis(run=info, loop=_loop(info), windows=[])
        if self.summary and info.windows and trainer.global_rank == min(self.ranks):
            log.warning("lightning-perf: what was recorded is kept: lightning-perf analyze %s", run.folder)

    # Hooks: the loops

    @_guarded
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop_begins(pl_module, "fit")

    @_guarded
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop_begins(pl_module, "validate")

    @_guarded
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop_begins(pl_module, "test")

    @_guarded
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop_begins(pl_module, "predict")

    # The training loop gives no dataloader_idx.
    on_train_batch_end = _batch_end("fit")  # type: ignore[assignment]
    on_validation_batch_end = _batch_end("validate")  # type: ignore[assignment]
    on_test_batch_end = _batch_end("test")  # type: ignore[assignment]
    on_predict_batch_end = _batch_end("predict")  # type: ignore[assignment]

    # A stage

    def _begin(
        self, trainer: Trainer, module: LightningModule, stage: Stage, user: Profiler, log_dir: str | None
    ) -> None:
        folder, why_not = self._choose_folder(trainer, stage, log_dir)
        inner = None if type(user) is PassThroughProfiler else user
        clock = LoopClock(stage, inner, fetches_itself=fetches_itself(module, stage))
        session = Session(
            clock=clock,
            folder=folder,
            recording=self.recording,
            rank=trainer.global_rank,
            module=module,
            module_depth=self.module_depth,
            on_saved=self._window_saved,
            forecast=Forecast(None if self.max_trace_mib is None else self.max_trace_mib * MIB),
        )
        if why_not:
            session.note(why_not)
        if self.module_depth and environment.is_compiled(module):
            session.module_depth = 0
            session.note("modules are not labelled: hooks would make torch.compile compile the model again")
        if any(kind.__name__ == "PyTorchProfiler" for kind in type(user).__mro__):
            session.folder = None
            session.note("no trace was recorded: the trainer's own PyTorchProfiler is in use, and two cannot run")
        clock.on_boundary = self._boundary
        self._run = _Run(
            trainer=trainer,
            stage=stage,
            clock=clock,
            session=session,
            profiler=_ClockProfiler(clock, user),
            instrument=Instrument(clock.span),
            interruptions=Interruptions(clock.span),
            workers=WorkerTimes(),
            folder=folder,
            background=Background(analyze_elsewhere, keep=self.keep_windows),
        )
        instrument(trainer, module, stage, self._run.instrument)
        trainer.profiler = self._run.profiler  # type: ignore[attr-defined]

    def _choose_folder(self, trainer: Trainer, stage: Stage, log_dir: str | None) -> tuple[Path | None, str | None]:
        """Folder of a stage's files, or None and the reason."""
        if self.dirpath is None and trainer.fast_dev_run:  # type: ignore[attr-defined]
            return None, "fast_dev_run: nothing was written; set dirpath to record traces in it"
        base = self.dirpath or log_dir or trainer.default_root_dir
        if "://" in base:
            return None, f"nothing was written: {base} is not a local folder; set dirpath to one"
        folder = Path(base) if self.dirpath else Path(base) / "perf"
        # Absolute, as the run may change its working directory.
        return (folder if stage == "fit" else folder / stage).absolute(), None

    def _loop_begins(self, module: LightningModule, stage: Stage) -> None:
        run = self._run
        if run is None or run.stage != stage or run.session.schedule is not None:
            return
        run.clock.start_afresh()
        run.interruptions.watch()
        run.wrapped = getattr(run.trainer.strategy, "model", None)
        instrument_collate(run.trainer, stage, run.instrument)
        steps = environment.total_steps(run.trainer, module, stage)
        run.session.schedule = self.schedule or fit_to(steps)
        if self.schedule is None and run.session.schedule != Schedule():
            run.session.note(f"the run has only {steps} steps: recording {run.session.schedule.active} of them")

    def _stop(self, run: _Run, module: LightningModule, *, interrupted: bool) -> RunInfo:
        """End the capture, put everything back, and write ``run.json`` unless the loop never began."""
        _attempt(run.session.finish, self._no_more_windows)
        loop = run.clock.finish()
        self._put_back(run)
        windows = run.background.finish(in_a_hurry=interrupted)
        if run.background.pruned:
            run.session.note(
                f"the traces of {run.background.pruned} windows were removed, as keep_windows={self.keep_windows}: "
                "the first one and the latest ones are kept"
            )
        for error in run.background.failures():
            run.failed(error)
        info = environment.describe_run(
            run.trainer,
            module,
            run.stage,
            loop=loop,
            windows=windows,
            notes=run.session.notes,
            wrapped=run.wrapped,
            worker_cpu_ratio=run.workers.cpu_ratio,
        )
        if run.session.schedule is not None:
            self._write(run, RUN_FILE, info, keep_older=True)
        self._run = None  # only here: where an interrupt breaks this off, on_exception does it again
        return info

    def _analyses(self, run: _Run, info: RunInfo) -> list[Window]:
        """The windows that can be analysed in time; what else is to be said of them joins the run's notes."""
        noted = len(info.notes)
        windows = run.background.analyses(analyze_aside, run.failed)
        left = run.background.unanalyzed
        if left:
            run.session.note(
                f"{len(left)} of the windows could not be analysed within {END_SECONDS:.0f} s: "
                f"lightning-perf analyze {left[0] if len(left) == 1 else left[0].parent}"
            )
        if len(info.notes) > noted:  # the list is the session's own
            self._write(run, RUN_FILE, info)
        return windows

    def _advised(self, run: _Run, analysis: Analysis) -> Analysis:
        def without(error: Exception) -> Analysis:
            run.failed(error)
            return analysis

        return _attempt(lambda: advised(analysis, run.folder), without)

    def _base(self, run: _Run) -> Analysis | None:
        """The run to compare with, if one was named and can be read."""
        if self.baseline is None:
            return None
        path = Path(self.baseline)

        def without(error: Exception) -> None:
            run.failed(error)

        return _attempt(lambda: load(path), without)

    def _compare(self, run: _Run, base: Analysis, analysis: Analysis) -> None:
        compared = compare([base], [analysis], (label_of(Path(self.baseline or "")), "this run"))
        self._log(run, scalars.change_scalars(compared))
        if self.summary:
            console.emit("\n" + comparison_text(compared))

    def _write(self, run: _Run, name: str, record: RunInfo | Analysis, *, keep_older: bool = False) -> None:
        if run.folder is not None:
            path = run.folder / rank_file(name, run.trainer.global_rank)
            _attempt(lambda: write_json(path, record, keep_older=keep_older), run.failed)

    def _is_over(self, run: _Run, trainer: Trainer) -> bool:
        """Whether a run that was never finished is over; if so it is dropped here, and its profiler stopped.

        On the same trainer, a stage that is set up inside another one has more spans open around it than the one
        of ``setup`` itself. Another trainer knows its own state.
        """
        alive = run.clock.depth > 1 if run.trainer is trainer else run.trainer.state.status == "running"
        if not alive:
            self._drop(run)
        return not alive

    def _drop(self, run: _Run) -> None:
        self._run = None
        self._put_back(run)
        _attempt(run.session.abandon, run.failed)
        run.background.abandon()

    def _put_back(self, run: _Run) -> None:
        run.clock.on_boundary = None
        if run.trainer.profiler is run.profiler:  # type: ignore[attr-defined]
            run.trainer.profiler = run.profiler.user  # type: ignore[attr-defined]
        run.interruptions.end()
        run.instrument.restore()

    def _give_up(self, error: Exception) -> None:
        log.warning(
            "lightning-perf: measuring stopped (%s: %s); training goes on. Please report this.",
            type(error).__name__,
            error,
            exc_info=error,
        )
        if self._run is not None:
            self._drop(self._run)

    # Windows

    def _boundary(self, next_step: int | None) -> None:
        run = self._run
        if run is not None:
            _attempt(lambda: run.session.boundary(next_step), self._no_more_windows)

    def _no_more_windows(self, error: Exception) -> None:
        """A window failed: the clock goes on without."""
        run = self._run
        if run is not None:
            run.failed(error)
            # What fails now follows from that.
            _attempt(run.session.abandon, lambda later: run.session.note(f"{type(later).__name__}: {later}"))

    def _window_saved(self, saved: SavedWindow) -> None:
        """On the training thread, between two steps: log what the clock knows, leave the rest to other threads."""
        run = self._run
        if run is None:
            return
        record = WindowRecord(
            trace=saved.path.name,
            first_step=saved.first_step,
            last_step=saved.last_step,
            rank=run.trainer.global_rank,
            global_step=_logging_step(run.trainer),
        )
        run.background.take(saved, record, analyze=bool(memory.devices()))
        loop = measure_loop(run.clock.record())
        self._log(run, {**scalars.loop_scalars(loop), **scalars.memory_scalars(memory.memory_peaks())})

    def _log_newly_analyzed(self, run: _Run) -> None:
        for window in run.background.newly_analyzed():
            self._log(run, scalars.device_scalars(window))

    def _log(self, run: _Run, figures: dict[str, float | None]) -> None:
        if not self.log_metrics:
            return
        for logger in run.trainer.loggers:
            named = scalars.named(figures, run.stage, getattr(logger, "group_separator", "/"))
            if named:
                step = _logging_step(run.trainer)
                _attempt(functools.partial(logger.log_metrics, named, step=step), run.failed)


def _stage(name: str) -> Stage:
    """Stage from what Lightning passes to ``setup``: a string, or an enum of strings."""
    value = getattr(name, "value", name)
    return next(stage for stage in STAGES if stage == value)


def _logging_step(trainer: Trainer) -> int:
    """The step under which Lightning itself logs, so that our figures stand beside the user's."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _loop(info: RunInfo) -> Loop | None:
    return measure_loop(info.loop) if info.loop is not None else None
