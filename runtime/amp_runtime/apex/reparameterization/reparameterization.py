"""``apex.reparameterization.reparameterization``: a weight computed from other parameters before each forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Reparameterization:
    """A forward pre-hook that computes a weight; subclasses say how.

    Args:
        name: the weight, from the module on which the hook is.
        dim: what the subclass makes of it.
        module: the module on which the hook is.
        retain_forward: accepted; the weight is computed anew before every forward.

    Attributes:
        reparameterization_names: the names of the parameters that it is computed from.
    """

    def __init__(self, name: str, dim: int | None, module: nn.Module, retain_forward: bool = True) -> None:
        self.name = name
        self.dim = dim
        self.module = module
        self.retain_forward = retain_forward
        self.reparameterization_names: list[str] = []

    def compute_weight(self, module: nn.Module | None = None, name: str | None = None) -> torch.Tensor:
        """The weight from its parameters.

        Args:
            module: the module that has them; by default from the constructor.
            name: the weight's name in it; by default from the constructor.
        """
        raise NotImplementedError

    def reparameterize(self, name: str, weight: torch.Tensor, dim: int | None) -> tuple[list[str], list[nn.Parameter]]:
        """Names and values of the parameters that make ``weight``."""
        raise NotImplementedError

    @staticmethod
    def apply(
        module: nn.Module,
        name: str,
        dim: int | None,
        reparameterization: type[Reparameterization],
        hook_child: bool = True,
    ) -> Reparameterization | None:
        """Replaces one weight; ``None`` for those of embeddings and with less than two dimensions."""
        owner, own_name = Reparameterization.get_module_and_name(module, name)
        weight = getattr(owner, own_name)
        if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) or weight.dim() <= 1:
            return None
        holder = owner if hook_child else module
        hook = reparameterization(own_name if hook_child else name, dim, holder)
        names, parameters = hook.reparameterize(own_name, weight, dim)
        del owner._parameters[own_name]
        for each, parameter in zip(names, parameters, strict=True):
            owner.register_parameter(each, parameter)
        hook.reparameterization_names = names
        setattr(owner, own_name, hook.compute_weight(owner, own_name))
        holder.register_forward_pre_hook(hook)
        return hook

    @staticmethod
    def get_module_and_name(module: nn.Module, name: str) -> tuple[nn.Module, str]:
        """The child that has the weight ``name``, and the weight's name in it."""
        path, _, last = name.rpartition(".")
        return module.get_submodule(path), last

    def get_params(self, module: nn.Module) -> list[Any]:
        """The parameters that the weight is computed from."""
        return [getattr(module, name) for name in self.reparameterization_names]

    def remove(self, module: nn.Module) -> None:
        """Makes the weight an ordinary parameter; the hook itself is left for the caller to remove."""
        owner, name = self.get_module_and_name(module, self.name)
        with torch.no_grad():
            weight = self.compute_weight(owner, name)
        delattr(owner, name)
        for each in self.reparameterization_names:
            del owner._parameters[each]
        owner.register_parameter(name, nn.Parameter(weight))

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Computes the weight, before a forward."""
        owner, name = self.get_module_and_name(module, self.name)
        setattr(owner, name, self.compute_weight(owner, name))
