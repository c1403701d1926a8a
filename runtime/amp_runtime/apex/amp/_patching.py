"""The casts of O1: torch's functions, and those that a script registers, replaced by ones that cast their tensors.

They are replaced for the whole process, as in Apex, instead of leaving ``torch.autocast`` on, because scripts rely on
that: losses outside the model, other threads (``DataParallel``), recomputation in a backward pass
(``torch.utils.checkpoint``) and evaluation are covered, backward passes are not, and no cast of a weight is kept that a
step or a checkpoint outdates.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.trees import map_tensors, tensors_in, to_float
from amp_runtime._precision import cast_tables
from amp_runtime._precision.lacking import lacks, note
from amp_runtime._precision.rules import CASTABLE, cast
from amp_runtime.apex.amp._amp_state import _amp_state

Cast = Callable[[Any, Any], Any]

_RECURRENT = frozenset(f"{kind}{cell}" for kind in ("gru", "lstm", "rnn_relu", "rnn_tanh") for cell in ("", "_cell"))
# torch has them since Apex's lists were written, and its own autocast treats them so.
_HALF = (cast_tables.APEX_HALF - _RECURRENT) | {"chain_matmul", "einsum", "scaled_dot_product_attention"}
_FLOAT = cast_tables.APEX_FLOAT | {"huber_loss", "log1p", "logsumexp", "rms_norm"}
# NumPy has no bfloat16; and on the CPU there is no .cpu() before it, which Apex casts.
_FLOAT |= {"numpy"}
# Arithmetic and concatenation, which Apex promoted as well, torch promotes by itself today.
_PROMOTE = frozenset({"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "equal"})
_OPERATORS = {"matmul": ("__matmul__", "__rmatmul__"), "pow": ("__pow__", "__rpow__", "__ipow__")}

# In the order of replacement, so that undoing it backwards gives each attribute its first value.
_originals: list[tuple[Any, str, Any]] = []
_ABSENT = object()


def active_handle() -> Any:
    """The handle whose casts are on in this thread, or ``None``."""
    handle = vars(_amp_state).get("handle")
    return handle if handle is not None and handle.is_active() else None


def as_half(args: Any, handle: Any) -> Any:
    """A tuple or mapping with its float32 tensors, and those of another half type, as half."""
    if isinstance(args, tuple):  # the ordinary case, which is worth being fast
        return [_narrowed(value, handle) for value in args]
    return map_tensors(lambda tensor: _narrowed(tensor, handle), args)


def as_float(args: Any, handle: Any) -> Any:
    """A tuple or mapping with its half tensors as float32."""
    if isinstance(args, tuple):
        return [_widened(value) for value in args]
    return to_float(args)


def _narrowed(value: Any, handle: Any) -> Any:
    if isinstance(value, torch.Tensor):
        casts = value.dtype in CASTABLE and (handle.casts_cpu or not value.is_cpu)
        return value.to(handle.half_dtype) if casts else value
    if isinstance(value, (tuple, list, dict)):
        return map_tensors(lambda tensor: _narrowed(tensor, handle), value)
    return value


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF_DTYPES else value
    return to_float(value) if isinstance(value, (tuple, list, dict)) else value


def as_widest(args: Any, handle: Any) -> Any:
    """A tuple or mapping with its half tensors as float32, if there are float32 ones among them."""
    kinds = {tensor.dtype for tensor in tensors_in(args)}
    return to_float(args) if torch.float32 in kinds and not kinds.isdisjoint(HALF_DTYPES) else args


def casting(function: Any, cast: Cast) -> Any:
    """``function`` with its tensors cast, at any depth of tuples, lists and mappings, while casts are on.

    Args:
        function: a function, a method, or a ``staticmethod``.
        cast: one of ``as_half``, ``as_float`` and ``as_widest``.
    """
    if isinstance(function, staticmethod):
        return staticmethod(casting(function.__func__, cast))

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        handle = active_handle()
        if handle is None:
            return function(*args, **kwargs)
        return function(*cast(args, handle), **(cast(kwargs, handle) if kwargs else kwargs))

    return wrapper


def _in_place(function: Any, refusing: bool) -> Any:
    """``function`` with what it reads cast to the type of the tensor that it writes.

    Args:
        function: a function or method that writes into its first argument.
        refusing: whether what it does belongs in float32, so that it cannot write into a half tensor.
    """

    @functools.wraps(function)
    def wrapper(written: Any, *args: Any, **kwargs: Any) -> Any:
        if active_handle() is None or not isinstance(written, torch.Tensor) or written.dtype not in CASTABLE:
            return function(written, *args, **kwargs)
        if refusing and written.dtype in HALF_DTYPES:
            name = function.__name__
            raise NotImplementedError(
                f"Cannot call in-place method {name} on half tensors: amp computes it in float32. Use "
                f"{name.removesuffix('_')} without the underscore, or call .float() before"
            )
        kind = written.device.type
        read = {name: cast(value, written.dtype, kind) for name, value in kwargs.items()}
        return function(written, *(cast(value, written.dtype, kind) for value in args), **read)

    return wrapper


def _refusing(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        handle = active_handle()
        if handle is None or all(tensor.dtype not in HALF_DTYPES for tensor in tensors_in((args, kwargs))):
            return function(*args, **kwargs)
        if not handle.allow_banned:
            raise NotImplementedError(
                f"amp does not work out-of-the-box with `F.{function.__name__}` or `torch.nn.BCELoss`: its input must "
                "be computed in float32. Use torch.nn.BCEWithLogitsLoss, which takes the layer before the sigmoid and "
                "is also more stable; or cast the input with .float(); or run the loss in float32 anyway with "
                "amp.init(allow_banned=True) before amp.initialize."
            )
        return function(*to_float(args), **to_float(kwargs))

    return wrapper


def _recurrent(function: Any) -> Any:
    name = function.__name__

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        handle = active_handle()
        if handle is None:
            return function(*args, **kwargs)
        kind = next((tensor.device.type for tensor in tensors_in(args)), "cpu")
        # On the CPU oneDNN's bfloat16 kernels, which it may lack, are not asked of half tensors, unlike under autocast.
        cast_here = kind == "cpu"
        if not (cast_here and handle.half_dtype is torch.bfloat16) and lacks(name, kind, handle.half_dtype):
            note(kind, handle.half_dtype)
            return function(*as_float(args, handle), **kwargs)
        if cast_here:
            return function(*as_half(args, handle), **kwargs)
        with torch.autocast(kind, handle.half_dtype, cache_enabled=False):
            # It lays the cast weights out in one piece of memory, as cuDNN wants them.
            return function(*args, **kwargs)

    return wrapper


def _of_any_type(check: Any) -> Any:
    """``RNNBase.check_input`` for inputs of any type: torch lets them pass under its autocast only."""

    @functools.wraps(check)
    def wrapper(self: nn.RNNBase, input: torch.Tensor, batch_sizes: Any) -> None:
        weight = self._flat_weights[0]
        if active_handle() is not None and isinstance(weight, torch.Tensor):
            input = weight.new_empty(()).expand(input.shape)  # its shape is checked as well
        check(self, input, batch_sizes)

    return wrapper


def _with_casts_off(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        handle = active_handle()
        if handle is None:
            return function(*args, **kwargs)
        with handle._disable_casts():
            return function(*args, **kwargs)

    return wrapper


def replace(owner: Any, name: str, wrapper: Any) -> None:
    """Puts ``wrapper`` in the place of an attribute, which :func:`restore_all` puts back."""
    _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
    inner: Any = wrapper.__func__ if isinstance(wrapper, staticmethod) else wrapper
    inner.amp_original = inspect.unwrap(inner)  # by which this package recognises an operation of torch
    setattr(owner, name, wrapper)


def restore_all() -> None:
    """Puts everything back that :func:`replace` took."""
    while _originals:
        owner, name, original = _originals.pop()
        if original is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def replaced(owner: Any, name: str) -> bool:
    """Whether an attribute has been replaced."""
    return any(owner is seen and name == known for seen, known, _ in _originals)


def register(owner: Any, name: str, cast: Cast) -> None:
    """Lets an attribute of a module or class cast its tensors; a module class does it in its ``forward``."""
    target = getattr(owner, name)
    if inspect.isclass(target) and issubclass(target, nn.Module):
        owner, name = target, "forward"
    if replaced(owner, name):
        return
    original = vars(owner).get(name, getattr(owner, name))  # of a class, the staticmethod itself
    if owner in (torch, nn.functional, torch.Tensor):
        original = _with_casts_off(original)  # F.softmax calls Tensor.softmax, which is in the lists
    replace(owner, name, casting(original, cast))


def patch_torch_functions() -> None:
    """Lets torch's functions cast their tensors, once. What a script has registered stays as it chose."""
    for names, to in ((_HALF, as_half), (_FLOAT, as_float), (_PROMOTE, as_widest)):
        for name in sorted(names):
            for attribute in (name, *_OPERATORS.get(name, ())):
                for owner in (torch, nn.functional, torch.Tensor):
                    _patch(owner, attribute, functools.partial(casting, cast=to))
            for owner in (torch, torch.Tensor) if to is not as_widest else ():  # those torch promotes by itself
                _patch(owner, f"{name}_", functools.partial(_in_place, refusing=to is as_float))
    for name in cast_tables.APEX_REFUSED:
        _patch(nn.functional, name, _refusing)
    for name in sorted(_RECURRENT):
        _patch(torch._VF, name, _recurrent)
    _patch(nn.RNNBase, "check_input", _of_any_type)


def _patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    if hasattr(owner, name) and not replaced(owner, name):
        replace(owner, name, wrap(getattr(owner, name)))
