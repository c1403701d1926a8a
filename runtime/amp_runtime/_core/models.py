"""The models that were prepared, to find a parameter's name for a message."""

from __future__ import annotations

import operator
import weakref

import torch
from torch import nn

_prepared: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()
_serials: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_remembered = 0
_copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def remember(model: nn.Module, result: nn.Module) -> None:
    """Notes what ``model`` was prepared to, itself or a wrapper, without keeping either alive."""
    global _remembered
    if model not in _serials:
        _remembered += 1
        _serials[model] = _remembered
    _prepared[model] = weakref.ref(result)


def remembered() -> int:
    """How many models were prepared so far: who keeps something about them sees that there are more."""
    return _remembered


def prepared(model: nn.Module) -> nn.Module | None:
    """What ``model`` was prepared to, if it was."""
    result = _prepared.get(model)
    return None if result is None else result()


def parameter_slots(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of a model, shared ones as often as they stand there: the same list until one is exchanged.

    It is asked for at each forward pass, and takes a tenth of the time of ``model.parameters()``.
    """
    found: list[nn.Parameter] = []
    pending: list[nn.Module | None] = [model]
    while pending:
        module = pending.pop()
        if module is not None:
            found.extend(parameter for parameter in module._parameters.values() if parameter is not None)
            pending.extend(module._modules.values())
    return found


def same_objects(some: list[nn.Parameter], others: list[nn.Parameter]) -> bool:
    """Whether two lists hold the very same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def note_copy(model: nn.Module) -> None:
    """Notes a copy of a prepared model: it need not be prepared to be trained."""
    _copies.add(model)


def copy_with(parameter: torch.Tensor) -> nn.Module | None:
    """The noted copy that a parameter belongs to, if there is one."""
    holders = (model for model in _copies if any(own is parameter for own in model.parameters()))
    return next(holders, None)


def require_initialised(model: nn.Module) -> None:
    """Refuses lazy parameters, whose shapes are not known yet.

    Raises:
        RuntimeError: the model has some.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise RuntimeError(
                f"amp.prepare_model got a {type(model).__name__} with lazy parameters; run one batch through it first"
            )


def forget_all() -> None:
    """Lets every model be prepared anew."""
    global _remembered
    _remembered = 0
    for known in (_prepared, _serials, _copies):
        known.clear()


def prepared_models() -> list[nn.Module]:
    """The models that were prepared and are still alive, in that order, without wrappers."""
    return list(_prepared)


def numbered_models() -> list[tuple[int, nn.Module]]:
    """The same with their numbers, which are equal on all ranks whatever each has freed already."""
    return [(_serials[model], model) for model in _prepared]


def name_of(parameter: torch.Tensor) -> str:
    """The dotted name of a parameter of a prepared model, after the model's class; empty if there is none."""
    for model in _prepared:
        for name, candidate in model.named_parameters():
            if candidate is parameter:
                return f"{type(model).__name__}.{name}"
    return ""


def prepared_parameters() -> set[int]:
    """The identities of all parameters of prepared models."""
    return {id(parameter) for model in _prepared for parameter in model.parameters()}
