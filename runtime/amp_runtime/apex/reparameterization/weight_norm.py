"""``apex.reparameterization.weight_norm`` (Salimans and Kingma, 2016, https://arxiv.org/abs/1602.07868)."""

from __future__ import annotations

import torch
from torch import nn

from amp_runtime.apex.reparameterization.reparameterization import Reparameterization


class WeightNorm(Reparameterization):
    """The weight ``name`` is ``name_g * name_v / |name_v|``, with a norm for each slice of dimension ``dim``."""

    def compute_weight(self, module: nn.Module | None = None, name: str | None = None) -> torch.Tensor:
        """The weight from its length and direction, in their type; the norm of half ones is taken in float32."""
        owner, own_name = module or self.module, name or self.name
        length, direction = getattr(owner, f"{own_name}_g"), getattr(owner, f"{own_name}_v")
        wide = direction.float() if direction.dtype in (torch.float16, torch.bfloat16) else direction
        weight: torch.Tensor = wide * (length.to(wide.dtype) / _norm(wide, self.dim))
        return weight.to(direction.dtype)

    def reparameterize(self, name: str, weight: torch.Tensor, dim: int | None) -> tuple[list[str], list[nn.Parameter]]:
        """``name_g``, of size 1 but for dimension ``dim``, and ``name_v``, like the weight."""
        value = weight.detach()
        length = _norm(value.float(), dim).to(value.dtype)
        return [f"{name}_g", f"{name}_v"], [nn.Parameter(length), nn.Parameter(value)]


def _norm(direction: torch.Tensor, dim: int | None) -> torch.Tensor:
    kept = None if dim is None else dim % direction.dim()
    others = [index for index in range(direction.dim()) if index != kept]
    norm: torch.Tensor = torch.linalg.vector_norm(direction, dim=others, keepdim=dim is not None)
    return norm
