"""Assertions on the version of torch that no version fulfils for which the new code is."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from amp_rules.plan.notes import REFUSED, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import COMPARISONS, last_name
from amp_rules.torch.idioms import VERSION_OF_TORCH, VERSION_PARSERS

_VERSIONS = ("2.4.0", "2.13.0")
"""The first and the last for which the new code is."""

_OF_TEXTS = frozenset({"split", "startswith", "strip", "partition", "rpartition"})
_OF_NUMBERS: dict[str, Callable[..., object]] = {"int": int, "float": float, "str": str, "list": list, "tuple": tuple}


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each ``assert torch.__version__.split(".")[0] == "1"``, and for ``if ...: raise`` of that kind."""
    for node, _, scope in program.nodes():
        if not isinstance(node, (ast.Assert, ast.If)):
            continue
        if isinstance(node, ast.If) and not isinstance(node.body[-1], ast.Raise):
            continue
        if any(isinstance(parent, (ast.If, ast.Try)) for parent in blocks.enclosing(scope.module, node)):
            continue
        if VERSION_OF_TORCH in ast.unparse(node.test) and _always(node.test, isinstance(node, ast.If)):
            text = (
                f"`{scope.module.text(node.test)}` ends the script with PyTorch 2.4 and later, which the new "
                "code needs: take the line out"
            )
            yield note(REFUSED, scope.module, node, text)


def _always(test: ast.expr, outcome: bool) -> bool:
    try:
        return all(bool(_value(test, version)) is outcome for version in _VERSIONS)
    except (_Unknown, TypeError, ValueError, LookupError):
        return False


class _Unknown(Exception):
    """What is asked is more than the version of torch."""


class _Version(tuple[int, ...]):
    """A version that can be compared, with a text too."""


def _value(node: ast.expr, version: str) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if ast.unparse(node) == VERSION_OF_TORCH:
        return version
    if isinstance(node, (ast.Tuple, ast.List)):
        kind = tuple if isinstance(node, ast.Tuple) else list
        return kind(_value(item, version) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value(node.operand, version)
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(item, version)) for item in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare):
        return _compared(node, version)
    if isinstance(node, ast.Subscript):
        return _part(node, version)
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(node, version)
    raise _Unknown


def _compared(node: ast.Compare, version: str) -> bool:
    values = [_value(item, version) for item in (node.left, *node.comparators)]
    if any(isinstance(item, _Version) for item in values):
        values = [_parsed(item) for item in values]
    return all(COMPARISONS[type(op)](one, other) for op, one, other in zip(node.ops, values, values[1:], strict=False))


def _part(node: ast.Subscript, version: str) -> object:
    held = _value(node.value, version)
    if not isinstance(held, (str, list, tuple)):
        raise _Unknown
    if not isinstance(node.slice, ast.Slice):
        return held[_number(node.slice)]
    first, last = (None if item is None else _number(item) for item in (node.slice.lower, node.slice.upper))
    return held[first:last]


def _number(node: ast.expr) -> int:
    found = literal(node)
    if not isinstance(found, int):
        raise _Unknown
    return found


def _called(node: ast.Call, version: str) -> object:
    if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TEXTS:
        held = _value(node.func.value, version)
        if isinstance(held, str):
            return getattr(held, node.func.attr)(*(_value(item, version) for item in node.args))
        raise _Unknown
    name = last_name(node.func)
    if isinstance(node.func, ast.Name) and name == "map" and len(node.args) == 2:
        made = _OF_NUMBERS.get(last_name(node.args[0]))
        held = _value(node.args[1], version)
        if made is None or not isinstance(held, (list, tuple)):
            raise _Unknown
        return [made(item) for item in held]
    values = [_value(item, version) for item in node.args]
    if isinstance(node.func, ast.Name) and name in _OF_NUMBERS and len(values) == 1:
        return _OF_NUMBERS[name](values[0])
    if name in VERSION_PARSERS and len(values) == 1:
        return _parsed(values[0])
    raise _Unknown


def _parsed(value: object) -> _Version:
    if isinstance(value, _Version):
        return value
    if not isinstance(value, str):
        raise _Unknown
    found = re.match(r"\d+(?:\.\d+)*", value)
    if found is None:
        raise _Unknown
    return _Version(int(item) for item in found[0].split("."))
