"""Efficiency of small traces, written out beside them, and of real ones against torch-tb-profiler's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.analysis import Efficiency
from lightning_perf.measure.efficiency import uses_tensor_cores
from lightning_perf.measure.peaks import peak_flops
from lightning_perf.measure.window import measure_trace
from tests.traces import TraceBuilder

TRACES = Path(__file__).parents[2] / "../shared/traces"
PEERS = TRACES.parent / "peers.json"

BLOCKS, OCCUPANCY = "blocks per SM", "est. achieved occupancy %"


def efficiency(trace: TraceBuilder, folder: Path) -> Efficiency:
    (found,) = measure_trace(trace.trace(folder)).efficiency
    return found


def stepped(end: int = 1000) -> TraceBuilder:
    return TraceBuilder().step(1, 0, end).op("aten::mm", 0, 10)


# Kernels as (start, end, blocks per SM, occupancy in percent); the step lasts 1000.
CASES: dict[str, tuple[list[tuple], tuple[float | None, float | None]]] = {
    "one block on every multiprocessor": ([(0, 500, 1.0, 50)], (0.5, 0.5)),
    "many blocks are no more than all": ([(0, 500, 47.5, 100)], (0.5, 1.0)),
    "half of them": ([(0, 500, 0.5, 10)], (0.25, 0.1)),
    "at once they add up": ([(0, 400, 0.25, 10), (100, 300, 0.5, 30)], ((200 * 0.25 + 200 * 0.75) / 1000, 10 / 60)),
    "to all of them at most": ([(0, 400, 0.75, 10), (0, 400, 0.75, 30)], (0.4, 0.2)),
    "one after the other they do not": ([(0, 100, 0.75, 10), (100, 200, 0.75, 10)], (0.15, 0.1)),
    "only what lies in the window": ([(-500, 100, 1.0, 20), (900, 1900, 1.0, 60)], (0.2, 0.4)),
    "no blocks": ([(0, 100, 0, 0)], (None, 0.0)),
    "negative figures": ([(0, 100, -3, -1)], (None, None)),
    "text": ([(0, 100, "0.5", "20")], (0.05, 0.2)),
    "no numbers": ([(0, 100, "N/A", None)], (None, None)),
    "none of it": ([(0, 100, None, None)], (None, None)),
    "some kernels tell": ([(0, 100, 1.0, 40), (200, 300, None, None)], (0.1, 0.4)),
}


@pytest.mark.parametrize("case", CASES)
def test_multiprocessors(tmp_path, case):
    kernels, (sm_efficiency, occupancy) = CASES[case]
    trace = stepped()
    for start, end, blocks, percent in kernels:
        trace.kernel(start, end, **{BLOCKS: blocks, OCCUPANCY: percent})
    found = efficiency(trace, tmp_path)
    assert found.sm_efficiency == (None if sm_efficiency is None else pytest.approx(sm_efficiency))
    assert found.occupancy == (None if occupancy is None else pytest.approx(occupancy))


def test_numbers_that_kept_their_text(tmp_path):
    """Old times have more digits than a float64 holds: the file is then decoded with all numbers as text."""
    trace = TraceBuilder("epoch_ns").step(1, 0, 1000).op("aten::mm", 0, 10)
    found = efficiency(trace.kernel(0, 500, **{BLOCKS: 0.5925926, OCCUPANCY: 12.5}), tmp_path)
    assert (found.sm_efficiency, found.occupancy) == (pytest.approx(0.2962963), 0.125)


def test_tensor_core_time(tmp_path):
    told = {BLOCKS: 1.0, OCCUPANCY: 10}
    trace = stepped().kernel(0, 300, name="nvjet_hsh_128x256_64x4", **told).kernel(300, 400, name="add", **told)
    assert efficiency(trace, tmp_path).tensor_core_ratio == 0.75


def test_other_vendors_do_not_tell(tmp_path):
    found = efficiency(stepped().kernel(0, 300, name="Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1"), tmp_path)
    assert found == Efficiency(device="0", sm_efficiency=None, occupancy=None, tensor_core_ratio=None)


def test_copies_are_no_kernels(tmp_path):
    assert measure_trace(stepped().kernel(0, 9, cat="gpu_memcpy").trace(tmp_path)).efficiency == []


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(...)", True),
        (
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_g1_tensor16x8x8_t1r3s3",
            True,
        ),
        ("sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize64x64x8_g1_ffma_t1r3s3", False),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_cublas", True),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(...)", True),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", True),
        ("cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32_void_bf16", True),
        ("cutlass3x_sm100_gemm_f8_f8_f32", True),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>", True),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", True),
        ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true>", False),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(...)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm70(...)", False),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", True),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", False),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", True),
        ("ampere_sgemm_32x32_sliced1x4_tn", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(...)", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", False),
        ("triton_poi_fused_add_relu_0", False),
    ],
)
def test_tensor_cores_by_name(name, uses):
    assert uses_tensor_cores(name) == uses


@pytest.mark.parametrize(
    ("device", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA H200", "float8", 1979.0),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("NVIDIA A100 80GB PCIe", "float32", 19.5),
        ("NVIDIA A100-PG509-200", "float16", 312.0),
        ("NVIDIA B200", "bfloat16", 2250.0),
        ("NVIDIA B200", "float32", 75.0),
        ("NVIDIA B300 SXM6 AC", "float8", 4500.0),
        ("NVIDIA GB200", "tf32", 1250.0),
        ("NVIDIA GB300", "bfloat16", 2500.0),
        ("NVIDIA RTX A6000", "float16", 154.8),
        ("NVIDIA A40", "tf32", 74.8),
        ("NVIDIA GeForce RTX 5090", "float16", 209.5),
        ("AMD Instinct MI250X", "float32", 47.85),
        ("AMD Instinct MI325X", "float8", 2614.9),
        ("Tesla V100-SXM2-16GB", "float16", 125.0),
        ("Tesla V100-PCIE-32GB", "float16", 112.0),
        ("Tesla V100-DGXS-32GB", "float32", 15.7),
        ("Tesla T4", "float16", 65.0),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA L40", "bfloat16", 181.05),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("AMD Instinct MI250X", "bfloat16", 191.5),
        ("AMD Instinct MI300X VF", "bfloat16", 1307.4),
        # A type that the device has not, and devices that share words with others.
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("Tesla T4", "tf32", None),
        ("Tesla V100-FHHL-16GB", "float16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090 D", "bfloat16", None),
        ("NVIDIA A10G", "bfloat16", None),
        ("AMD Radeon Graphics", "bfloat16", None),
        ("NVIDIA", "bfloat16", None),
        ("", "bfloat16", None),
    ],
)
def test_peaks(device, dtype, teraflops):
    assert peak_flops(device, dtype) == (None if teraflops is None else pytest.approx(teraflops * 1e12))


@pytest.mark.skipif(not PEERS.exists(), reason=f"{PEERS} is not there: real traces are not part of the project")
@pytest.mark.parametrize("name", ["v100_resnet50_workers0", "v100_resnet50_workers4"])
def test_agrees_with_torch_tb_profiler(name):
    theirs = json.loads(PEERS.read_text())["torch_tb_profiler"][f"{name}.pt.trace.json.gz"]
    (ours,) = measure_trace(read_trace(TRACES / f"{name}.pt.trace.json.gz")).efficiency
    assert ours.sm_efficiency == pytest.approx(theirs["sm_efficiency"], abs=0.0001)
    assert ours.occupancy == pytest.approx(theirs["occupancy_pct"] / 100, abs=0.0001)
    assert ours.tensor_core_ratio == 0.0  # float32 on a V100
