"""What can be saved and loaded: how each kind of object gives its state and takes it back."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data as data
from torch import nn

from amp_runtime._ema import EMA
from amp_runtime._saving.bare import bare, some, without_prefixes

_ALIASES = {
    "model": ("model", "state_dict", "net", "network", "module", "weights", "params"),
    "ema": ("ema", "model_ema", "ema_model", "state_dict_ema", "ema_state_dict", "params_ema"),
    "optimizer": ("optimizer", "optim", "opt", "optimiser"),
    "scheduler": ("scheduler", "lr_scheduler", "sched", "lr_sched", "lr_schedule"),
    "scaler": ("scaler", "amp", "grad_scaler", "amp_scaler", "loss_scaler"),
}
_FORMS = ("{}", "{}_state_dict", "{}_state", "{}_dict", "state_dict_{}", "state_{}")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.Size)


def is_loader(part: Any) -> bool:
    """Whether its position is kept, which every rank has for itself."""
    return isinstance(part, data.DataLoader) or "_amp_position" in getattr(part, "__dict__", {})


def is_part(part: Any) -> bool:
    """Whether ``part`` has a state of its own; anything else is a value."""
    return is_loader(part) or (callable(getattr(part, "state_dict", None)) and hasattr(part, "load_state_dict"))


def leaves(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    """The objects in a list, tuple or mapping of parts with their names; or ``part`` itself.

    Raises:
        TypeError: some of them have a state and some have not.
    """
    items = _items(part)
    having = [is_part(item) for _, item in items]
    if is_part(part) or not any(having):
        yield name, part
        return
    if not all(having):
        odd = next(item for (_, item), has in zip(items, having, strict=True) if not has)
        raise TypeError(f"amp.save_checkpoint got in {name} objects with a state_dict, and a {type(odd).__name__}")
    for key, item in items:
        yield f"{name}[{key!r}]", item


def _items(part: Any) -> list[tuple[Any, Any]]:
    if isinstance(part, Mapping):
        return list(part.items())
    return list(enumerate(part)) if isinstance(part, (list, tuple)) else []


def state_of(part: Any) -> Any:
    """The state of a part, in the shape of the part: a dictionary or list of states for one of parts."""
    if is_part(part):
        return bare(part).state_dict() if isinstance(part, nn.Module) else part.state_dict()
    if isinstance(part, Mapping):
        return {key: state_of(item) for key, item in part.items()}
    return [state_of(item) for item in part]


def plain(value: Any) -> Any:
    """A value with NumPy's numbers as Python's, which need no trust to be read."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value


def classes_in(value: Any) -> Iterator[type]:
    """The classes of the objects in nested containers that are neither tensors nor plain values."""
    if isinstance(value, Mapping):
        yield type(value)
        for key, item in value.items():
            yield from classes_in(key)
            yield from classes_in(item)
    elif isinstance(value, (list, tuple, set)):
        yield type(value)
        for item in value:
            yield from classes_in(item)
    elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
        yield type(value)


def role_of(name: str, part: Any) -> str:
    """What the part is, to find it in checkpoints of other programs, which have other names for it."""
    if isinstance(part, EMA) or ("ema" in name.lower() and isinstance(part, nn.Module)):
        return "ema"
    if isinstance(part, nn.Module):
        return "model"
    if hasattr(part, "param_groups"):
        return "optimizer"
    return "scaler" if hasattr(part, "get_scale") or hasattr(part, "unscale_") else "scheduler"


def names_for(name: str, role: str = "") -> list[str]:
    """Names under which a checkpoint of another program may hold a part, the likeliest first."""
    return [form.format(base) for base in (name, *_ALIASES.get(role, ())) for form in _FORMS]


def load_part(name: str, part: Any, state: Any, strict: bool) -> list[str]:
    """Loads a state into a model, an EMA, an optimizer, or another object.

    Returns:
        What did not fit, where ``strict`` is false.

    Raises:
        RuntimeError: it does not fit.
    """
    if isinstance(part, nn.Module):
        return _load_module(name, bare(part), state, strict)
    try:
        part.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(
            f"amp.load_checkpoint: {name!r} in the file does not fit this {type(part).__name__}: {_first_line(error)}"
        ) from error
    return []


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}({text})" if isinstance(error, (KeyError, AttributeError)) else text


def _load_module(name: str, module: nn.Module, state: Any, strict: bool) -> list[str]:
    if isinstance(state, nn.Module):  # a trusted file that holds the model itself
        state = bare(state).state_dict()
    if not isinstance(state, Mapping):
        raise RuntimeError(f"amp.load_checkpoint: {name!r} in the file is a {type(state).__name__} and no state dict")
    own = {key for key, _ in (*module.named_parameters(), *module.named_buffers())}
    problems = []
    try:
        result = module.load_state_dict(without_prefixes(state, own), strict=False)
    except RuntimeError as error:
        pattern = r"size mismatch for (\S+): .*?shape (.*?) from checkpoint.*?is (.*?)\.(?:\n|$)"
        problems = re.findall(pattern, str(error))
        if not problems:
            raise
        shapes = some(f"{key} ({theirs} in the file, {ours} here)" for key, theirs, ours in problems)
        raise RuntimeError(_misfit(name, module, f"other shape: {shapes}")) from error
    lists = {"missing": result.missing_keys, "unexpected": result.unexpected_keys}
    told = [f"{kind} {len(keys)}: {some(keys)}" for kind, keys in lists.items() if keys]
    if told and strict:
        raise RuntimeError(_misfit(name, module, "; ".join(told)) + ". strict=False loads the rest")
    return [f"{name}: {line}" for line in told]


def _misfit(name: str, module: nn.Module, what: str) -> str:
    return f"amp.load_checkpoint: {name!r} in the file does not fit this {type(module).__name__}; {what}"
