"""Walking syntax trees, several times as fast as :mod:`ast` does it: contexts and operators are left out.

:func:`ast.walk` spends most of its time on the fields that hold names and on the shared nodes for ``Load`` and ``Add``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
"""What the comparisons of two values do that say which one is greater, or whether they are equal."""

COMPARISONS = ORDERS | {
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
"""Those, and whether one value is among others."""

_LEAVES = frozenset(
    """
    ctx op ops id attr arg name kind type_comment module level asname conversion simple tag rest kwd_attrs
    """.split()
)


class _Fields(dict[type, tuple[str, ...]]):
    """The fields of each class of nodes that can hold nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _LEAVES)
        self[kind] = found
        return found


_FIELDS = _Fields()


_MIXED = frozenset((ast.Dict, ast.arguments, ast.Global, ast.Nonlocal))
"""Classes with lists that hold other things than nodes: names, or None where something was left out."""


_BELOW: dict[type, Callable[[Any], list[ast.AST]]] = {
    ast.Name: lambda node: [],
    ast.Constant: lambda node: [],
    ast.Attribute: lambda node: [node.value],
    ast.Call: lambda node: [node.func, *node.args, *node.keywords],
    ast.keyword: lambda node: [node.value],
    ast.Expr: lambda node: [node.value],
    ast.Assign: lambda node: [*node.targets, node.value],
    ast.Subscript: lambda node: [node.value, node.slice],
    ast.BinOp: lambda node: [node.left, node.right],
    ast.Compare: lambda node: [node.left, *node.comparators],
    ast.Tuple: lambda node: [*node.elts],
    ast.List: lambda node: [*node.elts],
    ast.If: lambda node: [node.test, *node.body, *node.orelse],
}
"""What stands below the nodes that nearly all of a tree is made of."""


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below ``node``, in the order of the text wherever Python keeps it."""
    below = _BELOW.get(node.__class__)
    if below is not None:
        return below(node)
    found: list[ast.AST] = []
    for name in _FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += value
        elif isinstance(value, ast.AST):
            found.append(value)
    if node.__class__ in _MIXED:
        return [item for item in found if isinstance(item, ast.AST)]
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and all nodes below it, level by level."""
    found = [node]
    for current in found:
        yield current
        # Most nodes are names and constants, which hold none: they are not worth a call.
        if _FIELDS[current.__class__]:
            found += children(current)


def own_variables(node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> set[str]:
    """The variables of a comprehension, which are its own: those of the same names around it are others."""
    return {part.id for item in node.generators for part in walk(item.target) if isinstance(part, ast.Name)}


def values_given(call: ast.Call) -> list[ast.expr]:
    """All that a call is given, by place and by name."""
    return [*call.args, *(item.value for item in call.keywords)]


def own_name(node: ast.AST | None) -> str:
    """``c`` of ``a.b.c``, and of ``c``; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def called_name(node: ast.expr) -> str:
    """The own name of what is called or applied: ``no_grad`` of ``torch.no_grad()``, and of ``torch.no_grad``."""
    return own_name(node.func if isinstance(node, ast.Call) else node)


def is_super(node: ast.AST) -> bool:
    """Whether this is a call of ``super``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def last_name(node: ast.AST | None) -> str:
    """``c`` of ``a.b.c``, of ``c`` and of ``c[0]``; empty for anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return own_name(node)


def names_written(node: ast.AST) -> Iterator[str]:
    """The names that a node writes, as code or as a text: ``__all__``, a table of names."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield node.name.rpartition(".")[2]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.rpartition(".")[2]


def spelling(node: ast.AST) -> str | None:
    """``a.b.c`` as it is written, or None for anything but names and attributes."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def is_text(node: ast.expr) -> bool:
    """Whether an expression is certainly a string: a literal, a filled template, or a sum with one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        return is_text(node.left) or (isinstance(node.op, ast.Add) and is_text(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join"):
        return is_text(node.func.value)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_none(node: ast.AST | None) -> bool:
    """``None`` as it is written."""
    return isinstance(node, ast.Constant) and node.value is None


def conjuncts(test: ast.expr) -> list[ast.expr]:
    """What a test asks for all at once; a test that asks for one thing alone."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def whole_of(node: ast.AST) -> ast.expr | None:
    """``args`` of ``vars(args)`` and of ``args.__dict__``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars" and node.args:
        return node.args[0]
    return node.value if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def in_pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the variables of ``path, best = "best.pt", 0.0``, each with its own; another assignment as it is."""
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        items = [*target.elts, *value.elts]
        if len(value.elts) == len(target.elts) and not any(isinstance(item, ast.Starred) for item in items):
            for one, given in zip(target.elts, value.elts, strict=True):
                yield from in_pairs(one, given)
            return
    yield target, value
