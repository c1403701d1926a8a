"""Functions of other modules that run in one precision, registered by name as with Apex."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._precision import policy
from amp_runtime._precision.casts import Precision, call_in_precision
from amp_runtime._precision.names import name_of
from amp_runtime._precision.policy import Lists

_MISSING = object()


@dataclass
class _Entry:
    """One registered attribute: where it is, what its owner itself held there, and which operation it is."""

    owner: Any
    name: str
    precision: Precision
    operation: str | None
    own: Any = _MISSING
    installed: bool = False


_entries: list[_Entry] = []


def register_half_function(module: Any, name: str) -> None:
    """Has ``module.name`` run in the half type, as Apex's function of the same name.

    The attribute is replaced in place, so every caller that reads it from ``module`` is meant, in any file and
    outside of ``amp.autocast`` too. It may be called before or after ``amp.init``. At O0, before ``amp.init``
    and in ``amp.disable_casts()`` the function runs as written; ``amp.shutdown()`` puts the original back.

    For an operation of torch, all its forms follow inside ``amp.autocast``: with ``(torch, "bmm")`` also
    ``Tensor.bmm``, operators and in-place forms, and it wins over autocast's own lists and over ``cast_policy``;
    a list given to the region itself wins over it. Regions that are already entered do not change. Outside of
    regions, a function that was imported by name before (``from torch import bmm``) is not reached.

    For a class of modules, such as ``(torch.nn, "MaxPool2d")``, the ``forward`` of all its instances runs so, and
    for a ``torch.autograd.Function`` its ``forward``. For another class, such as ``(torch.nn, "Parameter")``, it is
    calling it by that name that casts what it is given; it remains what ``isinstance`` and derived classes mean.
    TorchScript compiles a replaced function only if it did so before.

    Args:
        module: a Python module, a class or an object.
        name: the name of a function, method or class in it.

    Raises:
        ValueError: ``module`` has no such attribute; similar names are suggested.
        TypeError: ``name`` is no string, or the attribute cannot be called.
    """
    _register(module, name, "half")


def register_float_function(module: Any, name: str) -> None:
    """Has ``module.name`` run in float32, as Apex's function of the same name.

    Everything else is as with :func:`register_half_function`.

    Args:
        module: a Python module, a class or an object.
        name: the name of a function, method or class in it.

    Raises:
        ValueError: ``module`` has no such attribute; similar names are suggested.
        TypeError: ``name`` is no string, or the attribute cannot be called.
    """
    _register(module, name, "float")


def register_promote_function(module: Any, name: str) -> None:
    """Has ``module.name`` run in the widest type among its tensors, as Apex's function of the same name.

    In-place forms follow their first argument, as always. Everything else is as with
    :func:`register_half_function`.

    Args:
        module: a Python module, a class or an object.
        name: the name of a function, method or class in it.

    Raises:
        ValueError: ``module`` has no such attribute; similar names are suggested.
        TypeError: ``name`` is no string, or the attribute cannot be called.
    """
    _register(module, name, "promote")


@functools.cache
def lists() -> Lists:
    """The registered operations of torch, as lists that a region follows."""
    chosen = {entry.operation: entry.precision for entry in _entries if entry.operation is not None}
    kinds: tuple[Precision, ...] = ("half", "float", "promote")
    return Lists(*(frozenset(name for name in chosen if chosen[name] == kind) for kind in kinds))


def follow() -> None:
    """Replaces the registered attributes, or puts the originals back where nothing is mixed."""
    for entry in _entries:
        (_install if context.mixed else _remove)(entry)
    lists.cache_clear()
    policy.forget_tables()


def forget() -> None:
    """Puts all originals back and drops the registrations."""
    while _entries:
        _remove(_entries.pop())
    follow()


def _register(module: Any, name: str, precision: Precision) -> None:
    caller = f"amp.register_{precision}_function"
    if not isinstance(name, str):
        raise TypeError(f"{caller} got name={name!r}; allowed: the name of an attribute of {_show(module)}")
    if not hasattr(module, name):
        similar = difflib.get_close_matches(name, dir(module), n=3)
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise ValueError(f"{caller} got name={name!r}, which {_show(module)} does not have{hint}")
    value = getattr(module, name)
    operation = name_of(module, name)
    if isinstance(value, type) and issubclass(value, (nn.Module, torch.autograd.Function)):
        module, name, operation = value, "forward", None
    elif isinstance(value, nn.Module) or not callable(value):
        raise TypeError(
            f"{caller} got name={name!r}, which is {value!r} in {_show(module)}; allowed: a function, a method "
            "or a class"
        )
    for entry in [entry for entry in _entries if entry.owner is module and entry.name == name]:
        _entries.remove(entry)
        _remove(entry)
    _entries.append(_Entry(module, name, precision, operation))
    follow()


def _install(entry: _Entry) -> None:
    if entry.installed:
        return
    entry.own = vars(entry.owner).get(entry.name, _MISSING)
    held = inspect.getattr_static(entry.owner, entry.name)
    function = held.__func__ if isinstance(held, classmethod) else getattr(entry.owner, entry.name)
    wrapper = _CastClass(function, entry.precision) if isinstance(function, type) else _wrapper(function, entry)
    wrapped = isinstance(held, (staticmethod, classmethod))
    setattr(entry.owner, entry.name, type(held)(wrapper) if wrapped else wrapper)
    entry.installed = True


def _remove(entry: _Entry) -> None:
    if not entry.installed:
        return
    if entry.own is _MISSING:
        delattr(entry.owner, entry.name)
    else:
        setattr(entry.owner, entry.name, entry.own)
    entry.installed = False


def _wrapper(function: Callable[..., Any], entry: _Entry) -> Callable[..., Any]:
    precision, of_torch = entry.precision, entry.operation is not None

    @functools.wraps(function)
    def registered(*args: Any, **kwargs: Any) -> Any:
        if of_torch and policy.acting():  # the region's mode casts it, and knows the region's own lists
            return function(*args, **kwargs)
        return call_in_precision(function, args, kwargs, precision)

    registered.amp_original = function  # type: ignore[attr-defined]
    return registered


class _CastClass:
    """Stands for a class under its name: calling it casts, and everything else is the class's own."""

    def __init__(self, cls: type, precision: Precision) -> None:
        self.amp_original = cls
        self._precision = precision

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_in_precision(self.amp_original, args, kwargs, self._precision)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.amp_original)

    def __subclasscheck__(self, cls: type) -> bool:
        return issubclass(cls, self.amp_original)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (self.amp_original,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.amp_original, name)

    def __or__(self, other: Any) -> Any:
        return self.amp_original | other

    def __ror__(self, other: Any) -> Any:
        return other | self.amp_original

    def __repr__(self) -> str:
        return repr(self.amp_original)


def _show(module: Any) -> str:
    return getattr(module, "__qualname__", None) or getattr(module, "__name__", None) or repr(module)
