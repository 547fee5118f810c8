"""What the name of a kernel or an operator tells about its work."""

from __future__ import annotations

import re
from typing import Final

LAYOUT: Final = re.compile(r"nchwToNhwc|nhwcToNchw|batched_transpose_\d+x\d+", re.IGNORECASE)
"""Kernels of cuDNN and MIOpen that only turn tensors from channels first to channels last, and back."""

DOUBLE: Final = re.compile(r"dgemm|f64f64|_f64_|d884|<double\b|\bdouble,|Cijk_\w+?_DB_")
"""Kernels that compute in float64, in the names of cuBLAS, CUTLASS, torch and Tensile."""

FLOAT32_GEMM: Final = re.compile(r"(?<!c)sgemm(?!.*(?:1688|tensorop))|simt_sgemm|gemm_f32f32_f32f32")
"""Products of matrices in full float32, in the names of cuBLAS and CUTLASS (convolutions are named scudnn)."""

WIDE_PRODUCT: Final = re.compile(
    r"sgemm|dgrad_engine|wgrad_alg|scudnn|implicit_convolve|winograd|s1688(?!.*(?:f16|bf16))|f32f32_f32"
    r"|Cijk_\w+?_SB_|convolve_common_engine|precomputed_convolve|fft2d",
    re.IGNORECASE,
)
"""Products of matrices and convolutions whose inputs are float32, also those that run as TF32."""

CONVOLUTION: Final = re.compile(r"^aten::.*conv|^(?:Cudnn|Miopen)?Convolution", re.IGNORECASE)
"""Operators that convolve, their backward pass included."""

PRODUCT: Final = re.compile(r"^aten::(?:.*conv.*|(?:add)?(?:mm|bmm|mv)|baddbmm|linear|matmul|.*attention.*)$|mkldnn")
"""Operators that mixed precision makes faster."""
