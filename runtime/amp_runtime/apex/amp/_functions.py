"""``amp.init``, and functions that a script wants in one precision at O1."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from amp_runtime.apex.amp import _patching
from amp_runtime.apex.amp._amp_state import _amp_state
from amp_runtime.apex.amp.handle import AmpHandle, NoOpHandle

F = TypeVar("F")

_registered: list[tuple[Any, str, _patching.Cast]] = []


def half_function(fn: F) -> F:
    """Decorates a function, method or ``staticmethod``: at O1 its float32 tensors become half.

    Tensors in nested tuples, lists and mappings too. Inert until ``amp.init`` or ``amp.initialize`` at O1.
    """
    decorated: F = _patching.casting(fn, _patching.as_half)
    return decorated


def float_function(fn: F) -> F:
    """Decorates a function, method or ``staticmethod``: at O1 its half tensors become float32.

    Inert until ``amp.init`` or ``amp.initialize`` at O1.
    """
    decorated: F = _patching.casting(fn, _patching.as_float)
    return decorated


def promote_function(fn: F) -> F:
    """Decorates a function, method or ``staticmethod``: at O1 its tensors take the widest type among them.

    Inert until ``amp.init`` or ``amp.initialize`` at O1.
    """
    decorated: F = _patching.casting(fn, _patching.as_widest)
    return decorated


def register_half_function(module: Any, name: str) -> None:
    """Lets ``module.name`` run in half at O1, whatever the built-in lists say.

    Args:
        module: a module or class that has the attribute, such as ``torch``.
        name: the name of a function, or of a class of modules, whose ``forward`` is meant.

    Raises:
        ValueError: there is no such attribute.
    """
    _register(module, name, _patching.as_half)


def register_float_function(module: Any, name: str) -> None:
    """Lets ``module.name`` run in float32 at O1, whatever the built-in lists say.

    Args:
        module: a module or class that has the attribute, such as ``torch``.
        name: the name of a function, or of a class of modules, whose ``forward`` is meant.

    Raises:
        ValueError: there is no such attribute.
    """
    _register(module, name, _patching.as_float)


def register_promote_function(module: Any, name: str) -> None:
    """Lets ``module.name`` run in the widest type among its tensors at O1.

    Args:
        module: a module or class that has the attribute, such as ``torch``.
        name: the name of a function, or of a class of modules, whose ``forward`` is meant.

    Raises:
        ValueError: there is no such attribute.
    """
    _register(module, name, _patching.as_widest)


def _register(module: Any, name: str, cast: _patching.Cast) -> None:
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}.")
    _registered.append((module, name, cast))


def init(
    enabled: bool = True,
    loss_scale: float | Literal["dynamic"] = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
    *,
    device_type: str | None = None,
) -> AmpHandle | NoOpHandle:
    """Turns the casts of O1 on for the whole process, without ``amp.initialize``.

    Args:
        enabled: ``False`` changes nothing and returns a handle whose methods do nothing.
        loss_scale: the scale for ``handle.wrap_optimizer``: ``"dynamic"`` or a positive number.
        enable_caching: accepted as in Apex. Casts of weights are never kept, so that none is out of date.
        verbose: accepted as in Apex.
        allow_banned: run ``F.binary_cross_entropy`` in float32 instead of refusing half tensors. It holds for a later
            ``amp.initialize`` too, until the handle is deactivated.
        device_type: the kind of device that trains, such as ``"cuda"``; by default CUDA where there is one.

    Returns:
        The handle, which is also ``amp._amp_state.handle``.
    """
    if not enabled:
        _amp_state.handle = NoOpHandle()
        return _amp_state.handle
    earlier = vars(_amp_state).get("handle")
    handle = AmpHandle(loss_scale, enable_caching, verbose, allow_banned, device_type)
    handle.allow_banned |= earlier is not None and earlier.is_active() and earlier.allow_banned
    # Before the built-in lists, which leave alone what has been replaced: the script's choice wins, as Ascend's does.
    for module, name, cast in _registered:
        _patching.register(module, name, cast)
    _patching.patch_torch_functions()
    _amp_state.handle = handle
    return handle
