"""``apex.contrib.group_norm.group_norm``: group norm (https://arxiv.org/abs/1803.08494) with an activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_ACTIVATIONS = (None, "", "silu", "swish")


class GroupNorm(nn.Module):
    """``apex.contrib.group_norm.GroupNorm``: group norm with the parameter names of ``torch.nn.GroupNorm``.

    Args:
        num_groups: the number of groups; divides ``num_channels``.
        num_channels: the size of dimension 1.
        eps: added to the variance.
        affine: have ``weight`` and ``bias`` of shape ``(num_channels,)``.
        device: of the parameters.
        dtype: of the parameters.
        act: ``None``, ``silu`` or ``swish``: what follows the norm.

    Raises:
        ValueError: the groups do not divide the channels, or another activation.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        act: str | None = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm got num_groups={num_groups} and num_channels={num_channels}; "
                "allowed: a number of groups that divides the channels"
            )
        self.act = act.lower() if act else act
        if self.act not in _ACTIVATIONS:
            raise ValueError(f"GroupNorm got act={act!r}; allowed: None, 'silu', 'swish'")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self.weight = nn.Parameter(torch.empty(num_channels, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(num_channels, device=device, dtype=dtype)) if affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes ``input``, of shape ``(batch, num_channels, ...)``."""
        return _normalised(input, self.num_groups, self.weight, self.bias, self.eps, self.act)

    def extra_repr(self) -> str:
        """The options, for ``repr``."""
        options = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return f"{options}, act={self.act}" if self.act else options


def _normalised(
    x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, act: str | None
) -> torch.Tensor:
    """Group norm of ``(batch, channels, ...)``, then SiLU where ``act`` is ``silu`` or ``swish``."""
    wide = x if weight is None or weight.dtype == x.dtype else x.to(torch.promote_types(x.dtype, weight.dtype))
    scale, shift = (None if parameter is None else parameter.to(wide.dtype) for parameter in (weight, bias))
    normal = F.group_norm(wide, groups, scale, shift, eps).to(x.dtype)
    return F.silu(normal) if act in ("silu", "swish") else normal
