"""``apex.reparameterization``: weight norm with Apex's parameter names."""

from __future__ import annotations

from typing import Any

from torch import nn

from amp_runtime.apex.reparameterization.reparameterization import Reparameterization as Reparameterization
from amp_runtime.apex.reparameterization.weight_norm import WeightNorm as WeightNorm

__all__ = [
    "Reparameterization",
    "WeightNorm",
    "apply_reparameterization",
    "apply_weight_norm",
    "remove_reparameterization",
    "remove_weight_norm",
]


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
    return apply_reparameterization(module, WeightNorm, name, dim, hook_child)


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
    return remove_reparameterization(module, WeightNorm, name, remove_all)


def apply_reparameterization(
    module: nn.Module,
    reparameterization: type[Reparameterization] | None = None,
    name: str = "",
    dim: int | None = 0,
    hook_child: bool = True,
) -> nn.Module:
    """:func:`apply_weight_norm` for a subclass of :class:`Reparameterization`.

    Raises:
        ValueError: none was given.
    """
    if reparameterization is None:
        raise ValueError("apply_reparameterization got reparameterization=None; allowed: WeightNorm or the like")
    for each in [name] if name else [key for key, _ in module.named_parameters()]:
        Reparameterization.apply(module, each, dim, reparameterization, hook_child)
    return module


def remove_reparameterization(
    module: nn.Module,
    reparameterization: type[Reparameterization] = Reparameterization,
    name: str = "",
    remove_all: bool = False,
) -> nn.Module:
    """:func:`remove_weight_norm` for a subclass of :class:`Reparameterization`.

    Raises:
        ValueError: ``name`` has none.
    """
    if not name and not remove_all:
        for child in list(module.modules()):
            remove_reparameterization(child, reparameterization, remove_all=True)
        return module
    hooks: dict[int, Any] = dict(module._forward_pre_hooks)
    found = False
    for key, hook in hooks.items():
        if isinstance(hook, reparameterization) and (remove_all or hook.name == name):
            hook.remove(module)
            del module._forward_pre_hooks[key]
            found = True
    if not found and not remove_all:
        raise ValueError(f"remove_reparameterization found no {name!r} with {reparameterization.__name__} in {module}")
    return module
