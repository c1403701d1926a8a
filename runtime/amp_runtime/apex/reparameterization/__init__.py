"""``apex.reparameterization``: weight norm (Salimans and Kingma, 2016, https://arxiv.org/abs/1602.07868) with Apex's
parameter names.

Of Apex's package these two functions are here: no public script was found that uses the classes behind them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import HALF_DTYPES

__all__ = ["apply_weight_norm", "remove_weight_norm"]


def apply_weight_norm(module: nn.Module, name: str = "", dim: int | None = 0, hook_child: bool = True) -> nn.Module:
    """Makes weights the product of a length ``name_g`` and a direction ``name_v``.

    Args:
        module: the module that has the weight, or contains one that has it.
        name: the weight, ``child.weight`` for one of a child; all with two dimensions or more, but not of
            embeddings, where it is empty.
        dim: the dimension whose slices have a length each; ``None`` for one length.
        hook_child: compute the weight before the forward of the module that has it, otherwise before ``module``'s.

    Returns:
        ``module``.
    """
    for each in [name] if name else [key for key, _ in module.named_parameters()]:
        _split(module, each, dim, hook_child)
    return module


def remove_weight_norm(module: nn.Module, name: str = "", remove_all: bool = False) -> nn.Module:
    """Turns weights with weight norm into ordinary ones of the same value.

    Args:
        module: as it was given to :func:`apply_weight_norm`.
        name: the weight; all where it is empty.
        remove_all: all of this module, but not of its children.

    Returns:
        ``module``.

    Raises:
        ValueError: the weight has none.
    """
    if not name and not remove_all:
        for child in list(module.modules()):
            remove_weight_norm(child, remove_all=True)
        return module
    hooks: dict[int, Any] = dict(module._forward_pre_hooks)
    removed = [key for key, hook in hooks.items() if isinstance(hook, _Weight) and (remove_all or hook.name == name)]
    for key in removed:
        hooks[key].join(module)
        del module._forward_pre_hooks[key]
    if not removed and not remove_all:
        raise ValueError(f"remove_weight_norm found no {name!r} with weight norm in {module}")
    return module


class _Weight:
    """A forward pre-hook that computes the weight ``name`` as ``name_g * name_v / |name_v|``.

    A hook and not torch's parametrization: scripts and checkpoints have ``_g`` and ``_v`` beside the other parameters.
    """

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = dim

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        owner, name = _owner(module, self.name)
        length, direction = getattr(owner, f"{name}_g"), getattr(owner, f"{name}_v")
        # The norm of half weights is taken in float32: their squares would overflow.
        wide = direction.float() if direction.dtype in HALF_DTYPES else direction
        setattr(owner, name, (wide * (length.to(wide.dtype) / _norm(wide, self.dim))).to(direction.dtype))

    def join(self, module: nn.Module) -> None:
        """Makes the weight an ordinary parameter again."""
        with torch.no_grad():
            self(module, ())
        owner, name = _owner(module, self.name)
        weight = getattr(owner, name)
        delattr(owner, name)  # a plain attribute until here, where no parameter of its name can stand
        for part in ("g", "v"):
            del owner._parameters[f"{name}_{part}"]
        owner.register_parameter(name, nn.Parameter(weight))


def _split(module: nn.Module, path: str, dim: int | None, hook_child: bool) -> None:
    owner, name = _owner(module, path)
    weight = getattr(owner, name)
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) or weight.dim() <= 1:
        return
    value = weight.detach()
    del owner._parameters[name]
    owner.register_parameter(f"{name}_g", nn.Parameter(_norm(value.float(), dim).to(value.dtype)))
    owner.register_parameter(f"{name}_v", nn.Parameter(value))
    hook, holder = (_Weight(name, dim), owner) if hook_child else (_Weight(path, dim), module)
    hook(holder, ())  # the weight can be read before the first forward, as in Apex
    holder.register_forward_pre_hook(hook)


def _owner(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module in ``module`` that has the weight ``path``, and the weight's name in it."""
    child, _, name = path.rpartition(".")
    return module.get_submodule(child), name


def _norm(direction: torch.Tensor, dim: int | None) -> torch.Tensor:
    kept = None if dim is None else dim % direction.dim()
    others = [index for index in range(direction.dim()) if index != kept]
    norm: torch.Tensor = torch.linalg.vector_norm(direction, dim=others, keepdim=dim is not None)
    return norm
