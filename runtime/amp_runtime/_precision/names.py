"""Names of torch's operations, as scripts give them."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from amp_runtime._precision.operations import NESTED, OPERATORS, Function

_PREFIXES = ("torch.nn.functional.", "nn.functional.", "functional.", "F.", "torch.Tensor.", "Tensor.", "torch.")


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
        found = [prefix for prefix, module in NESTED.items() if namespace is module]
        name = f"{found[0]}.{attribute}" if found else ""
    return name if name in _known() else None


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
        return OPERATORS.get(name, name)
    return name.removesuffix("_")


@functools.cache
def _known() -> frozenset[str]:
    found: set[str] = set()
    overridable = torch.overrides.get_overridable_functions()
    for space in (torch, torch.functional, F, torch.Tensor):
        found.update(_plain(name) for name, _ in _members(space, overridable[space]))
    for prefix, space in NESTED.items():
        found.update(f"{prefix}.{name}" for name, _ in _members(space, overridable[space]))
    return frozenset(name for name in found if not name.startswith("_"))


def _members(space: Any, functions: Iterable[Function]) -> Iterator[tuple[str, Function]]:
    allowed = set(functions)
    for name, value in inspect.getmembers(space, callable):
        if getattr(value, "amp_original", value) in allowed and (not name.startswith("_") or name.endswith("__")):
            yield name, value
