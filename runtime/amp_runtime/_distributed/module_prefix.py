"""``nn.DataParallel`` for the names that it gives, on one device."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn

from amp_runtime._core.device import device
from amp_runtime._core.hooks import Hook
from amp_runtime._core.trees import map_tensors


def keep_module_prefix(model: nn.Module) -> nn.DataParallel[Any]:
    """``nn.DataParallel`` around a model that stays on the device of this process alone.

    All names are those of ``nn.DataParallel(model)``: the keys of its state dict begin with ``module.``, and
    ``.module`` is the model. So a script that had ``DataParallel`` goes on to read and to write the checkpoints it
    always did, and so does whatever reads them. What ``nn.DataParallel`` does with one GPU goes on: a model
    of the CPU moves to the GPU of this process, if there is one, and inputs are taken to the device of the model.

    Args:
        model: the model; ``amp.prepare_model`` prepares it inside of what is returned.

    Returns:
        An ``nn.DataParallel``, also to ``isinstance`` and when it is pickled.

    Raises:
        TypeError: ``model`` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"amp.keep_module_prefix got {type(model).__name__}; allowed: a torch.nn.Module")
    # Its constructor asks for all devices and moves the model to the first of them.
    wrapper: nn.DataParallel[Any] = nn.DataParallel.__new__(nn.DataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    wrapper.dim = 0
    wrapper.device_ids = []
    wrapper.output_device = None  # type: ignore[assignment]
    if torch.cuda.is_available() and not any(parameter.is_cuda for parameter in model.parameters()):
        model.to(device())
    wrapper.register_forward_pre_hook(Hook(_to_the_model), with_kwargs=True)
    return wrapper


def _to_the_model(wrapper: nn.Module, args: Any, kwargs: Any) -> Any:
    """A hook that takes inputs to the device of the model, as the scattering of ``nn.DataParallel`` does on GPUs."""
    first = next(wrapper.parameters(), None)
    if first is None or first.device.type == "cpu":
        return None
    place = first.device
    return map_tensors(lambda tensor: tensor.to(place), (args, kwargs))


def only_names(model: nn.Module) -> TypeGuard[nn.DataParallel[Any]]:
    """Whether a wrapper spreads nothing: what :func:`keep_module_prefix` made, or ``nn.DataParallel`` without a GPU."""
    return isinstance(model, nn.DataParallel) and not model.device_ids
