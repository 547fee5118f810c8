"""What became of advice: the findings of an earlier run against a later one."""

from __future__ import annotations

from lightning_perf.measure.analysis import Analysis
from lightning_perf.measure.finding import Achieved
from lightning_perf.recommend.evidence import evidence_of_run
from lightning_perf.runinfo import RunInfo


def achieved(before: Analysis, now: Analysis, path: str) -> Achieved | None:
    """What an earlier run's largest finding that is gone now has brought; None where no finding is gone.

    Nothing can be said of runs of different models, stages, numbers of ranks or batch sizes.

    Args:
        before: the earlier run, with its findings.
        now: the later run, with its findings.
        path: where the earlier run's record lies.
    """
    earlier, later = evidence_of_run(before), evidence_of_run(now)
    if before.run is None or now.run is None or earlier is None or later is None:
        return None
    if _same_work(before.run) != _same_work(now.run):
        return None
    still = {finding.rule for finding in now.findings}
    gone = next((one for one in before.findings if one.saving_us_per_step is not None and one.rule not in still), None)
    if gone is None or gone.saving_us_per_step is None:
        return None
    return Achieved(
        rule=gone.rule,
        predicted_us=gone.saving_us_per_step,
        predicted_range_us=gone.saving_range_us,
        step_before_us=earlier.step_us,
        step_now_us=later.step_us,
        achieved_us=earlier.step_us - later.step_us,
        analysis=path,
    )


def _same_work(run: RunInfo) -> tuple[object, ...]:
    batch = next((loader.batch_size for loader in run.loaders if loader.stage == run.stage), None)
    return run.model, run.stage, run.world_size, batch
