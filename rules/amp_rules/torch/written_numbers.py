"""What becomes of a number of Python that an operation writes into a half tensor which cannot hold it.

Torch checks a number where a kernel converts it to the type of the tensor (``Scalar::to``, which raises "value cannot
be converted to type at::Half without overflow"), and does not where the number is a C++ ``double`` that is cast, or is
computed with in float32 (``opmath_type``). Which of them a kernel does differs between devices. What is said of the CPU
was run with torch 2.13; what is said of CUDA was read in PyTorch's sources, where the column ``seen`` says.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["raises", "inf", "bound"]
"""``raises``; ``inf``: the number becomes infinite without a word; ``bound``: it is a bound that is compared in
float32, so that it raises nothing, and changes nothing where no half number lies beyond it."""


class Written(NamedTuple):
    """What becomes of a number.

    Attributes:
        cpu: on the CPU.
        cuda: on CUDA.
        seen: where that stands in PyTorch's sources, below ``aten/src/ATen``.
    """

    cpu: Outcome
    cuda: Outcome
    seen: str


_FILL = Written("raises", "raises", "native/cuda/FillKernel.cu: value.to<scalar_t>()")
_CLAMP = Written("raises", "bound", "native/cuda/TensorCompare.cu, launch_clamp_scalar: lim0.to<opmath_t>()")
_WRAPPED = Written("inf", "inf", "native/TensorCompare.cpp: where wraps a number as a tensor, and converts that")
_MADE = Written("inf", "inf", "../../../torch/csrc/utils/tensor_new.cpp: numbers are cast one by one, on the CPU")

WRITTEN = {
    "fill": _FILL,
    "fill_diagonal": _FILL,
    "full": _FILL,
    "full_like": _FILL,
    "new_full": _FILL,
    "pad": Written("raises", "raises", "native/PadNd.cpp: constant_pad_nd fills; see fill"),
    "masked_fill": Written("raises", "raises", "native/cuda/Indexing.cu, masked_fill_kernel: value.to<scalar_t>()"),
    "index_fill": Written("raises", "raises", "native/cuda/IndexKernel.cu, index_fill_kernel: source.to<scalar_t>()"),
    "scatter": Written("raises", "raises", "native/cuda/ScatterGatherKernel.cu: src.to<scalar_t>()"),
    "threshold": Written("raises", "raises", "native/cuda/ActivationThresholdKernel.cu: value.to<scalar_t>()"),
    "clamp": _CLAMP,
    "clamp_min": _CLAMP,
    "clamp_max": _CLAMP,
    "hardtanh": Written("raises", "bound", "native/Activation.cpp: hardtanh_out calls clamp_out; see clamp"),
    "where": _WRAPPED,
    "setitem": Written(
        "inf", "inf", "ScalarOps.cpp, fill_inplace, on the CPU for CUDA too; releases before that was relaxed raise"
    ),
    "nan_to_num": Written("inf", "inf", "native/cuda/UnaryOpsKernel.cu: static_cast<scalar_t>(pos_inf.value())"),
    "tensor": _MADE,
    "as_tensor": _MADE,
    "new_tensor": _MADE,
}
"""By the linter's name of the operation."""
