"""``nn.DataParallel`` for the names that it gives, without its devices."""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import nn


def keep_module_prefix(model: nn.Module) -> nn.DataParallel[Any]:
    """``nn.DataParallel`` around a model that stays on the device of this process alone.

    All names are those of ``nn.DataParallel(model)``: the keys of its state dict begin with ``module.``, and
    ``.module`` is the model. So a script that had ``DataParallel`` goes on to read and to write the checkpoints it
    always did, and so does whatever reads them. Calling it calls the model; inputs are not moved.

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
    return wrapper


def only_names(model: nn.Module) -> TypeGuard[nn.DataParallel[Any]]:
    """Whether a wrapper spreads nothing: what :func:`keep_module_prefix` made, or ``nn.DataParallel`` without a GPU."""
    return isinstance(model, nn.DataParallel) and not model.device_ids
