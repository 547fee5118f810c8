"""Rules about a device that works, but could do the same work faster: number formats, layout, the choice of algorithm.

None of them speaks where the device waits for the host to dispatch: faster kernels would only make it wait longer.
"""

from __future__ import annotations

import json
from typing import Final

from lightning_perf import units
from lightning_perf.measure.analysis import Efficiency
from lightning_perf.measure.finding import Finding
from lightning_perf.recommend.evidence import Evidence
from lightning_perf.recommend.findings import finding
from lightning_perf.recommend.host import launch_bound_too_much
from lightning_perf.recommend.kernel_names import CONVOLUTION, DOUBLE, FLOAT32_GEMM, LAYOUT, PRODUCT, WIDE_PRODUCT
from lightning_perf.recommend.predict import Saving
from lightning_perf.recommend.quality import trusted_window
from lightning_perf.recommend.traced import busy_us, device_share, kernel_share, loop_us, predicted, recorded

PRODUCTS_RATIO: Final = 0.2
"""Share of the device's busy time in float32 products and convolutions from which on mixed precision is advised."""

CONVOLUTIONS_RATIO: Final = 0.2
"""Share of device time in convolutions from which on the choice of their algorithm is worth trying out."""

LAYOUT_RATIO: Final = 0.05
"""Share of busy time in kernels that only change the layout; TraceLens begins at 10 % of convolutions."""

DOUBLE_RATIO: Final = 0.05
"""Share of busy time in float64 kernels from which on they are no accident of a loss or a metric."""

CPU_CONVOLUTIONS_RATIO: Final = 0.3
"""The same share of a step on a CPU from which on channels_last is advised."""


def fp32_gemm(evidence: Evidence) -> Finding | None:
    """Matrix products run in full float32 on a device that has TF32 (NVIDIA from Ampere on).

    With a run: ``float32_matmul_precision`` is ``highest``. Twice as fast is assumed, of the device's eight times.
    """
    figures = _ready(evidence)
    if figures is None or not {"tf32", "float32"} <= set(figures.peak_flops):
        return None
    if evidence.run is not None and evidence.run.flags.float32_matmul_precision not in (None, "highest"):
        return None
    share = kernel_share(evidence, FLOAT32_GEMM)
    if not share:
        return None
    spent = share * busy_us(evidence)
    faster = figures.peak_flops["tf32"] / figures.peak_flops["float32"]
    closed = Saving(spent / 2, 0.25 * spent, spent * (1 - 1 / faster), "the products become twice as fast as TF32")
    return finding(
        evidence,
        "gpu.fp32_gemm",
        f"Matrix products in full float32 take {units.percent(spent / evidence.step_us)} of {evidence.per}.",
        saves=predicted(evidence, "tf32", closed, dispatch=False),
        because=[f"Kernels such as sgemm hold {units.percent(share)} of busy time and use no tensor cores."],
        action='torch.set_float32_matmul_precision("high")',
        risks=["TF32 keeps 10 bits of the mantissa: check that the loss goes down as before."],
        from_trace=True,
    )


def amp(evidence: Evidence) -> Finding | None:
    """Products and convolutions in 32 bit hold 20 % or more of busy time on a device with tensor cores for 16.

    Twice as fast is assumed: what memory allows, and less than the units do.
    """
    figures = _ready(evidence)
    if figures is None or not {"float16", "bfloat16"} & set(figures.peak_flops):
        return None
    trainer = evidence.run.trainer if evidence.run is not None else None
    if trainer is not None and trainer.precision not in ("32-true", "64-true"):
        return None
    share = kernel_share(evidence, WIDE_PRODUCT)
    if share < PRODUCTS_RATIO:
        return None
    spent = share * busy_us(evidence)
    closed = Saving(
        spent / 2, 0.25 * spent, 0.75 * spent, "products and convolutions become twice as fast, casts are free"
    )
    precision = "bf16-mixed" if "bfloat16" in figures.peak_flops else "16-mixed"
    return finding(
        evidence,
        "gpu.amp",
        f"Products and convolutions in 32 bit take {units.percent(spent / evidence.step_us)} of {evidence.per}; "
        f"the device is made for 16 bit.",
        saves=predicted(evidence, "mixed_precision", closed, dispatch=False),
        because=[
            f"{units.percent(share)} of busy time is in float32 kernels.",
            f"Tensor cores were used for {units.percent(figures.tensor_core_ratio)} of kernel time.",
        ],
        action=f'Trainer(precision="{precision}")',
        risks=["Watch the loss: 16 bit numbers lose precision; float16 needs the gradient scaler that Lightning adds."],
        from_trace=True,
    )


def float64(evidence: Evidence) -> Finding | None:
    """Computing in float64, by the trainer's precision or by kernels that hold 5 % of busy time.

    Numbers of half the size take half the time where memory or vector units bound; consumer devices gain far more.
    """
    trainer = evidence.run.trainer if evidence.run is not None else None
    doubled = trainer is not None and trainer.precision in ("64-true", "64")
    share = kernel_share(evidence, DOUBLE)
    if evidence.device is None:
        spent = sum(evidence.phases_us.get(phase, 0.0) for phase in ("forward", "backward", "optimizer"))
        if not doubled or not spent:
            return None
        because = ['precision="64-true": vector units take half as many numbers at once, and memory twice the time.']
    else:
        spent = share * busy_us(evidence)
        if _ready(evidence) is None or share < DOUBLE_RATIO:
            return None
        because = [f"Kernels in double precision hold {units.percent(share)} of the device's busy time."]
    return finding(
        evidence,
        "gpu.float64",
        f"Computing in 64 bit takes {units.percent(spent / evidence.step_us)} of {evidence.per}.",
        saves=Saving(0.5 * spent, 0.2 * spent, 0.6 * spent, "32 bit numbers take 0.4 to 0.8 of the time"),
        because=because,
        action='Trainer(precision="32-true")' if doubled else "Create tensors as float32: NumPy's default is float64.",
        risks=["Some problems (differential equations, ill-conditioned matrices) need 64 bit."],
        from_trace=not doubled,
    )


def dims_alignment(evidence: Evidence) -> Finding | None:
    """Products in 16 bit of which a dimension is no multiple of 8, where shapes tell (operators grouped by shape)."""
    figures = _ready(evidence)
    arithmetic = figures.arithmetic if figures is not None else None
    if figures is None or arithmetic is None or arithmetic.flops_dtype not in ("float16", "bfloat16"):
        return None
    rows = [
        row
        for row in (evidence.window.operators if evidence.window is not None else [])
        if row.name in ("aten::mm", "aten::addmm", "aten::bmm") and row.shapes is not None
        if any(size % 8 for size in _matrix_sizes(row.shapes))
    ]
    if not rows:
        return None
    spent = sum(row.self_device_us or 0.0 for row in rows) / recorded(evidence)
    worst = max(rows, key=lambda row: row.self_device_us or 0.0)
    return finding(
        evidence,
        "gpu.dims_alignment",
        f"Matrix products with sizes that are no multiples of 8 take {units.percent(spent / evidence.step_us)} of "
        f"{evidence.per}.",
        saves=Saving(0.3 * spent, 0.0, 0.5 * spent, "aligned products are up to twice as fast"),
        because=[f"{worst.name} of {worst.shapes}: 16 bit rows that do not begin at multiples of 16 bytes."],
        action="Pad vocabularies, channels and hidden sizes to multiples of 8 (64 is better).",
        confidence="low",
        where=worst.call_site,
        from_trace=True,
    )


def cudnn_benchmark(evidence: Evidence) -> Finding | None:
    """Convolutions hold 20 % of device time or more and cuDNN picks their algorithms by rules, without trying them.

    What trying brings depends on the shapes: 5 % of the convolutions' time is assumed, up to 20 %.
    """
    flags = evidence.run.flags if evidence.run is not None else None
    if flags is None or flags.cudnn_benchmark or flags.cudnn_deterministic or flags.deterministic_algorithms:
        return None
    share = device_share(evidence, CONVOLUTION)
    if _ready(evidence) is None or share < CONVOLUTIONS_RATIO:
        return None
    spent = share * busy_us(evidence)
    return finding(
        evidence,
        "gpu.cudnn_benchmark",
        f"Convolutions take {units.percent(spent / evidence.step_us)} of {evidence.per}, with untried algorithms.",
        saves=Saving(0.05 * spent, 0.0, 0.2 * spent, "the fastest algorithm saves a twentieth of the convolutions"),
        because=["torch.backends.cudnn.benchmark is off."],
        action="Trainer(benchmark=True)",
        risks=["Each new input shape is tried anew, which takes time; results may differ in the last digits."],
        confidence="low",
        from_trace=True,
    )


def layout(evidence: Evidence) -> Finding | None:
    """Convolutions want channels last: kernels that only change the layout hold 5 % of busy time or more.

    On a CPU: convolutions hold 30 % of the step, and no module is in channels_last. PyTorch reports 1.3 to 1.8 times
    the speed for float32 models on CPUs; a sixth of the convolutions' time is assumed.
    """
    if evidence.device is None:
        return _layout_on_cpu(evidence)
    share = kernel_share(evidence, LAYOUT)
    if _ready(evidence) is None or share < LAYOUT_RATIO:
        return None
    spent = share * busy_us(evidence)
    return finding(
        evidence,
        "gpu.layout",
        f"Turning tensors for convolutions takes {units.percent(spent / evidence.step_us)} of {evidence.per}.",
        saves=Saving(0.8 * spent, 0.5 * spent, spent, "tensors stay in channels_last from the input on"),
        because=[f"Kernels that only turn channels first into last, or back: {units.percent(share)} of busy time."],
        action="model.to(memory_format=torch.channels_last), and the same for the batch's images",
        risks=["Operators without a channels_last form turn tensors back; check that the kernels are gone."],
        from_trace=True,
    )


def _layout_on_cpu(evidence: Evidence) -> Finding | None:
    if evidence.run is None or evidence.run.flags.channels_last is not False or evidence.window is None:
        return None
    rows = [row for row in evidence.window.operators if CONVOLUTION.search(row.name) is not None]
    spent = sum(row.self_us for row in rows) / recorded(evidence)
    if spent < CPU_CONVOLUTIONS_RATIO * evidence.step_us:
        return None
    spent = min(spent, evidence.step_us)  # workers that compute, too, make operators wait for a processor
    return finding(
        evidence,
        "gpu.layout",
        "Convolutions run on images with channels first.",
        saves=Saving(spent / 6, 0.0, 0.4 * spent, "convolutions and what is around them gain a sixth"),
        because=[
            f"They take {units.percent(spent / evidence.step_us)} of {evidence.per}.",
            "No parameter of the model is in channels_last.",
        ],
        action="model.to(memory_format=torch.channels_last), and the same for the batch's images",
        risks=["What it brings depends on the processor and on what lies between convolutions: try it in a short run."],
        confidence="low",
        from_trace=True,
    )


def products_share(evidence: Evidence) -> float:
    """Share of the operators' time, on the device or else the host, in products, convolutions and attention."""
    if evidence.device is not None:
        return device_share(evidence, PRODUCT)
    rows = evidence.window.operators if evidence.window is not None else []
    total = loop_us(evidence, {"launch", "python", "optimizer"}) * recorded(evidence)
    return sum(row.self_us for row in rows if PRODUCT.search(row.name) is not None) / total if total else 0.0


def _ready(evidence: Evidence) -> Efficiency | None:
    """Figures of the device, if its trace can be trusted and faster kernels would shorten the step."""
    if trusted_window(evidence) is None or launch_bound_too_much(evidence):
        return None
    index = evidence.device.index if evidence.device is not None else ""
    found = evidence.window.efficiency if evidence.window is not None else []
    unknown = Efficiency(device=index, sm_efficiency=None, occupancy=None, tensor_core_ratio=None)
    return next((one for one in found if one.device == index), unknown)


def _matrix_sizes(shapes: str) -> list[int]:
    """Sizes of the matrices among some inputs, batches left out."""
    try:
        inputs = json.loads(shapes)
    except ValueError:
        return []
    matrices = [one for one in inputs if isinstance(one, list) and len(one) in (2, 3)]
    return [size for one in matrices for size in one[-2:] if isinstance(size, int)]
