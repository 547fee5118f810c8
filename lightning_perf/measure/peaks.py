"""What vendors say their devices can compute: dense peaks by device name, a sourced table.

Figures are for dense matrices (half of what NVIDIA prints "with sparsity") and, for tensor cores, accumulation in
float32. ``float32`` is what float32 matrix products reach without loss: on NVIDIA's devices that of the ordinary units,
on AMD's that of the matrix cores. ``tf32`` is what they reach when the lower precision is allowed. A type that a row
does not name has no such peak, or its vendor does not print one.

A device that torch sees is one row: of an MI250 or MI250X, whose two dies are two devices, half of the card.
"""

from __future__ import annotations

import re
from typing import Final

_TERA: Final = 1e12

_HOPPER_SXM: Final = {"float32": 67.0, "tf32": 494.5, "float16": 989.5, "bfloat16": 989.5, "float8": 1979.0}
_HOPPER_NVL: Final = {"float32": 60.0, "tf32": 417.5, "float16": 835.5, "bfloat16": 835.5, "float8": 1670.5}
_BLACKWELL: Final = {"float32": 75.0, "tf32": 1125.0, "float16": 2250.0, "bfloat16": 2250.0, "float8": 4500.0}
_GRACE_BLACKWELL: Final = {"float32": 80.0, "tf32": 1250.0, "float16": 2500.0, "bfloat16": 2500.0, "float8": 5000.0}
_AMPERE_SXM: Final = {"float32": 19.5, "tf32": 156.0, "float16": 312.0, "bfloat16": 312.0}
_MI300X: Final = {"float32": 163.4, "tf32": 653.7, "float16": 1307.4, "bfloat16": 1307.4, "float8": 2614.9}

_TERAFLOPS: Final[dict[str, dict[str, float]]] = {
    # NVIDIA Tesla T4 datasheet: 8.1 single, 65 mixed precision.
    "t4": {"float32": 8.1, "float16": 65.0},
    # NVIDIA V100 datasheet (volta-v100-datasheet-update): SXM2 15.7 and 125, PCIe 14 and 112, V100S 16.4 and 130. The
    # DGX Station has four at 500 tensor TFLOPS together (DGX Station datasheet).
    "v100 sxm2": {"float32": 15.7, "float16": 125.0},
    "v100 dgxs": {"float32": 15.7, "float16": 125.0},
    "v100 pcie": {"float32": 14.0, "float16": 112.0},
    "v100s pcie": {"float32": 16.4, "float16": 130.0},
    # NVIDIA A100 datasheet: the same for SXM and PCIe; PG509 is the SXM board.
    "a100 sxm4": _AMPERE_SXM,
    "a100 pcie": _AMPERE_SXM,
    "a100 pg509": _AMPERE_SXM,
    # NVIDIA A30, A10 and A40 datasheets print dense figures beside those with sparsity.
    "a30": {"float32": 10.3, "tf32": 82.0, "float16": 165.0, "bfloat16": 165.0},
    "a10": {"float32": 31.2, "tf32": 62.5, "float16": 125.0, "bfloat16": 125.0},
    "a40": {"float32": 37.4, "tf32": 74.8, "float16": 149.7, "bfloat16": 149.7},
    # NVIDIA L4 datasheet: 30.3 single; with sparsity 120, 242, 242 and 485.
    "l4": {"float32": 30.3, "tf32": 60.0, "float16": 121.0, "bfloat16": 121.0, "float8": 242.5},
    # NVIDIA L40 and L40S datasheets print dense figures beside those with sparsity.
    "l40": {"float32": 90.5, "tf32": 90.5, "float16": 181.05, "bfloat16": 181.05, "float8": 362.0},
    "l40s": {"float32": 91.6, "tf32": 183.0, "float16": 362.05, "bfloat16": 362.05, "float8": 733.0},
    # NVIDIA H100 datasheet. With sparsity, SXM: 989, 1979, 3958; PCIe: 756, 1513, 3026; NVL: 835, 1671, 3341. torch
    # calls the SXM board by its memory, HBM3.
    "h100 hbm3": _HOPPER_SXM,
    "h100 sxm5": _HOPPER_SXM,
    "h100 pcie": {"float32": 51.0, "tf32": 378.0, "float16": 756.5, "bfloat16": 756.5, "float8": 1513.0},
    "h100 nvl": _HOPPER_NVL,
    # NVIDIA H200 datasheet: SXM and NVL compute as the H100's do.
    "h200": _HOPPER_SXM,
    "h200 nvl": _HOPPER_NVL,
    # NVIDIA HGX platform page, eight B200 or B300 with sparsity: 600 single, 18, 36 and 72 PFLOPS. The Blackwell
    # datasheet prints 75, 2200, 4500 and 9000 for one; its first edition had 80 single.
    "b200": _BLACKWELL,
    "b300 sxm6 ac": _BLACKWELL,
    # NVIDIA GB200 NVL72 page, superchip of two with sparsity: 160 single, 5, 10 and 20 PFLOPS. NVIDIA GB300 NVL72 page,
    # 72 with sparsity: 6 single, 180, 360 and 720 PFLOPS.
    "gb200": _GRACE_BLACKWELL,
    "gb300": _GRACE_BLACKWELL,
    # NVIDIA GA102, Ada and RTX Blackwell white papers: tensor figures with float32 accumulation, without sparsity.
    "rtx a6000": {"float32": 38.7, "tf32": 77.4, "float16": 154.8, "bfloat16": 154.8},
    "rtx 3090": {"float32": 35.6, "tf32": 35.6, "float16": 71.0, "bfloat16": 71.0},
    "rtx 4090": {"float32": 82.6, "tf32": 82.6, "float16": 165.2, "bfloat16": 165.2, "float8": 330.3},
    "rtx 5090": {"float32": 104.8, "tf32": 104.8, "float16": 209.5, "bfloat16": 209.5, "float8": 419.0},
    # AMD Instinct MI200 series datasheets, matrix: cards of 95.7 and 383.0 (MI250X), 90.5 and 362.1 (MI250); MI210.
    "mi250x": {"float32": 47.85, "float16": 191.5, "bfloat16": 191.5},
    "mi250": {"float32": 45.25, "float16": 181.05, "bfloat16": 181.05},
    "mi210": {"float32": 45.3, "float16": 181.0, "bfloat16": 181.0},
    # AMD Instinct MI300X, MI300A and MI325X datasheets. VF is a virtual function of a whole device.
    "mi300x": _MI300X,
    "mi325x": _MI300X,
    "mi300a": {"float32": 122.6, "tf32": 490.3, "float16": 980.6, "bfloat16": 980.6, "float8": 1961.2},
}

_IGNORED: Final = re.compile(r"nvidia|tesla|geforce|amd|instinct|vf|hbm2e?|hbm3e|\d{3}|(?:16|24|32|40|80|94|141)gb")
"""Words that change no figure: vendor, family, memory, a board's revision. Any other word makes it another device."""

_ROWS: Final = {frozenset(words.split()): row for words, row in _TERAFLOPS.items()}


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Dense peak of a device, floating point operations per second.

    Args:
        device_name: as torch gives it, such as ``NVIDIA H100 80GB HBM3``. All of its words must fit: an RTX 4090 Laptop
            is not an RTX 4090, a part of an A100 (MIG) not an A100.
        dtype: ``float32``, ``tf32``, ``float16``, ``bfloat16`` or ``float8``.

    Returns:
        None for a device or a type that is not in the table.

    Example:
        >>> peak_flops("NVIDIA L40S", "bfloat16")
        362050000000000.0
    """
    return peaks_of(device_name).get(dtype)


def peaks_of(device_name: str) -> dict[str, float]:
    """Dense peaks of a device by type, floating point operations per second; empty for one that is not known."""
    words = re.findall(r"[a-z0-9]+", device_name.lower())
    row = _ROWS.get(frozenset(word for word in words if not _IGNORED.fullmatch(word)), {})
    return {dtype: float(round(value * _TERA)) for dtype, value in row.items()}
