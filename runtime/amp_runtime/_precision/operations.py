"""The names of torch's operations, and the Python functions that each name stands for."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

Function = Callable[..., Any]

_PREFIXES = ("torch.nn.functional.", "nn.functional.", "functional.", "F.", "torch.Tensor.", "Tensor.", "torch.")
_NESTED = {"linalg": torch.linalg, "fft": torch.fft, "special": torch.special}
_OPERATORS = {"truediv": "div", "rtruediv": "div", "itruediv": "div", "rdiv": "div", "idiv": "div"}
_OPERATORS |= {prefix + name: name for prefix in "ri" for name in ("add", "sub", "mul", "pow", "matmul")}


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


def operation(name: str, caller: str, argument: str) -> str:
    """The plain name of an operation: ``exp`` for ``torch.exp``, ``Tensor.exp_`` and ``exp``.

    Raises:
        ValueError: torch has no such operation; the message names ``caller``, ``argument`` and similar names.
    """
    plain = _plain(name) if isinstance(name, str) else ""
    if plain in _known():
        return plain
    similar = difflib.get_close_matches(plain, sorted(_known()), n=3)
    hint = f"did you mean {' or '.join(map(repr, similar))}?" if similar else "allowed: names of torch functions"
    raise ValueError(f"{caller} got {name!r} in {argument}, which is no operation of torch; {hint}")


def operations(
    white: Iterable[str] | None, black: Iterable[str] | None, caller: str
) -> tuple[frozenset[str], frozenset[str]]:
    """The plain names in ``custom_white_list`` and ``custom_black_list``.

    Raises:
        TypeError: a list is a single string or no iterable of names.
        ValueError: a name is unknown, or in both lists.
    """
    whites = _names(white, caller, "custom_white_list")
    blacks = _names(black, caller, "custom_black_list")
    if both := sorted(whites & blacks):
        raise ValueError(
            f"{caller} got {both[0]!r} in custom_white_list and in custom_black_list; allowed: one of them"
        )
    return whites, blacks


def name_of(namespace: Any, attribute: str) -> str | None:
    """The operation that ``namespace.attribute`` stands for, where the namespace is torch's; else ``None``."""
    if namespace in (torch, F, torch.Tensor):
        name = _plain(attribute)
    else:
        found = [prefix for prefix, module in _NESTED.items() if namespace is module]
        name = f"{found[0]}.{attribute}" if found else ""
    return name if name in _known() else None


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


def _names(given: Iterable[str] | None, caller: str, argument: str) -> frozenset[str]:
    if given is None:
        return frozenset()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{caller} got {argument}={given!r}; allowed: a set or list of names, such as {{'softmax'}}")
    return frozenset(operation(name, caller, argument) for name in given)


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        return _OPERATORS.get(name, name)
    return name.removesuffix("_")


def _attributes(name: str) -> list[str]:
    operators = [name, *(alias for alias, plain in _OPERATORS.items() if plain == name)]
    operators += [prefix + name for prefix in "ri"]
    return [name, name + "_", *sorted({f"__{operator}__" for operator in operators})]


def _spaces(name: str) -> tuple[Any, ...]:
    prefix, dot, _ = name.partition(".")
    return (_NESTED[prefix],) if dot else (torch, F, torch.Tensor, torch._C._nn)


@functools.cache
def _known() -> frozenset[str]:
    found: set[str] = set()
    overridable = torch.overrides.get_overridable_functions()
    for space in (torch, torch.functional, F, torch.Tensor):
        found.update(_plain(name) for name, _ in _members(space, overridable[space]))
    for prefix, space in _NESTED.items():
        found.update(f"{prefix}.{name}" for name, _ in _members(space, overridable[space]))
    return frozenset(name for name in found if not name.startswith("_"))


def _members(space: Any, functions: Iterable[Function]) -> Iterator[tuple[str, Function]]:
    allowed = set(functions)
    for name, value in inspect.getmembers(space, callable):
        if getattr(value, "amp_original", value) in allowed and (not name.startswith("_") or name.endswith("__")):
            yield name, value
