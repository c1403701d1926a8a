"""Where the variables of a file get their values."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from amp_rules.source.resolver import Names
from amp_rules.source.scopes import FunctionNode, arguments_of

Key = tuple[ast.AST, str]


@dataclass(frozen=True)
class Definition:
    """One place that gives a variable a value.

    Attributes:
        kind: ``value`` of an expression or an item of it, an ``element`` of what a loop goes over, ``sum`` with what
            was there before, a ``parameter``, or something ``other``.
        node: the expression; for a parameter the function.
        path: which item of the value, from the outside in.
    """

    kind: Literal["value", "element", "sum", "parameter", "other"]
    node: ast.AST
    path: tuple[int, ...] = ()


def definitions(names: Names) -> dict[Key, list[Definition]]:
    """All definitions in a file, by the body that owns the variable and its name; attributes of ``self`` by class."""
    found: defaultdict[Key, list[Definition]] = defaultdict(list)

    def put(target: ast.AST, definition: Definition) -> None:
        for key, item in _targets(names, target, definition):
            found[key].append(item)

    for node in names.module.parents:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                put(target, Definition("value", node.value))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            put(node.target, Definition("value", node.value))
        elif isinstance(node, ast.AugAssign):
            put(node.target, Definition("sum", node.value))
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            put(node.target, Definition("element", node.iter))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    put(item.optional_vars, Definition("other", item))
        elif isinstance(node, FunctionNode):
            for argument in arguments_of(node):
                found[(node, argument.arg)].append(Definition("parameter", node))
        elif isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef)) or (
            isinstance(node, ast.ExceptHandler) and node.name
        ):
            for name in _bound(node):
                found[(names.scope_of(node).owner(name).node, name)].append(Definition("other", node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[(names.scope_of(node).owner(node.name).node, node.name)].append(Definition("other", node))
    return found


def attribute_key(names: Names, node: ast.Attribute) -> Key | None:
    """The class and the name behind ``self.x``."""
    if not isinstance(node.value, ast.Name):
        return None
    function = names.scope_of(node).owner(node.value.id).node
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    owner = names.module.parents.get(function)
    first = next(arguments_of(function), None)
    if not isinstance(owner, ast.ClassDef) or first is None or first.arg != node.value.id:
        return None
    return owner, node.attr


def _targets(names: Names, target: ast.AST, item: Definition) -> Iterator[tuple[Key, Definition]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        literal = item.node if item.kind == "value" and not item.path else None
        for index, part in enumerate(target.elts):
            if isinstance(part, ast.Starred) or any(isinstance(other, ast.Starred) for other in target.elts[:index]):
                yield from _targets(names, getattr(part, "value", part), Definition("other", item.node))
            elif (
                isinstance(literal, (ast.Tuple, ast.List))
                and len(literal.elts) == len(target.elts)
                and not any(isinstance(other, ast.Starred) for other in literal.elts)
            ):
                yield from _targets(names, part, Definition("value", literal.elts[index]))
            else:
                yield from _targets(names, part, Definition(item.kind, item.node, (*item.path, index)))
    elif isinstance(target, ast.Name):
        yield (names.scope_of(target).owner(target.id).node, target.id), item
    elif isinstance(target, ast.Attribute):
        key = attribute_key(names, target)
        if key is not None:
            yield key, item


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    return [str(getattr(node, "name"))]  # noqa: B009 (a class or a handler)
