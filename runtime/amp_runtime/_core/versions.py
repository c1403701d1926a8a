"""What differs between the versions of torch that the runtime supports.

Where a difference can be asked of torch itself (``hasattr``), it is; a version number is compared only where it
cannot.
"""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""The version of torch, as ``(2, 4)``."""

FUSED_ADAGRAD_ON_CUDA = TORCH >= (2, 13)
"""Whether torch's fused Adagrad runs on CUDA; its kernel was for the CPU alone before."""

NAMED_SAFE_GLOBALS = TORCH >= (2, 6)
"""Whether ``add_safe_globals`` allows a class under another name than its present one."""

COMPILES_FUNCTION_MODES = TORCH >= (2, 6)
"""Whether torch.compile follows modes, and can tell inside a graph which are in force."""

STEPS_ON_SHARDS = TORCH >= (2, 10)
"""Whether torch has every operation on sharded tensors that the optimizers with norms of their own need."""


def allow_gradients_of(parameter: torch.Tensor, dtype: torch.dtype | None) -> None:
    """Lets the script assign gradients of ``dtype``, or of any with ``None``, to ``parameter.grad``.

    Where torch has no ``Tensor.grad_dtype`` yet, it does nothing: gradients of the parameter's own type alone can be
    assigned there.
    """
    if hasattr(parameter, "grad_dtype"):
        parameter.grad_dtype = dtype


def assign_gradient(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """``parameter.grad = gradient``, for a gradient of another floating type too."""
    if gradient is None or gradient.dtype is parameter.dtype:
        parameter.grad = gradient
    elif hasattr(parameter, "grad_dtype"):
        parameter.grad_dtype = None
        parameter.grad = gradient
    else:
        full = gradient.data
        gradient.data = full.to(parameter.dtype)
        parameter.grad = gradient
        gradient.data = full


def two_norms(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The 2-norm of each tensor, sharded ones too, for which torch 2.4 needs to be told the order.

    It is no integer, because that would be recognised as the default and left out.
    """
    norms: list[torch.Tensor] = list(torch._foreach_norm(tensors, 2.0))
    return norms


def separated(vector: torch.Tensor) -> list[torch.Tensor]:
    """The elements of a vector.

    Raises:
        RuntimeError: they belong to sharded parameters, and torch is older than 2.10.
    """
    if not STEPS_ON_SHARDS and type(vector) is not torch.Tensor:
        raise RuntimeError(
            f"torch {torch.__version__} cannot step sharded parameters ({type(vector).__name__}) with this optimizer; "
            "allowed: torch 2.10 or later, or parameters that are whole"
        )
    return list(vector.unbind())
