"""Half copies of weights that a region keeps, and that a pass without gradients leaves behind.

Autocast keeps the half copy of a weight until its region ends. Up to torch 2.9 it keeps one that was made under
``torch.no_grad`` too, and the next pass of the same region takes it: the weight then gets no gradient, without a word.
So does a step that first looks at its own predictions, as FixMatch does.

Source: https://github.com/pytorch/pytorch/pull/165068
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from amp_runtime._core.hooks import Hook, has_hook

_ran_without_gradients = False


@functools.lru_cache(maxsize=1)
def are_kept() -> bool:
    """Whether this version of torch goes on with casts that were made without gradients."""
    weight = torch.ones(1, 1, requires_grad=True)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            torch.mm(weight, weight)
        return not torch.mm(weight, weight).requires_grad


def watch_passes(model: nn.Module) -> None:
    """Has a forward pass of ``model`` drop the casts of one without gradients before it, where torch keeps them."""
    if are_kept() and not has_hook(model._forward_pre_hooks, drop_casts):
        model.register_forward_pre_hook(Hook(drop_casts))


def drop_casts(module: nn.Module, args: Any) -> None:
    """A forward pre-hook; a region that has lost its casts makes them anew."""
    global _ran_without_gradients
    if not torch.is_grad_enabled():
        _ran_without_gradients = True
    elif _ran_without_gradients:
        _ran_without_gradients = False
        torch.clear_autocast_cache()
