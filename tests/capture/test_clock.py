"""The loop clock alone, driven by hand in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from lightning_perf.capture.clock import LoopClock
from lightning_perf.capture.ledger import SERIES_LIMIT, Ledger
from lightning_perf.names import PHASES
from lightning_perf.runinfo import LoopRecord

FETCH = "[_TrainingEpochLoop].train_dataloader_next"
BODY = "run_training_batch"


class Hand:
    """A clock and the hand that moves it."""

    def __init__(self, inner: object = None) -> None:
        self.ns = 0
        self.clock = LoopClock("fit", inner, now=lambda: self.ns)  # type: ignore[arg-type]

    def span(self, name: str, ns: int = 0) -> AbstractContextManager[None]:
        @contextmanager
        def spent() -> Iterator[None]:
            with self.clock.profile(name):
                self.ns += ns
                yield

        return spent()

    def step(self, fetch_ns: int = 1, forward_ns: int = 1) -> None:
        with self.span(FETCH, fetch_ns):
            pass
        with self.span(BODY), self.span("[Strategy]X.training_step", forward_ns):
            pass


def nonzero(record: LoopRecord) -> dict[str, int]:
    return {phase: ns for phase, ns in record.plain.phases_ns.items() if ns}


def test_nested_time_belongs_to_the_inner_phase() -> None:
    hand = Hand()
    with hand.span(FETCH, 5):
        pass
    with hand.span(BODY, 1), hand.span("[LightningModule]Net.optimizer_step", 10):
        with hand.span("[Strategy]X.training_step", 100):
            pass
        with hand.span("[Strategy]X.backward", 1000):
            pass
        hand.ns += 20
    record = hand.clock.finish()
    assert nonzero(record) == {"data": 5, "forward": 100, "backward": 1000, "optimizer": 30, "other": 1}
    assert record.plain.duration_ns == 1136


def test_a_users_own_span_belongs_to_the_phase_around_it() -> None:
    hand = Hand()
    hand.step()
    with hand.span(FETCH):
        pass
    with hand.span(BODY), hand.span("[Strategy]X.training_step", 10), hand.span("my augmentation", 7):
        pass
    with hand.span("my augmentation", 3):
        pass
    spans = {(span.name, span.phase): span.plain_ns for span in hand.clock.finish().spans}
    assert spans["forward/my augmentation", "forward"] == 7
    assert spans["other/my augmentation", "other"] == 3


def test_a_step_without_a_batch_enters_no_sum() -> None:
    hand = Hand()
    hand.step(5, 7)
    with hand.span(FETCH, 1000):
        pass  # the loader had no more, or the epoch was skipped
    record = hand.clock.finish()
    assert (record.plain.steps, record.plain.duration_ns, record.incomplete_steps) == (1, 12, 1)
    assert record.series.complete == [True, False]


def test_a_step_whose_batch_failed_is_not_complete() -> None:
    hand = Hand()
    with pytest.raises(RuntimeError, match="planted"), hand.span(FETCH), hand.span(BODY, 5):
        raise RuntimeError("planted")
    record = hand.clock.finish()
    assert (record.plain.steps, record.incomplete_steps) == (0, 1)


def test_an_action_that_an_exception_left_open_is_closed_by_the_one_around_it() -> None:
    hand = Hand()
    hand.step()
    with hand.span(FETCH):
        pass

    def fail_in_the_optimizer() -> None:
        with hand.span(BODY, 1), hand.span("[Strategy]X.training_step", 10):
            hand.clock.start("optimizer_step")
            hand.ns += 100
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fail_in_the_optimizer()
    hand.ns += 5
    assert hand.clock.depth == 0
    hand.clock.stop("optimizer_step")  # too late: ignored
    assert hand.clock.depth == 0


def test_start_and_stop_time_an_action() -> None:
    hand = Hand()
    with hand.span(FETCH):
        pass
    with hand.span(BODY):
        hand.clock.start("optimizer_step")
        hand.ns += 8
        hand.clock.stop("optimizer_step")
    assert nonzero(hand.clock.finish()) == {"optimizer": 8}


def test_another_thread_is_not_measured_and_disturbs_nothing() -> None:
    hand = Hand()

    def elsewhere() -> None:
        with hand.clock.profile("[Strategy]X.backward"):
            hand.ns += 50

    with hand.span(FETCH):
        pass
    with hand.span(BODY), hand.span("[Strategy]X.training_step"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert nonzero(hand.clock.finish()) == {"forward": 50}


def test_in_validation_all_but_logging_and_checkpoints_is_validation() -> None:
    hand = Hand()
    hand.step(1, 1)
    with hand.span("[perf]validation", 1):
        for name, ns in {
            "[_EvaluationLoop].val_next": 10,
            "[Strategy]X.validation_step": 100,
            "[Callback]Y.on_validation_batch_end": 1000,
            "my own": 10_000,
            "save_checkpoint": 3,
            "[perf]logging.self.log": 4,
        }.items():
            with hand.span(name, ns):
                pass
    hand.step(1, 1)
    expected = {"data": 2, "forward": 2, "validation": 11_111, "checkpoint": 3, "logging": 4}
    assert nonzero(hand.clock.finish()) == expected


class Recorder:
    """A user's profiler that takes time itself."""

    def __init__(self) -> None:
        self.hand: Hand | None = None
        self.actions: list[str] = []

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        self.start(action_name)
        yield action_name
        self.stop(action_name)

    def start(self, action_name: str) -> None:
        assert self.hand is not None
        self.hand.ns += 3
        self.actions.append(action_name)

    def stop(self, action_name: str) -> None:
        assert self.hand is not None
        self.hand.ns += 4
        self.actions.append(f"end {action_name}")


def test_spans_are_passed_on_to_the_users_profiler_whose_cost_is_nobodys() -> None:
    recorder = Recorder()
    recorder.hand = hand = Hand(recorder)
    hand.step(5, 6)
    hand.clock.start("optimizer_step")
    hand.ns += 2
    hand.clock.stop("optimizer_step")
    record = hand.clock.finish()
    forward = "[Strategy]X.training_step"
    assert recorder.actions[:5] == [FETCH, f"end {FETCH}", BODY, forward, f"end {forward}"]
    # The first profiler call comes before the step it begins.
    assert nonzero(record) == {"data": 5, "forward": 6, "optimizer": 2, "other": 4 + 7 + 7 + 7}
    assert {span.name: span.plain_ns for span in record.spans}["other/user's profiler"] == 25


def test_what_happens_at_a_boundary_belongs_to_no_step() -> None:
    hand = Hand()
    numbers: list[int | None] = []

    def boundary(step: int | None) -> None:
        numbers.append(step)
        hand.ns += 1_000

    hand.clock.on_boundary = boundary
    with hand.span("run_training_epoch"):
        hand.step()
        hand.step()
    record = hand.clock.finish()
    assert numbers == [0, 1, None]
    assert record.plain.duration_ns == 4
    assert record.outside_ns == 3_000


def test_spans_inside_a_boundary_belong_to_no_step_either() -> None:
    hand = Hand()

    def boundary(step: int | None) -> None:
        with hand.span("[perf]logging.CSVLogger.log_metrics", 1_000):
            pass

    hand.clock.on_boundary = boundary
    hand.step()
    hand.step()
    record = hand.clock.finish()
    assert nonzero(record) == {"data": 2, "forward": 2}
    assert record.outside_ns == 2_000


def test_steps_under_the_profiler_are_kept_apart() -> None:
    hand = Hand()
    hand.step(1, 1)
    hand.clock.traced = True
    hand.step(10, 10)
    hand.clock.traced = False
    hand.step(1, 1)
    record = hand.clock.finish()
    assert (record.plain.steps, record.plain.duration_ns) == (2, 4)
    assert (record.traced.steps, record.traced.duration_ns) == (1, 20)
    assert record.series.traced == [False, True, False]


def test_samples_are_known_only_if_known_for_every_step() -> None:
    for sizes, expected in (([4, 4, 3], 11), ([4, None, 4], None)):
        hand = Hand()
        for size in sizes:
            hand.step()
            hand.clock.batch_size = size
        assert hand.clock.finish().plain.samples == expected


def test_a_long_run_keeps_few_steps() -> None:
    ledger = Ledger()
    steps = 5 * SERIES_LIMIT + 3
    for number in range(steps):
        phases_ns = [number] + [0] * (len(PHASES) - 1)
        ledger.add_step(number, 0, phases_ns, complete=True, traced=False, samples=1)
    series = ledger.series()
    assert (ledger.plain.steps, ledger.plain.samples) == (steps, steps)
    assert SERIES_LIMIT // 2 < len(series.number) <= SERIES_LIMIT
    assert series.number == list(range(0, steps, series.stride)) == series.duration_ns == series.phases_ns["data"]


def test_sums_are_exact_whatever_the_series_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.capture.ledger.SERIES_LIMIT", 8)
    hand = Hand()
    for number in range(100):
        hand.step(number, 1)
    record = hand.clock.finish()
    assert (record.plain.steps, record.plain.phases_ns["data"], record.plain.phases_ns["forward"]) == (100, 4950, 100)
    assert len(record.series.number) <= 8


def test_spans_with_a_counter_in_their_name_do_not_pile_up() -> None:
    hand = Hand()
    for number in range(1000):
        with hand.span(f"request {number}", 1):
            pass
    with hand.span(FETCH):
        pass
    with hand.span(BODY):
        for number in range(1000, 2000):
            with hand.span(f"request {number}", 1):
                pass
    with hand.span("[perf]validation"):
        for number in range(1000):
            with hand.span(f"[My]request {number}.run", 1):
                pass
    record = hand.clock.finish()
    assert {span.name: span.plain_ns for span in record.spans} == {"other/more": 1000, "validation/more": 1000}
    assert len(hand.clock._books.spans) < 300


def test_a_span_that_only_looks_like_lightnings_belongs_to_the_phase_around_it() -> None:
    hand = Hand()
    with hand.span(FETCH):
        pass
    with hand.span(BODY), hand.span("[Strategy]X.training_step"), hand.span("[Net]encoder.attention", 7):
        pass
    assert nonzero(hand.clock.finish()) == {"forward": 7}
