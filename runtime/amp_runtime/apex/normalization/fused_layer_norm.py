"""``apex.normalization.fused_layer_norm``: layer norm (https://arxiv.org/abs/1607.06450) and RMS norm
(https://arxiv.org/abs/1910.07467), with statistics in float32.

Under autocast input and parameters become the autocast type, so the output is half, as Apex's is; torch's own
``layer_norm`` would return float32 on CUDA.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from amp_runtime.apex._layer_casts import cast_if_autocast, without_autocast

Shape = int | Sequence[int]


def fused_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """Layer norm without parameters.

    Args:
        input: floating, of shape ``(..., *normalized_shape)``.
        normalized_shape: the last dimensions.
        eps: added to the variance; 1e-6 here and 1e-5 in the module, as in Apex.
        memory_efficient: accepted; torch's kernel keeps the input either way.

    Returns:
        A tensor like ``input``; under autocast in its type.
    """
    (cast,) = cast_if_autocast(input)
    with without_autocast(cast):
        return F.layer_norm(cast, _shape(normalized_shape), None, None, eps)


def fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Layer norm with parameters, in the type of the input.

    Args:
        input: floating, of shape ``(..., *normalized_shape)``.
        weight: of shape ``normalized_shape``.
        bias: of shape ``normalized_shape``.
        normalized_shape: the last dimensions.
        eps: added to the variance.
        memory_efficient: accepted; torch's kernel keeps the input either way.

    Returns:
        A tensor like ``input``; under autocast in its type.
    """
    cast, scale, shift = cast_if_autocast(input, weight, bias)
    with without_autocast(cast):
        return _layer_norm(cast, scale, shift, _shape(normalized_shape), eps).to(cast.dtype)


def mixed_dtype_fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """:func:`fused_layer_norm_affine` whose result has the type of the parameters."""
    cast, scale, shift = cast_if_autocast(input, weight, bias)
    with without_autocast(cast):
        return _layer_norm(cast, scale, shift, _shape(normalized_shape), eps).to(scale.dtype)


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """RMS norm without parameters; arguments and result as of :func:`fused_layer_norm`."""
    (cast,) = cast_if_autocast(input)
    with without_autocast(cast):
        return _rms_norm(cast, None, _shape(normalized_shape), eps).to(cast.dtype)


def fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """RMS norm with a weight, in the type of the input; arguments as of :func:`fused_layer_norm_affine`."""
    cast, scale = cast_if_autocast(input, weight)
    with without_autocast(cast):
        return _rms_norm(cast, scale, _shape(normalized_shape), eps).to(cast.dtype)


def mixed_dtype_fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """:func:`fused_rms_norm_affine` whose result has the type of the weight."""
    cast, scale = cast_if_autocast(input, weight)
    with without_autocast(cast):
        return _rms_norm(cast, scale, _shape(normalized_shape), eps).to(scale.dtype)


class FusedLayerNorm(nn.Module):
    """``apex.normalization.FusedLayerNorm``: layer norm with the parameter names of ``torch.nn.LayerNorm``.

    Args:
        normalized_shape: the last dimensions of the input, or the size of the last one.
        eps: added to the variance.
        elementwise_affine: have ``weight`` and ``bias`` of shape ``normalized_shape``.
        memory_efficient: accepted; torch's kernel keeps the input either way.
    """

    normalized_shape: torch.Size
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = torch.Size(_shape(normalized_shape))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes ``input``, of shape ``(..., *normalized_shape)``; the result has its type."""
        if self.weight is None or self.bias is None:
            return fused_layer_norm(input, self.normalized_shape, self.eps)
        return fused_layer_norm_affine(input, self.weight, self.bias, self.normalized_shape, self.eps)

    def extra_repr(self) -> str:
        """The options, for ``repr``."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedRMSNorm(nn.Module):
    """``apex.normalization.FusedRMSNorm``: RMS norm with the parameter name of ``torch.nn.RMSNorm``.

    Args:
        normalized_shape: the last dimensions of the input, or the size of the last one.
        eps: added to the mean of squares; ``torch.nn.RMSNorm`` has a smaller one by default.
        elementwise_affine: have a ``weight`` of shape ``normalized_shape``.
        memory_efficient: accepted; torch's kernel keeps the input either way.
    """

    normalized_shape: torch.Size
    weight: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = torch.Size(_shape(normalized_shape))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes ``input``, of shape ``(..., *normalized_shape)``; the result has its type."""
        if self.weight is None:
            return fused_rms_norm(input, self.normalized_shape, self.eps)
        return fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)

    def extra_repr(self) -> str:
        """The options, for ``repr``."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class MixedFusedLayerNorm(FusedLayerNorm):
    """:class:`FusedLayerNorm` whose result has the type of its parameters, whatever the input's.

    Args:
        normalized_shape: the last dimensions of the input, or the size of the last one.
        eps: added to the variance.
        memory_efficient: accepted; torch's kernel keeps the input either way.
        kwargs: ``elementwise_affine=True`` is accepted with a warning.

    Raises:
        RuntimeError: ``elementwise_affine=False``.
        TypeError: another keyword.
    """

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **kwargs: Any
    ) -> None:
        _refuse_plain("MixedFusedLayerNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes ``input``, of shape ``(..., *normalized_shape)``; the result has the parameters' type."""
        assert self.weight is not None and self.bias is not None
        return mixed_dtype_fused_layer_norm_affine(input, self.weight, self.bias, self.normalized_shape, self.eps)


class MixedFusedRMSNorm(FusedRMSNorm):
    """:class:`FusedRMSNorm` whose result has the type of its weight, whatever the input's.

    Args:
        normalized_shape: the last dimensions of the input, or the size of the last one.
        eps: added to the mean of squares.
        memory_efficient: accepted; torch's kernel keeps the input either way.
        kwargs: ``elementwise_affine=True`` is accepted with a warning.

    Raises:
        RuntimeError: ``elementwise_affine=False``.
        TypeError: another keyword.
    """

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, *, memory_efficient: bool = False, **kwargs: Any
    ) -> None:
        _refuse_plain("MixedFusedRMSNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes ``input``, of shape ``(..., *normalized_shape)``; the result has the weight's type."""
        assert self.weight is not None
        return mixed_dtype_fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


class _Applied:
    """The ``apply`` of an autograd function of Apex, differentiated by torch. It casts nothing inside autocast."""

    _function: Callable[..., torch.Tensor]

    @classmethod
    def apply(cls, input: torch.Tensor, *args: Any) -> torch.Tensor:
        """Calls the function with positional arguments, outside of autocast."""
        with without_autocast(input):
            return cls._function(input, *args)


class FusedLayerNormAffineFunction(_Applied):
    """``apply(input, weight, bias, normalized_shape, eps, memory_efficient=False)``."""

    _function = staticmethod(fused_layer_norm_affine)


class FusedLayerNormAffineMixedDtypesFunction(_Applied):
    """``apply(input, weight, bias, normalized_shape, eps, memory_efficient=False)``."""

    _function = staticmethod(mixed_dtype_fused_layer_norm_affine)


class FusedLayerNormFunction(_Applied):
    """``apply(input, normalized_shape, eps, memory_efficient=False)``."""

    _function = staticmethod(fused_layer_norm)


class FusedRMSNormAffineFunction(_Applied):
    """``apply(input, weight, normalized_shape, eps, memory_efficient=False)``."""

    _function = staticmethod(fused_rms_norm_affine)


class FusedRMSNormAffineMixedDtypesFunction(_Applied):
    """``apply(input, weight, normalized_shape, eps, memory_efficient=False)``."""

    _function = staticmethod(mixed_dtype_fused_rms_norm_affine)


class FusedRMSNormFunction(_Applied):
    """``apply(input, normalized_shape, eps, memory_efficient=False)``."""

    _function = staticmethod(fused_rms_norm)


def _shape(normalized_shape: Shape) -> list[int]:
    if isinstance(normalized_shape, numbers.Integral):
        return [int(normalized_shape)]
    assert not isinstance(normalized_shape, int)
    return list(normalized_shape)


def _layer_norm(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shape: list[int], eps: float
) -> torch.Tensor:
    if input.dtype == weight.dtype == bias.dtype:
        return F.layer_norm(input, shape, weight, bias, eps)  # statistics of half tensors are float32 in the kernel
    wide = torch.promote_types(torch.promote_types(input.dtype, weight.dtype), torch.float32)
    return F.layer_norm(input.to(wide), shape, weight.to(wide), bias.to(wide), eps)


def _rms_norm(input: torch.Tensor, weight: torch.Tensor | None, shape: list[int], eps: float) -> torch.Tensor:
    other = input.dtype if weight is None else weight.dtype
    if input.dtype == other:
        return F.rms_norm(input, shape, weight, eps)
    wide = torch.promote_types(torch.promote_types(input.dtype, other), torch.float32)
    return F.rms_norm(input.to(wide), shape, None if weight is None else weight.to(wide), eps)


def _refuse_plain(name: str, kwargs: dict[str, Any]) -> None:
    if "elementwise_affine" in kwargs:
        affine = kwargs.pop("elementwise_affine")
        warnings.warn(f"{name} ignores elementwise_affine; it always has parameters", stacklevel=3)
        if not affine:
            raise RuntimeError(f"{name} got elementwise_affine={affine!r}; allowed: True")
    if kwargs:
        raise TypeError(f"{name} got {', '.join(kwargs)}; allowed: normalized_shape, eps, memory_efficient")
