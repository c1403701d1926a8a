"""Which operations run in which precision: torch's autocast on CUDA and on the CPU, and Apex's O1.

Names are those of Python functions: ``softmax`` stands for ``torch.softmax``, ``torch.nn.functional.softmax`` and
``Tensor.softmax``. Sources: ``aten/src/ATen/autocast_mode.h`` of torch 2.13 for the first two, with the Python
functions that are made of listed operations; ``apex/amp/lists`` of Apex at e13873de for the third.
"""

from __future__ import annotations

from collections.abc import Set

import torch

LIKE_CUDA = ("cuda", "xpu")
"""The device types whose autocast has CUDA's table."""

_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
_PRODUCTS = {"addbmm", "addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "prelu"}
_RECURRENT = {"gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell"}
_LOSSES = {
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
}

CPU_HALF: Set[str] = frozenset(_CONVOLUTIONS | _PRODUCTS | {"linalg.vecdot", "scaled_dot_product_attention"})
"""What torch's autocast itself runs in half on the CPU."""

CPU_BFLOAT16: Set[str] = frozenset({"lstm"})
"""What torch's autocast runs in bfloat16 on the CPU. In float16 its kernel does not exist everywhere."""

CUDA_HALF: Set[str] = CPU_HALF | _RECURRENT | {"addmv", "addr", "chain_matmul", "einsum", "linalg.multi_dot", "mv"}
"""What torch's autocast itself runs in half on CUDA."""


def half_by_autocast(kind: str, dtype: torch.dtype) -> Set[str]:
    """What torch's autocast itself runs in ``dtype`` on a kind of device."""
    if kind in LIKE_CUDA:
        return CUDA_HALF
    return CPU_HALF | (CPU_BFLOAT16 if dtype is torch.bfloat16 else frozenset())


CUDA_FLOAT: Set[str] = frozenset(
    _LOSSES
    | {"acos", "arccos", "arcsin", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2"}
    | {"pow", "reciprocal", "rsqrt", "sinh", "square", "tan"}
    | {"cumprod", "cumsum", "cumulative_trapezoid", "logsumexp", "prod", "sum", "sum_to_size", "trapezoid", "trapz"}
    | {"cdist", "cosine_similarity", "dist", "frobenius_norm", "norm", "nuclear_norm", "pairwise_distance", "pdist"}
    | {"linalg.matrix_norm", "linalg.norm", "linalg.vector_norm", "renorm"}
    | {"log_softmax", "softmax", "softmin", "softplus"}
    | {"group_norm", "layer_norm", "native_layer_norm", "rms_norm"}
    | {"huber_loss"}
    | {"special.erfinv", "special.expm1", "special.log1p", "special.log_softmax"}
    | {"special.logsumexp", "special.softmax"}
)
"""What runs in float32 on CUDA, unless the call says a dtype."""

CUDA_INTERPOLATE: Set[str] = frozenset({"interpolate"})
"""What runs in float32 on CUDA except for the mode ``area``, which is a pooling."""

CUDA_PROMOTE: Set[str] = frozenset(
    {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sample", "grid_sampler", "index_put"}
    | {"scatter_add", "tensordot", "vdot"}
)
"""What runs in the widest type among its tensors on CUDA."""

CUDA_REFUSED: Set[str] = frozenset({"binary_cross_entropy"})
"""What raises on CUDA, whatever its tensors' types."""

CPU_WIDENED: Set[str] = frozenset(
    {"adaptive_avg_pool3d", "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "avg_pool3d", "max_pool3d"}
    | {"fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d"}
    | {"fractional_max_pool3d_with_indices", "max_pool3d_with_indices", "max_unpool1d", "max_unpool2d"}
    | {"max_unpool3d", "pad", "trace"}
)
"""What the CPU's autocast turns into float32 and CUDA's leaves in half, where half kernels exist.

Fourier transforms, decompositions, ``ctc_loss`` and ``quantile`` are left in float32 on the CPU: CUDA has no half
kernels for them, or not for every half type.
"""

APEX_HALF: Set[str] = frozenset(
    _CONVOLUTIONS | _RECURRENT | _PRODUCTS | {"addmv", "addr", "mv"},
)
"""Apex's O1: what runs in half."""

APEX_FLOAT: Set[str] = frozenset(
    _LOSSES
    | {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "pow", "reciprocal", "rsqrt"}
    | {"sinh", "tan", "cumprod", "cumsum", "dist", "norm", "prod", "renorm", "std", "sum", "var"}
    | {"cosine_similarity", "gelu", "grid_sample", "group_norm", "interpolate", "layer_norm", "local_response_norm"}
    | {"log_softmax", "normalize", "softmax", "softmin", "softplus", "ctc_loss", "multilabel_soft_margin_loss", "cpu"}
)
"""Apex's O1: what runs in float32. Their in-place forms raise on half tensors."""

APEX_PROMOTE: Set[str] = frozenset(
    {"add", "addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "div", "dot", "eq", "equal", "ge", "gt", "le"}
    | {"lt", "mul", "ne", "stack", "sub"}
)
"""Apex's O1: what runs in the widest type among its tensors, 0-dimensional ones included."""

APEX_REFUSED: Set[str] = frozenset({"binary_cross_entropy"})
"""Apex's O1: what raises on half tensors."""
