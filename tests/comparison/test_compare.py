"""Comparisons of runs and of traces, written by hand and recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from lightning_perf import CompareError, analyze, compare
from lightning_perf.comparison.compare import compare as compare_analyses
from lightning_perf.comparison.guard import Breach, breaches, limit_of
from lightning_perf.comparison.steps import steps_of
from lightning_perf.errors import ConfigError
from lightning_perf.measure.analysis import Analysis
from lightning_perf.measure.finding import Finding
from lightning_perf.measure.loop import measure_loop
from lightning_perf.names import PHASES
from lightning_perf.report.comparison import comparison_markdown, comparison_text, reason, verdict
from lightning_perf.runinfo import DeviceFacts, LoaderFacts, LoopRecord, MemoryPeaks, StepSeries, StepTotals, write_json
from tests.records import run_info

SHARED = Path(__file__).parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the checkout")
LABELS = ("old", "new")


def run(
    steps_us: np.ndarray,
    *,
    data: float = 0.25,
    batch_size: int = 32,
    validates: int | None = None,
    stage: str = "fit",
    devices: tuple[str, ...] = (),
    findings: list[Finding] | None = None,
    rss: int | None = 1 << 30,
) -> Analysis:
    """A run of one epoch whose steps fetch for a share of their time and are in forward for the rest."""
    ns = [round(one * 1000) for one in steps_us]
    fetch = [round(one * data) for one in ns]
    phases = {phase: [0] * len(ns) for phase in PHASES}
    phases["data"], phases["forward"] = fetch, [one - part for one, part in zip(ns, fetch, strict=True)]
    if validates is not None:
        ns[validates] += 10**10
        phases["validation"][validates] = 10**10
    totals = StepTotals(
        steps=len(ns),
        duration_ns=sum(ns),
        phases_ns={phase: sum(spent) for phase, spent in phases.items()},
        samples=batch_size * len(ns),
    )
    record = LoopRecord(
        plain=totals,
        traced=StepTotals(steps=0, duration_ns=0, phases_ns=dict.fromkeys(PHASES, 0)),
        incomplete_steps=0,
        outside_ns=0,
        profiler_ns=0,
        series=StepSeries(
            stride=1,
            number=list(range(len(ns))),
            epoch=[0] * len(ns),
            duration_ns=ns,
            phases_ns=phases,
            complete=[True] * len(ns),
            traced=[False] * len(ns),
        ),
        spans=[],
        epoch_starts=[],
    )
    info = run_info(
        devices=[DeviceFacts(index=0, name=name) for name in devices],
        memory=MemoryPeaks(rss_bytes=rss),
    )
    loader = LoaderFacts(stage=stage, loader_class="DataLoader", batch_size=batch_size)
    info = msgspec.structs.replace(info, stage=stage, loop=record, loaders=[loader], windows=[])
    return Analysis(run=info, loop=measure_loop(record), windows=[], findings=findings or [])


def noise(steps: int, seed: int, spread: float = 0.02) -> np.ndarray:
    return np.exp(spread * np.random.default_rng(seed).standard_normal(steps))


FINDING = Finding(
    rule="data.sync_loader",
    title="Making batches takes long.",
    severity="high",
    step_us=10_000.0,
    saving_us_per_step=2_000.0,
    saving_range_us=(1_500.0, 2_500.0),
    speedup=1.25,
    assumption=None,
    evidence=[],
    action="DataLoader(..., num_workers=2)",
    risks=[],
    confidence="high",
    where=None,
    trace=None,
    link="https://example.org",
)


def test_a_slower_run() -> None:
    compared = compare_analyses([run(10_000 * noise(200, 1))], [run(11_000 * noise(200, 2))], LABELS)
    assert compared.ground == "runs"
    assert compared.step.verdict == "slower"
    assert compared.step.ratio == pytest.approx(1.1, abs=0.02)
    assert (compared.base.steps, compared.candidate.steps) == (197, 197)  # three warm up
    text = comparison_text(compared)
    assert text.startswith("old -> new · 197 steps and 197 steps\n\n  Slower: a typical step takes ")
    assert "One recording of each side" in text
    assert compared.saved_us == pytest.approx(-1_000, abs=60)


def test_the_same_run() -> None:
    compared = compare_analyses([run(10_000 * noise(200, 1))], [run(10_000 * noise(200, 2))], LABELS)
    assert compared.step.verdict == "no difference"
    assert "No difference that these steps can show" in verdict(compared)
    assert reason(compared) is None
    assert compared.settings == []


def test_where_it_comes_from_and_what_was_predicted() -> None:
    base = run(10_000 * noise(100, 1), data=0.4, findings=[FINDING])
    candidate = run(6_000 * noise(100, 2), data=0.001)
    compared = compare_analyses([base], [candidate], LABELS)
    assert reason(compared) is not None
    assert "data is gone" in reason(compared)
    assert compared.phases[0].name == "data"
    assert [one.rule for one in compared.predictions] == ["data.sync_loader"]
    assert "data.sync_loader was to save 1.50 ms to 2.50 ms a step" in comparison_text(compared)
    still = compare_analyses([base], [run(6_000 * noise(100, 2), findings=[FINDING])], LABELS)
    assert still.predictions == []
    assert still.next == FINDING.title


def test_what_is_not_known_is_not_zero() -> None:
    compared = compare_analyses([run(10_000 * noise(50, 1))], [run(10_000 * noise(50, 2), rss=None)], LABELS)
    rss = next(one for one in compared.metrics if one.name == "memory_peak_rss")
    assert (rss.base, rss.candidate, rss.change) == (1 << 30, None, None)
    assert "n/a" in next(line for line in comparison_text(compared).splitlines() if "process" in line)
    assert "gpu_busy_ratio" not in {one.name for one in compared.metrics}


def test_steps_that_validate_begin_an_epoch_or_warm_up_stand_apart() -> None:
    slow_start = 10_000 * noise(60, 1)
    slow_start[:3] *= 50
    used = steps_of(run(slow_start, validates=30), "runs")
    assert used.durations_us.size == 56
    assert used.durations_us.max() < 12_000
    assert sum(used.phases_us.values()) == pytest.approx(used.durations_us.mean())


def test_few_steps_keep_what_there_is() -> None:
    compared = compare_analyses([run(10_000 * noise(3, 1))], [run(10_000 * noise(3, 2))], LABELS)
    assert compared.step.verdict is None
    assert verdict(compared) == "No verdict: too few steps."
    assert any("at least 4 on each side" in note for note in compared.notices)


def test_other_batch_sizes_are_compared_per_sample() -> None:
    compared = compare_analyses([run(10_000 * noise(100, 1))], [run(20_000 * noise(100, 2), batch_size=64)], LABELS)
    assert compared.step.per_sample
    assert compared.step.verdict == "no difference"
    assert any("32 and 64: the verdict is on the time per sample" in note for note in compared.notices)


def test_other_devices_are_told() -> None:
    compared = compare_analyses(
        [run(10_000 * noise(50, 1), devices=("A100",))], [run(10_000 * noise(50, 2), devices=("H100",))], LABELS
    )
    assert "Different devices: A100 and H100." in compared.notices


def test_other_stages_are_refused() -> None:
    with pytest.raises(CompareError, match="old is a fit and new a validate"):
        compare_analyses([run(noise(20, 1))], [run(noise(20, 2), stage="validate")], LABELS)


def test_nothing_in_common_is_refused() -> None:
    nothing = Analysis(run=None, loop=None, windows=[])
    with pytest.raises(CompareError, match="no complete steps of the same kind"):
        compare_analyses([run(noise(20, 1))], [nothing], LABELS)


def test_repeats_decide_by_runs() -> None:
    """Runs of the same code that differ by 5 % do not differ, however many steps each has."""
    random = np.random.default_rng(0)
    speeds = 10_000 * np.exp(0.05 * random.standard_normal((2, 5)))
    sides = [[run(speed * noise(300, number)) for number, speed in enumerate(side)] for side in speeds]
    compared = compare_analyses(*sides, LABELS)
    assert compared.step.of_repeats
    assert compared.step.verdict == "no difference"
    assert compared.base.runs == 5
    assert not any("One recording" in note for note in compared.notices)
    one = compare_analyses(sides[0][:1], sides[1][1:2], LABELS)
    assert not one.step.of_repeats


def test_limits() -> None:
    compared = compare_analyses([run(10_000 * noise(200, 1))], [run(11_000 * noise(200, 2), rss=3 << 29)], LABELS)
    assert breaches(compared, {"step_time": 0.2, "memory_peak_rss": 0.6}) == []
    failed = breaches(compared, {"step_time": 0.05, "memory_peak_rss": 0.4})
    assert failed[0].metric == "step_time"
    assert failed[1] == Breach(metric="memory_peak_rss", change=0.5, limit=0.4)
    assert "fails         step_time is worse by " in comparison_text(compared, failed)
    assert "samples_per_second" in {one.metric for one in breaches(compared, {"samples_per_second": 0.05})}
    with pytest.raises(CompareError, match="gpu_busy_ratio is not known on both sides"):
        breaches(compared, {"gpu_busy_ratio": 0.1})
    noisy = compare_analyses([run(10_000 * noise(200, 1, 0.9))], [run(10_500 * noise(200, 2, 0.9))], LABELS)
    assert noisy.step.verdict == "no difference"
    assert breaches(noisy, {"step_time": 0.01}) == []


def test_limit_of() -> None:
    assert limit_of(" 7.5 % ") == 0.075
    for wrong in ("5", "-5%", "five%", ""):
        with pytest.raises(ConfigError, match="expected a percentage"):
            limit_of(wrong)


def test_markdown_keeps_names_text() -> None:
    compared = compare_analyses([run(10_000 * noise(50, 1))], [run(12_000 * noise(50, 2))], ("a|b", "<img src=x>`*c*`"))
    text = comparison_markdown(compared)
    assert "### a\\|b → \\<img src=x\\>\\`\\*c\\*\\`" in text
    assert "| step time, median |" in text


def test_paths(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 0.5)):
        write_json(tmp_path / name / "perf" / "analysis.json", run(10_000 * factor * noise(100, 1)))
        for repeat in range(4):
            write_json(
                tmp_path / f"{name}s" / f"version_{repeat}" / "perf" / "analysis.json",
                run(10_000 * factor * noise(100, repeat)),
            )
    compared = compare(tmp_path / "a", tmp_path / "b" / "perf" / "analysis.json")
    assert (compared.base.label, compared.candidate.label) == ("a", "b")
    assert compared.step.verdict == "faster"
    repeated = compare(tmp_path / "as", tmp_path / "bs")
    assert repeated.step.of_repeats
    assert repeated.candidate.runs == 4


@needs_traces
def test_recorded_loaders_without_and_with_workers() -> None:
    compared = compare(
        SHARED / "v100_resnet50_workers0.pt.trace.json.gz", SHARED / "v100_resnet50_workers4.pt.trace.json.gz"
    )
    text = comparison_text(compared)
    assert compared.step.verdict == "faster"
    assert "Most of it: data loading is gone (69.3 ms a step before, 1.42 ms after)." in text
    assert compared.base.p50_us == pytest.approx(176_300, abs=500)
    assert compared.candidate.p50_us == pytest.approx(126_300, abs=500)
    assert "The first recorded step of v100_resnet50_workers4 was slow and is left out: 181.6 ms." in text
    assert "Heavy tail of v100_resnet50_workers4: 20 % of its steps" in text
    assert compared.next == "The device waits 15 % of a step for the host to launch its work."
    assert "steps under the profiler" in text
    gone = [part.name for part in compared.operators if part.candidate_us is None]
    assert "aten::_cat" in gone  # batches are collated elsewhere


@needs_traces
def test_every_recorded_trace_can_be_compared_with_itself() -> None:
    for path in sorted(SHARED.glob("*.gz")):
        analysis = analyze(path)
        if not any(step.complete for window in analysis.windows for step in window.steps):
            continue
        compared = compare_analyses([analysis], [analysis], LABELS)
        assert compared.step.verdict in ("no difference", None), path.name
        assert compared.phases == []
        assert compared.operators == []
        assert comparison_text(compared)
