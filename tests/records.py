"""Records written out by hand, for tests that need no run."""

from __future__ import annotations

from lightning_perf.runinfo import (
    DeviceFacts,
    Flags,
    LoopRecord,
    MemoryPeaks,
    RunInfo,
    StepSeries,
    StepTotals,
    TrainerFacts,
    Versions,
    WindowRecord,
)


def totals(steps: int) -> StepTotals:
    return StepTotals(steps=steps, duration_ns=0, phases_ns={}, samples=None)


def run_info(*, devices: list[DeviceFacts], memory: MemoryPeaks) -> RunInfo:
    """A fit of 1,204 steps with one window of six."""
    return RunInfo(
        created_unix_ns=0,
        stage="fit",
        model="ResNet",
        rank=0,
        world_size=1,
        versions=Versions(lightning_perf="0.1.0", python="3.11", torch="2.14.1", lightning="2.6.6"),
        cpu_count=8,
        devices=devices,
        trainer=TrainerFacts(
            strategy="SingleDeviceStrategy",
            precision="32-true",
            accumulate_grad_batches=1,
            automatic_optimization=True,
            max_epochs=1,
            max_steps=None,
            batches_per_epoch=1204,
            log_every_n_steps=50,
            val_check_interval=1.0,
            check_val_every_n_epoch=1,
            checkpoint_every_n_train_steps=None,
            gradient_clip_val=None,
            progress_bar=None,
            loggers=[],
            callbacks=[],
        ),
        flags=Flags(
            cudnn_benchmark=False,
            cudnn_deterministic=False,
            deterministic_algorithms=False,
            matmul_tf32=False,
            cudnn_tf32=True,
            float32_matmul_precision="highest",
            detect_anomaly=False,
            compiled=False,
            channels_last=None,
            torch_threads=8,
        ),
        loaders=[],
        optimizers=[],
        memory=memory,
        loop=LoopRecord(
            plain=totals(1194),
            traced=totals(10),
            incomplete_steps=0,
            outside_ns=0,
            profiler_ns=0,
            series=StepSeries(stride=1, number=[], epoch=[], duration_ns=[], phases_ns={}, complete=[], traced=[]),
            spans=[],
            epoch_starts=[],
        ),
        windows=[WindowRecord(trace="rank0.1.pt.trace.json.gz", first_step=14, last_step=19, rank=0, global_step=20)],
        notes=[],
    )
