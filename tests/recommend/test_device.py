"""Rules about number formats, layout and the choice of algorithm."""

from __future__ import annotations

import pytest

from lightning_perf.measure.analysis import Arithmetic
from lightning_perf.recommend.device import amp, cudnn_benchmark, dims_alignment, float64, fp32_gemm, layout
from tests.recommend.cases import evidence_of, window_of
from tests.recommend.tracing import efficiency, kernel, operator, quality, ran, replay, steps, traced

IDLE = {("device_gap", "forward"): 200.0}
"""Leaves 800 us of 1 ms busy."""
LAUNCH_BOUND = {("launch", "forward"): 200.0}
SGEMM = kernel("ampere_sgemm_128x64_tn", 0.5)
TENSOR = kernel("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_nn", 0.5)
A100 = [efficiency("tf32", "float16", "bfloat16")]
V100 = [efficiency("float16")]
CONVOLUTION = operator("aten::cudnn_convolution", 3, 400.0, self_device_us=300.0)
OTHER = operator("aten::add", 3, 600.0, self_device_us=300.0)


def test_products_in_full_float32():
    found = fp32_gemm(traced(IDLE, kernels=[SGEMM, TENSOR], efficiency=A100))
    assert found is not None
    assert found.rule == "gpu.fp32_gemm"
    assert found.saving_us_per_step == pytest.approx(200)  # half of the 400 us in sgemm
    assert found.saving_range_us == pytest.approx((100, 350))  # at most eight times as fast


@pytest.mark.parametrize(
    "evidence",
    [
        traced(IDLE, kernels=[TENSOR], efficiency=A100),
        traced(IDLE, kernels=[SGEMM], efficiency=V100),  # has no TF32
        traced(LAUNCH_BOUND, kernels=[SGEMM], efficiency=A100),
        ran(IDLE, of_window={"kernels": [SGEMM], "efficiency": A100}, flags={"float32_matmul_precision": "high"}),
    ],
)
def test_no_tf32(evidence):
    assert fp32_gemm(evidence) is None


@pytest.mark.parametrize(("device", "precision"), [(A100, "bf16-mixed"), (V100, "16-mixed")])
def test_mixed_precision(device, precision):
    found = amp(traced(IDLE, kernels=[SGEMM, TENSOR], efficiency=device))
    assert found.rule == "gpu.amp"
    assert found.action == f'Trainer(precision="{precision}")'
    assert found.saving_us_per_step == pytest.approx(200)
    assert found.saving_range_us == pytest.approx((100, 300))


def test_mixed_precision_by_a_replay():
    evidence = traced(IDLE, kernels=[SGEMM], efficiency=V100, replay=replay(mixed_precision=120.0))
    assert amp(evidence).saving_us_per_step == pytest.approx(120)


@pytest.mark.parametrize(
    "evidence",
    [
        traced(IDLE, kernels=[TENSOR], efficiency=A100),
        traced(IDLE, kernels=[kernel("volta_sgemm_32x128_tn", 0.19)], efficiency=V100),
        traced(IDLE, kernels=[SGEMM], efficiency=[efficiency()]),  # an unknown device, or one without
        traced(LAUNCH_BOUND, kernels=[SGEMM], efficiency=A100),
        traced(IDLE, kernels=[SGEMM], efficiency=A100, quality=quality("launches_without_kernel")),
        ran(IDLE, of_window={"kernels": [SGEMM], "efficiency": A100}, trainer={"precision": "bf16-mixed"}),
    ],
)
def test_no_mixed_precision(evidence):
    assert amp(evidence) is None


def test_float64_on_a_cpu():
    trainer = {"precision": "64-true"}
    found = float64(evidence_of({"data": 200, "forward": 300, "backward": 500}, trainer=trainer))
    assert found.rule == "gpu.float64"
    assert found.saving_us_per_step == pytest.approx(400)
    assert found.saving_range_us == pytest.approx((160, 480))
    assert float64(evidence_of({"forward": 300})) is None


def test_float64_on_a_device():
    found = float64(traced(IDLE, kernels=[kernel("volta_dgemm_128x64_nn", 0.5)]))
    assert found.saving_us_per_step == pytest.approx(200)  # half of half of 800
    assert float64(traced(IDLE, kernels=[kernel("volta_dgemm_128x64_nn", 0.04)])) is None


def arithmetic(dtype: str) -> list:
    figures = Arithmetic(
        flops=1, flops_per_step=None, achieved_flops_per_s=None, mfu=None, flops_dtype=dtype, uncounted_calls=0
    )
    return [efficiency("float16", arithmetic=figures)]


def test_dimensions_that_are_no_multiples_of_8():
    odd = operator("aten::mm", 2, 1.0, self_device_us=300.0, shapes="[[64, 127], [127, 256]]")
    even = operator("aten::mm", 2, 1.0, self_device_us=300.0, shapes="[[64, 128], [128, 256]]")
    found = dims_alignment(traced(IDLE, operators=[odd, even], efficiency=arithmetic("bfloat16")))
    assert found.rule == "gpu.dims_alignment"
    assert found.saving_us_per_step == pytest.approx(90)
    assert "127" in found.evidence[0]
    assert dims_alignment(traced(IDLE, operators=[even], efficiency=arithmetic("float16"))) is None
    assert dims_alignment(traced(IDLE, operators=[odd], efficiency=arithmetic("float32"))) is None
    damaged = operator("aten::mm", 2, 1.0, shapes="[[64,")
    assert dims_alignment(traced(IDLE, operators=[damaged], efficiency=arithmetic("float16"))) is None


def test_algorithms_that_were_not_tried():
    found = cudnn_benchmark(ran(IDLE, of_window={"operators": [CONVOLUTION, OTHER]}))
    assert found.rule == "gpu.cudnn_benchmark"
    assert found.saving_us_per_step == pytest.approx(20)  # a twentieth of half of 800
    assert found.confidence == "low"


@pytest.mark.parametrize("flags", [{"cudnn_benchmark": True}, {"cudnn_deterministic": True}])
def test_algorithms_are_chosen(flags):
    assert cudnn_benchmark(ran(IDLE, of_window={"operators": [CONVOLUTION]}, flags=flags)) is None


def test_few_convolutions():
    few = operator("aten::cudnn_convolution", 3, 1.0, self_device_us=70.0)
    assert cudnn_benchmark(ran(IDLE, of_window={"operators": [few, OTHER]})) is None


def test_layout_of_a_device():
    turning = kernel("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", 0.25)
    found = layout(traced(IDLE, kernels=[turning]))
    assert found.rule == "gpu.layout"
    assert found.saving_us_per_step == pytest.approx(160)  # 0.8 of 200
    assert layout(traced(IDLE, kernels=[kernel("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", 0.5)])) is None


def test_layout_of_a_cpu():
    one = window_of(operators=[CONVOLUTION, OTHER], steps=steps(1_000.0))
    found = layout(evidence_of({"forward": 1_000}, window=one, flags={"channels_last": False}))
    assert found.saving_us_per_step == pytest.approx(400 / 6)
    assert layout(evidence_of({"forward": 1_000}, window=one, flags={"channels_last": True})) is None
    assert layout(evidence_of({"forward": 2_000}, window=one, flags={"channels_last": False})) is None  # 20 %
