"""Facts of a run, read from the trainer, the model and torch. Reading changes nothing and moves no data."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

import lightning_perf.capture.memory as memory
from lightning_perf.names import Stage
from lightning_perf.runinfo import (
    DdpFacts,
    DeviceFacts,
    Flags,
    LoaderFacts,
    LoopRecord,
    MemoryPeaks,
    OptimizerFacts,
    RunInfo,
    TrainerFacts,
    Versions,
    WindowRecord,
)

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

T = TypeVar("T")


def describe_run(
    trainer: Trainer,
    module: LightningModule,
    stage: Stage,
    *,
    loop: LoopRecord | None,
    windows: list[WindowRecord],
    notes: list[str],
    wrapped: object = None,
    worker_cpu_ratio: float | None = None,
) -> RunInfo:
    """Everything about a run, as it is now. A fact that cannot be read is left out; the loop's tables never are.

    ``wrapped`` is what the strategy had wrapped the module in while the loop ran.
    """
    return RunInfo(
        created_unix_ns=time.time_ns(),
        stage=stage,
        model=type(module).__name__,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
        versions=_versions(),
        cpu_count=_usable_cpus(),
        devices=_known(memory.devices, []) or _known(lambda: _root_device(trainer), []),
        trainer=_known(lambda: _trainer_facts(trainer, module, stage, wrapped), None),
        flags=_flags(trainer, module),
        loaders=_known(lambda: _loader_facts(trainer, stage), []),
        optimizers=_known(lambda: list(map(_optimizer_facts, trainer.optimizers)), []) if stage == "fit" else [],
        memory=_known(memory.memory_peaks, MemoryPeaks()),
        worker_cpu_ratio=worker_cpu_ratio,
        loop=loop,
        windows=windows,
        notes=notes,
    )


def _known(read: Callable[[], T], otherwise: T) -> T:
    """A fact, or what stands for not knowing it: objects of other libraries may lack what we ask them for."""
    try:
        return read()
    except (AttributeError, TypeError, ValueError, LookupError, RuntimeError, NotImplementedError):
        return otherwise


def _root_device(trainer: Trainer) -> list[DeviceFacts]:
    """The trainer's device where its back end keeps no allocator statistics (MPS); none for the CPU."""
    device = trainer.strategy.root_device
    return [] if device.type == "cpu" else [DeviceFacts(index=device.index or 0, name=device.type.upper())]


def total_steps(trainer: Trainer, module: LightningModule, stage: Stage) -> int | None:
    """Number of batches that the stage will run, or None if that is not known beforehand."""
    if stage != "fit":
        evaluation = trainer.test_loop if stage == "test" else trainer.validate_loop
        return _finite(sum(trainer.predict_loop.max_batches if stage == "predict" else evaluation.max_batches))
    batches = trainer.num_training_batches
    limits: list[float] = []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        done = trainer.fit_loop.epoch_loop.batch_progress.current.completed if trainer.fit_loop.restarting else 0
        limits.append((trainer.max_epochs - trainer.current_epoch) * batches - done)
    # In manual optimization every optimizer's every step counts, as often as the module likes.
    if trainer.max_steps >= 0 and module.automatic_optimization:
        limits.append((trainer.max_steps - trainer.global_step) * min(trainer.accumulate_grad_batches, batches))
    return _finite(max(0, min(limits))) if limits else None


def path_to_samples(batch: object) -> list[object] | None:
    """Keys and indices that lead to a tensor whose first dimension counts the samples, or None if none is sure to.

    That is the first dimension that all tensors share. Looks into mappings and sequences, but not into a sequence of
    tensors inside another: as many images as samples, or as many views of each sample, nobody can tell.
    """
    found = list(_tensors(batch, [], nested=False))
    sizes = {size for size, _ in found}
    return found[0][1] if len(sizes) == 1 and None not in sizes else None


def samples_at(batch: object, path: list[object]) -> int | None:
    """First dimension of the tensor at a path; None in a batch that does not look like the one it was found in."""
    try:
        for key in path:
            batch = batch[key]  # type: ignore[index]
        return batch.shape[0]  # type: ignore[attr-defined, no-any-return]
    except (LookupError, TypeError, AttributeError):
        return None


def _tensors(batch: object, path: list[object], *, nested: bool) -> Iterable[tuple[int | None, list[object]]]:
    """First dimension (None where it may not count samples) of and path to every tensor that has one."""
    if isinstance(batch, torch.Tensor):
        if batch.ndim:
            yield batch.shape[0], path
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _tensors(value, [*path, key], nested=nested)
    elif isinstance(batch, (list, tuple)):
        if nested and any(isinstance(item, torch.Tensor) for item in batch):
            yield None, path
            return
        for index, item in enumerate(batch):
            yield from _tensors(item, [*path, index], nested=True)


def _finite(number: float) -> int | None:
    return int(number) if math.isfinite(number) else None


def _versions() -> Versions:
    return Versions(
        lightning_perf=_version("lightning-perf") or "unknown",
        python=platform.python_version(),
        torch=str(torch.__version__),
        lightning=_version("lightning") or _version("pytorch-lightning") or "unknown",
        cuda=torch.version.cuda if torch.cuda.is_available() else None,
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _usable_cpus() -> int:
    """CPUs that this process may run on, which in a container are fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _trainer_facts(trainer: Trainer, module: LightningModule, stage: Stage, wrapped: object) -> TrainerFacts:
    bar = trainer.progress_bar_callback
    checkpoint = trainer.checkpoint_callback
    return TrainerFacts(
        strategy=type(trainer.strategy).__name__,
        precision=str(trainer.precision),
        accumulate_grad_batches=trainer.accumulate_grad_batches,
        automatic_optimization=module.automatic_optimization,
        max_epochs=trainer.max_epochs,
        max_steps=trainer.max_steps if trainer.max_steps >= 0 else None,
        batches_per_epoch=_finite(trainer.num_training_batches) if stage == "fit" else None,
        log_every_n_steps=trainer.log_every_n_steps,  # type: ignore[attr-defined]
        val_check_interval=_number(trainer.val_check_interval),
        check_val_every_n_epoch=_as(int, trainer.check_val_every_n_epoch),
        checkpoint_every_n_train_steps=_as(int, getattr(checkpoint, "_every_n_train_steps", None)),
        gradient_clip_val=_number(trainer.gradient_clip_val),
        progress_bar=type(bar).__name__ if bar is not None else None,
        loggers=[type(logger).__name__ for logger in trainer.loggers],
        callbacks=[type(callback).__name__ for callback in trainer.callbacks],  # type: ignore[attr-defined]
        ddp=_known(lambda: _ddp_facts(wrapped), None),
    )


def _ddp_facts(model: object) -> DdpFacts | None:
    """Facts of the wrapper around the model, if that is DistributedDataParallel."""
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return None
    found: dict[str, object] = _known(model._get_ddp_logging_data, {})
    return DdpFacts(
        backend=_known(lambda: torch.distributed.get_backend(model.process_group), None),
        find_unused_parameters=model.find_unused_parameters,
        static_graph=model.static_graph,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
        unused_parameter_bytes=_as(int, found.get("unused_parameter_size")),
    )


def _flags(trainer: Trainer, module: nn.Module) -> Flags:
    return Flags(
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        cudnn_deterministic=torch.backends.cudnn.deterministic,
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        matmul_tf32=_tf32(lambda: torch.backends.cuda.matmul),
        cudnn_tf32=_tf32(lambda: torch.backends.cudnn),
        float32_matmul_precision=_known(torch.get_float32_matmul_precision, None),
        # The trainer switches it on inside its loops only.
        detect_anomaly=torch.is_anomaly_enabled() or bool(getattr(trainer, "_detect_anomaly", False)),
        compiled=is_compiled(module),
        channels_last=_known(lambda: _channels_last(module), None),
        torch_threads=torch.get_num_threads(),
    )


def _tf32(switch: Callable[[], object]) -> bool | None:
    """Whether TF32 is on: torch 2.9 has a new switch, and reading the old one raises once the new one was used."""
    old = _known(lambda: _as(bool, getattr(switch(), "allow_tf32", None)), None)
    return old if old is not None else _known(lambda: getattr(switch(), "fp32_precision", None) == "tf32", None)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile was applied to the model or to a part of it."""
    return getattr(module, "_compiler_ctx", None) is not None or any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def _channels_last(module: nn.Module) -> bool | None:
    """Whether the convolutions' weights are channels_last; None for a model without 2-d convolutions."""
    weights = [part.weight for part in module.modules() if isinstance(part, nn.Conv2d) and part.kernel_size != (1, 1)]
    if not weights:
        return None
    return all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def _optimizer_facts(optimizer: torch.optim.Optimizer) -> OptimizerFacts:
    defaults = getattr(optimizer, "defaults", {})  # a wrapper of another library may have none
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return OptimizerFacts(
        optimizer_class=type(optimizer).__name__,
        parameter_tensors=len(parameters),
        parameters=sum(parameter.numel() for parameter in parameters),
        foreach=_as(bool, defaults.get("foreach")),
        fused=_as(bool, defaults.get("fused")),
    )


def _loader_facts(trainer: Trainer, stage: Stage) -> list[LoaderFacts]:
    by_stage: dict[str, object]
    if stage == "fit":
        by_stage = {"fit": trainer.train_dataloader, "validate": trainer.val_dataloaders}
    elif stage == "validate":
        by_stage = {stage: trainer.val_dataloaders}
    elif stage == "test":
        by_stage = {stage: trainer.test_dataloaders}
    else:
        by_stage = {stage: trainer.predict_dataloaders}
    return [_loader(name, loader) for name, loaders in by_stage.items() for loader in _flatten(loaders)]


def _flatten(loaders: object) -> Iterable[object]:
    """The loaders in what Lightning accepts: one, a collection of them, or a CombinedLoader."""
    if loaders is None:
        return
    parts = getattr(loaders, "flattened", loaders)
    if isinstance(parts, dict):
        parts = list(parts.values())
    if isinstance(parts, (list, tuple)):
        for part in parts:
            yield from _flatten(part)
    else:
        yield parts


def _loader(stage: str, loader: object) -> LoaderFacts:
    dataset = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    is_torch = isinstance(loader, torch.utils.data.DataLoader)
    return LoaderFacts(
        stage=stage,
        loader_class=type(loader).__name__,
        dataset_class=type(dataset).__name__ if dataset is not None else None,
        collate=getattr(collate, "__qualname__", type(collate).__name__) if collate is not None else None,
        iterable=isinstance(dataset, torch.utils.data.IterableDataset) if is_torch else None,
        length=_length(loader),
        batch_size=_as(int, getattr(loader, "batch_size", None)),
        num_workers=_as(int, getattr(loader, "num_workers", None)),
        prefetch_factor=_as(int, getattr(loader, "prefetch_factor", None)),
        pin_memory=_as(bool, getattr(loader, "pin_memory", None)),
        persistent_workers=_as(bool, getattr(loader, "persistent_workers", None)),
    )


def _as(kind: type[T], value: object) -> T | None:
    """The value if it is of that type: loaders and optimizers of other libraries may hold anything there."""
    return value if isinstance(value, kind) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _length(loader: object) -> int | None:
    # An IterableDataset's __len__ may be missing (TypeError) or say so itself (NotImplementedError).
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
