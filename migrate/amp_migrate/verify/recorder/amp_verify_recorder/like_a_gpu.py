"""What autocast for CUDA computes in float32 and autocast for the CPU leaves in half.

Softmax, norms, sums and losses. A script under plain autocast is to show what half precision does to it on the devices
that it is written for: a loss that is rounded to bfloat16 takes a training elsewhere by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Those of aten/src/ATen/autocast_mode.h for CUDA, by the names of the Python functions that are made of them.
FLOAT32 = frozenset(
    {"binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "hinge_embedding_loss", "kl_div"}
    | {"huber_loss", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss"}
    | {"nll_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss"}
    | {"acos", "arccos", "arcsin", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2"}
    | {"pow", "reciprocal", "rsqrt", "sinh", "square", "tan"}
    | {"cumprod", "cumsum", "cumulative_trapezoid", "logsumexp", "prod", "sum", "sum_to_size", "trapezoid", "trapz"}
    | {"cdist", "cosine_similarity", "dist", "frobenius_norm", "norm", "nuclear_norm", "pairwise_distance", "pdist"}
    | {"linalg_matrix_norm", "linalg_norm", "linalg_vector_norm", "renorm"}
    | {"log_softmax", "softmax", "softmin", "softplus", "group_norm", "layer_norm", "native_layer_norm", "rms_norm"}
    | {"special_erfinv", "special_expm1", "special_log1p", "special_log_softmax", "special_logsumexp"}
    | {"special_softmax"}
)
"""The ``__name__`` of each."""


def watch(torch: Any, run_in_float32: Callable[..., Any], is_on: Callable[[], bool]) -> None:
    """Hand the calls of these functions to ``run_in_float32(function, args, kwargs)`` while ``is_on()``."""
    from torch.overrides import TorchFunctionMode

    class LikeAGpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if getattr(function, "__name__", "") in FLOAT32 and is_on() and not _says_a_type(torch, args, kwargs):
                return run_in_float32(function, args, kwargs)
            return function(*args, **kwargs)

    # Below all modes of the script, such as that of its default device.
    LikeAGpu().__enter__()  # type: ignore[no-untyped-call]


def _says_a_type(torch: Any, args: Any, kwargs: Any) -> bool:
    given = (*args, kwargs.get("dtype"))
    return kwargs.get("out") is not None or any(isinstance(value, torch.dtype) for value in given)
