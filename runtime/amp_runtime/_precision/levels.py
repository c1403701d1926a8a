"""What every level does to a prepared model; ``half_models.py`` has what O2 and O3 do besides."""

from __future__ import annotations

from typing import Any

from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.hooks import Hook, has_hook
from amp_runtime._core.trees import map_tensors, to_float


def watch_outputs(model: nn.Module) -> None:
    """Has the outputs of ``model`` cast as ``amp.init`` says; a second time it changes nothing."""
    if not has_hook(model._forward_hooks, cast_outputs):
        model.register_forward_hook(Hook(cast_outputs))


def cast_outputs(module: nn.Module, args: Any, output: Any) -> Any:
    """A forward hook: half outputs as float32, or all floating outputs in the dtype that was asked for."""
    dtype = context.cast_model_outputs
    if dtype is not None:
        return map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, output)
    return to_float(output) if context.mixed else None
