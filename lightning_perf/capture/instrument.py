"""Spans for the actions of the loop to which Lightning gives none: methods are wrapped while a stage runs."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from lightning_perf.capture import kinds
from lightning_perf.names import Stage

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

OpenSpan = Callable[[str], AbstractContextManager[object]]


class Instrument:
    """Wraps methods of objects in spans and puts the originals back, in reverse order.

    Always on the object and never on its class: a changed class loses the interpreter's caches for all its
    objects, which made every step slower. For the same reason nobody asks for an object's ``__dict__`` here.
    """

    def __init__(self, open_span: OpenSpan) -> None:
        self._open_span = open_span
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: object, method: str, span: str, first: Callable[[], None] | None = None) -> None:
        """Time calls of ``owner.method`` as ``span``; ``first`` is done at the first call.

        An owner without that method is left alone.
        """
        original = getattr(owner, method, None)
        if not callable(original):
            return
        inherited = getattr(original, "__func__", None) is getattr(type(owner), method, original)
        timed = _TimedMethod(owner, method, original, self._open_span, span, first)
        setattr(owner, method, timed)

        def undo() -> None:
            if getattr(owner, method, None) is not timed:  # somebody else replaced ours since
                return
            if inherited:
                delattr(owner, method)
            else:
                setattr(owner, method, original)

        self._undo.append(undo)

    def on_restore(self, action: Callable[[], None]) -> None:
        """Also do this when everything is put back."""
        self._undo.append(action)

    def restore(self) -> None:
        """Put every original back. Again it does nothing."""
        while self._undo:
            self._undo.pop()()


class _TimedMethod:
    """A method of one object, in a span. Copied or pickled with its object, it is the plain method again."""

    def __init__(
        self,
        owner: object,
        method: str,
        original: Callable[..., object],
        open_span: OpenSpan,
        span: str,
        first: Callable[[], None] | None,
    ) -> None:
        self._owner = owner
        self._method = method
        self._open_span = open_span
        self._span = span
        self._first = first
        self.__wrapped__ = original

    def __call__(self, *args: object, **kwargs: object) -> object:
        if isinstance(self._owner, torch.nn.Module) and torch.compiler.is_compiling():
            return self.__wrapped__(*args, **kwargs)  # traced by torch.compile, where a clock has no meaning
        if self._first is not None:
            first, self._first = self._first, None
            first()
        with self._open_span(self._span):
            return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        if hasattr(type(self._owner), self._method):
            return _plain_method, (self._owner, self._method)
        return _plain_value, (self.__wrapped__,)


def _plain_value(value: object) -> object:
    return value


def _plain_method(owner: object, method: str) -> object:
    return types.MethodType(getattr(type(owner), method), owner)


def fetches_itself(module: LightningModule, stage: Stage) -> bool:
    """Whether the module's step takes ``dataloader_iter`` instead of a batch."""
    step = getattr(module, kinds.STEP_HOOK[stage])
    return "dataloader_iter" in inspect.signature(step).parameters


def instrument(trainer: Trainer, module: LightningModule, stage: Stage, made: Instrument) -> None:
    """Wrap everything of a stage that has no span of its own.

    The iterator of an epoch is made in ``FitLoop.setup_data`` (first epoch, or reloaded loaders), in
    ``_TrainingEpochLoop.on_run_start`` (later epochs) and in ``reset`` of the evaluation and prediction loops.
    Manual optimization calls ``Strategy.backward`` without a span. Logging happens in ``self.log``, in the logger
    connector, which reduces and converts the metrics, and in the loggers.
    """
    if stage == "fit":
        epoch_loop = trainer.fit_loop.epoch_loop
        made.wrap(trainer.fit_loop, "setup_data", kinds.ITERATOR)
        made.wrap(epoch_loop, "on_run_start", kinds.ITERATOR)
        made.wrap(epoch_loop.val_loop, "run", kinds.VALIDATION)
        if not module.automatic_optimization:
            made.wrap(trainer.strategy, "backward", kinds.BACKWARD)
    else:
        loop = {"validate": trainer.validate_loop, "test": trainer.test_loop, "predict": trainer.predict_loop}[stage]
        made.wrap(loop, "reset", kinds.ITERATOR)
        made.wrap(loop, "on_run_end", kinds.RUN_END)
    if fetches_itself(module, stage):  # and moves its batches itself: no loop calls this hook
        made.wrap(module, "transfer_batch_to_device", kinds.TRANSFER)
    _instrument_logging(trainer, module, made)


def instrument_collate(trainer: Trainer, stage: Stage, made: Instrument) -> None:
    """Time the collating of batches in loaders without worker processes, also in an iterator that is made already."""
    for loader in getattr(_combined_loader(trainer, stage), "flattened", []):
        if getattr(loader, "num_workers", None) == 0:
            made.wrap(loader, "collate_fn", kinds.COLLATE)
    for iterator in loader_iterators(trainer, stage):
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            made.wrap(fetcher, "collate_fn", kinds.COLLATE)


def loader_iterators(trainer: Trainer, stage: Stage) -> list[object]:
    """The iterators of the loaders that feed a stage's loop now; none before they are made."""
    return getattr(getattr(_combined_loader(trainer, stage), "_iterator", None), "iterators", [])


def _combined_loader(trainer: Trainer, stage: Stage) -> object:
    loop: Any = {
        "fit": trainer.fit_loop,
        "validate": trainer.validate_loop,
        "test": trainer.test_loop,
        "predict": trainer.predict_loop,
    }[stage]
    return loop._combined_loader


def _instrument_logging(trainer: Trainer, module: LightningModule, made: Instrument) -> None:
    def rebind() -> None:
        # Lightning gives every callback the module's bound methods before our setup hook runs.
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if hasattr(callback, "log"):
                callback.log = module.log
                callback.log_dict = module.log_dict

    made.on_restore(rebind)
    made.wrap(module, "log", f"{kinds.LOGGING}self.log", first=lambda: _instrument_reduction(trainer, made))
    rebind()
    made.wrap(trainer._logger_connector, "log_metrics", f"{kinds.LOGGING}reduce")
    for logger in _unique(trainer.loggers):
        made.wrap(logger, "log_metrics", f"{kinds.LOGGING}{type(logger).__name__}.log_metrics")
        made.wrap(logger, "save", f"{kinds.LOGGING}{type(logger).__name__}.save")


def _instrument_reduction(trainer: Trainer, made: Instrument) -> None:
    """What logged values cost after ``self.log``: wrapped at its first call, as every wrapper costs each step."""
    for method in ("on_batch_end", "update_train_step_metrics", "update_train_epoch_metrics"):
        made.wrap(trainer._logger_connector, method, f"{kinds.LOGGING}reduce")


def _unique(items: Iterable[object]) -> list[object]:
    return list({id(item): item for item in items}.values())
