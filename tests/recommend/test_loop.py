"""Rules about hooks, logging, checkpoints, validation and progress bars."""

from __future__ import annotations

import pytest

from lightning_perf.recommend.findings import ranked
from lightning_perf.recommend.loop import checkpoint, hook, logging, progress_bar, validation
from lightning_perf.recommend.rules import RULES
from lightning_perf.runinfo import DeviceFacts
from tests.recommend.cases import evidence_of, loop_record
from tests.recommend.test_predict import EMA, seen

GPU = [DeviceFacts(index=0, name="NVIDIA A100-SXM4-80GB")]
SLOW = "callbacks/Slow.on_train_batch_end"


def test_a_slow_hook():
    found = hook(
        evidence_of(
            {"callbacks": 11_000, "forward": 9_000},
            hooks_us={
                "callbacks/PerfCallback.on_train_batch_end": 20_000,
                "callbacks/TQDMProgressBar.on_train_batch_end": 19_000,
                "callbacks/ModelCheckpoint.on_train_batch_end": 18_000,
                SLOW: 10_000,
                "callbacks/Other.on_before_backward": 1_000,
                "callbacks/Other.on_after_backward": 100,
            },
            loop=loop_record(spans={SLOW: ("callbacks", 1_000)}),
        )
    )
    assert (found.rule, found.where) == ("host.hook", "Slow.on_train_batch_end")
    assert found.title == "Slow.on_train_batch_end takes 50 % of a step."
    assert found.saving_us_per_step == pytest.approx(9_800 + 0.05 * 10_200)
    assert found.action == "In Slow.on_train_batch_end: if trainer.global_step % 50: return"
    assert found.evidence == ["Slow.on_train_batch_end takes 10.0 ms a step."]


def test_the_hooks_of_a_callback_are_one_cost():
    spans = {
        "callbacks/Stats.on_train_batch_start": 3_000,
        "callbacks/Stats.on_train_batch_end": 3_500,
        "callbacks/Other.on_train_batch_end": 4_000,
    }
    evidence = evidence_of({"callbacks": 10_500, "forward": 9_500}, hooks_us=spans)
    found = hook(evidence)
    assert (found.where, found.saving_us_per_step) == ("Stats", pytest.approx(1.1 * 0.98 * 6_500))
    assert [line.split(" takes")[0] for line in found.evidence] == [
        "Stats.on_train_batch_end",
        "Stats.on_train_batch_start",
    ]


def test_a_rare_hook_is_not_told_to_be_rare():
    found = hook(
        evidence_of(
            {"callbacks": 10_000, "forward": 10_000},
            hooks_us={SLOW: 10_000},
            loop=loop_record(spans={SLOW: ("callbacks", 10)}),
        )
    )
    assert found.evidence == ["Slow.on_train_batch_end takes 1.00 s each time, 0.01 times a step."]
    assert "%" not in found.action


@pytest.mark.parametrize(("idle_us", "saves"), [(0.0, None), (2_000.0, 1_960.0)])
def test_a_hook_behind_the_device(idle_us, saves):
    window = seen({EMA: 4_000}, {EMA: idle_us})
    evidence = evidence_of(
        {"callbacks": 4_000, "forward": 22_500},
        hooks_us={f"callbacks/{EMA[1]}": 4_000},
        loop=loop_record(spans={f"callbacks/{EMA[1]}": ("callbacks", 1_000)}),
        window=window,
        devices=GPU,
    )
    found = hook(evidence)
    assert (found.saving_us_per_step if found is not None else None) == (saves and pytest.approx(saves))


def test_many_logged_values():
    found = logging(
        evidence_of(
            {"logging": 10_300, "forward": 5_100},
            hooks_us={"logging/self.log": 9_000, "logging/reduce": 1_200, "logging/CSVLogger.log_metrics": 100},
            loop=loop_record(spans={"logging/self.log": ("logging", 30_000)}),
        )
    )
    assert found.title == "Logging takes 66 % of a step."
    assert found.saving_us_per_step == pytest.approx(9_860 + 0.05 * 5_540)
    assert found.where == "self.log"
    assert found.evidence[0] == "self.log is called 30.0 times a step: 10.2 ms."


def test_a_slow_logger():
    found = logging(
        evidence_of(
            {"logging": 3_100, "forward": 6_900},
            hooks_us={"logging/WandbLogger.log_metrics": 3_000, "logging/self.log": 100},
            loop=loop_record(spans={"logging/self.log": ("logging", 1_000)}),
            trainer={"log_every_n_steps": 1},
        )
    )
    assert found.saving_us_per_step == pytest.approx(1.1 * 3_000 * 49 / 50)
    assert (found.action, found.where) == ("Trainer(log_every_n_steps=50)", "WandbLogger.log_metrics")


def test_one_logged_value_is_as_few_as_can_be():
    evidence = evidence_of(
        {"logging": 300, "forward": 1_000},
        hooks_us={"logging/self.log": 300},
        loop=loop_record(spans={"logging/self.log": ("logging", 1_000)}),
    )
    assert logging(evidence) is None


def test_checkpoints_in_every_step():
    # 260 ms each; 133 ms are left of a step, so that every 200th step is the first round interval below 1 %.
    found = checkpoint(
        evidence_of(
            {"checkpoint": 240_000, "callbacks": 20_000, "forward": 133_000},
            hooks_us={"checkpoint": 240_000, "callbacks/ModelCheckpoint.on_train_batch_end": 20_000},
            loop=loop_record(spans={"checkpoint": ("checkpoint", 1_000)}),
            trainer={"checkpoint_every_n_train_steps": 1},
        )
    )
    assert found.title == "Saving checkpoints takes 66 % of a step."
    assert found.action == "ModelCheckpoint(every_n_train_steps=200)"
    assert found.saving_us_per_step == pytest.approx(258_700 + 0.05 * 134_300)
    assert found.evidence == [
        "A checkpoint takes 260.0 ms and is saved every 1.00 steps.",
        "ModelCheckpoint(every_n_train_steps=1).",
    ]


def test_rare_checkpoints():
    evidence = evidence_of(
        {"checkpoint": 400, "forward": 100_000},
        hooks_us={"checkpoint": 400},
        loop=loop_record(spans={"checkpoint": ("checkpoint", 1)}),
    )
    assert checkpoint(evidence) is None


def test_checkpoints_outside_the_window_lose_a_step_of_queued_work():
    # 530 ms every tenth step, which is not in the window: a device may have had a step of 26.5 ms queued.
    found = checkpoint(
        evidence_of(
            {"checkpoint": 10_000, "forward": 16_500},
            hooks_us={"checkpoint": 10_000},
            loop=loop_record(spans={"checkpoint": ("checkpoint", 100)}),
            window=seen({EMA: 1_000}, {}),
            devices=GPU,
        )
    )
    lost = 10_000 - 2_650
    every = 500  # 73.5 ms each at 1 % of 19.15 ms: 384
    assert found.saving_us_per_step == pytest.approx(lost * (1 - 10 / every))


def test_validation_every_few_batches():
    # 22 ms every fifth step of 5.2 ms: at every 50th step it is below a tenth.
    found = validation(
        evidence_of(
            {"validation": 4_400, "forward": 5_200},
            hooks_us={"validation/forward": 3_000, "validation": 1_400},
            loop=loop_record(spans={"validation": ("validation", 200), "validation/forward": ("validation", 2_000)}),
        )
    )
    assert found.title == "Validation takes 46 % of a step."
    assert found.saving_us_per_step == pytest.approx(3_960 + 0.05 * 5_640)
    assert found.action.startswith("Trainer(val_check_interval=50, check_val_every_n_epoch=None)")
    assert found.evidence == ["A validation takes 22.0 ms and is run every 5.00 steps."]


def test_validation_of_short_epochs_is_given_in_epochs():
    found = validation(
        evidence_of(
            {"validation": 4_400, "forward": 5_200},
            hooks_us={"validation": 4_400},
            loop=loop_record(spans={"validation": ("validation", 200)}),
            trainer={"batches_per_epoch": 20},
        )
    )
    assert found.action.startswith("Trainer(check_val_every_n_epoch=3, val_check_interval=1.0)")
    assert found.saving_us_per_step == pytest.approx(4_033.333 + 0.05 * 5_566.667)


def test_validation_below_a_tenth():
    evidence = evidence_of(
        {"validation": 500, "forward": 9_500},
        hooks_us={"validation": 500},
        loop=loop_record(spans={"validation": ("validation", 1)}),
    )
    assert validation(evidence) is None


def test_a_progress_bar():
    found = progress_bar(
        evidence_of(
            {"callbacks": 2_000, "forward": 8_000},
            hooks_us={
                "callbacks/RichProgressBar.on_train_batch_end": 1_900,
                "callbacks/RichProgressBar.on_train_batch_start": 100,
            },
        )
    )
    assert found.saving_us_per_step == pytest.approx(1.1 * 1_960)
    assert found.saving_range_us[1] == pytest.approx(1.1 * 1_960)
    assert found.action.startswith("Trainer(callbacks=[RichProgressBar(refresh_rate=50)])")


def test_a_progress_bar_of_the_users_own():
    evidence = evidence_of(
        {"callbacks": 2_000, "forward": 8_000},
        hooks_us={"callbacks/Dots.on_train_batch_end": 2_000},
        trainer={"progress_bar": "Dots"},
    )
    assert progress_bar(evidence).where == "Dots"
    assert hook(evidence) is None


def test_a_healthy_loop():
    evidence = evidence_of(
        {"callbacks": 50, "logging": 100, "forward": 20_000, "backward": 40_000, "optimizer": 5_000, "data": 50},
        hooks_us={
            "callbacks/EMA.on_train_batch_end": 30,
            "callbacks/TQDMProgressBar.on_train_batch_end": 20,
            "logging/self.log": 100,
            "other/gc": 10,
        },
        loop=loop_record(spans={"logging/self.log": ("logging", 2_000)}),
    )
    assert [one.rule for one in ranked(evidence, RULES) if one.saving_us_per_step is not None] == []
