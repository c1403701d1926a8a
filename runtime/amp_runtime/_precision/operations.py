"""The Python functions that each name of an operation of torch stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

Function = Callable[..., Any]

NESTED = {"linalg": torch.linalg, "fft": torch.fft, "special": torch.special}
OPERATORS = {"truediv": "div", "rtruediv": "div", "itruediv": "div", "rdiv": "div", "idiv": "div"}
OPERATORS |= {prefix + name: name for prefix in "ri" for name in ("add", "sub", "mul", "pow", "matmul")}


class Form(NamedTuple):
    """One function of an operation.

    Attributes:
        function: what a caller finds in torch's namespaces, perhaps a registered function's wrapper.
        original: torch's own function behind it.
        in_place: whether it writes into its first argument.
    """

    function: Function
    original: Function
    in_place: bool


def forms(name: str) -> Iterator[Form]:
    """Every function of an operation: in ``torch``, ``torch.nn.functional`` and ``Tensor``, operators included."""
    for attribute in _attributes(name):
        in_place = attribute.endswith("_") and (not attribute.endswith("__") or attribute.startswith("__i"))
        for space in _spaces(name):
            function = getattr(space, attribute.rpartition(".")[2], None)
            if callable(function):
                original = getattr(function, "amp_original", function)
                yield Form(original, original, in_place)
                if function is not original:
                    yield Form(function, original, in_place)


def attribute_names(name: str) -> tuple[str, ...]:
    """How code spells an operation, without what stands before the dot."""
    return tuple(attribute.rpartition(".")[2] for attribute in _attributes(name))


def python_functions() -> Iterator[Form]:
    """Torch's functions written in Python that hand themselves to a mode."""
    for space in (F, torch.functional, torch.Tensor):
        for function in list(vars(space).values()):
            original = getattr(function, "amp_original", function)
            code = getattr(original, "__code__", None)
            if code is not None and any(name.startswith("has_torch_function") for name in code.co_names):
                yield Form(original, original, False)
                if function is not original:
                    yield Form(function, original, False)


def _attributes(name: str) -> list[str]:
    operators = [name, *(alias for alias, plain in OPERATORS.items() if plain == name)]
    operators += [prefix + name for prefix in "ri"]
    return [name, name + "_", *sorted({f"__{operator}__" for operator in operators})]


def _spaces(name: str) -> tuple[Any, ...]:
    prefix, dot, _ = name.partition(".")
    return (NESTED[prefix],) if dot else (torch, F, torch.Tensor, torch._C._nn)
