"""The edits of a fix, with the nodes that they are about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.program.head import import_place
from amp_rules.program.modules import Module
from amp_rules.report import Span

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Whatever stands around these, they keep together.
_ATOMS = (
    ast.Attribute,
    ast.Call,
    ast.Constant,
    ast.Dict,
    ast.DictComp,
    ast.JoinedStr,
    ast.List,
    ast.ListComp,
    ast.Name,
    ast.Set,
    ast.SetComp,
    ast.Subscript,
)


@dataclass(frozen=True)
class ResolvedEdit:
    """One edit.

    Attributes:
        kind: as in :class:`TextEdit`; an import has become an insertion.
        node: the expression, statement or definition.
        parent: the node that it is a child of.
        text: what is put in; in parentheses where it would not keep together otherwise.
        gap: whether a blank line belongs between it and the statement below.
    """

    kind: Literal["replace", "insert before", "insert after", "remove", "decorate"]
    node: ast.expr | ast.stmt
    parent: ast.AST
    text: str = ""
    gap: bool = False


def resolve(module: Module, fix: Fix) -> list[ResolvedEdit] | None:
    """Return the edits of a fix, or None if a node is not where the fix says."""
    found: list[ResolvedEdit] = []
    for edit in fix.edits:
        if edit.kind == "import":
            found += _import(module, edit.text)
            continue
        wanted = {"replace": ast.expr, "decorate": Definition}.get(edit.kind, ast.stmt)
        place = next(((node, parent) for node, parent in _at(module, edit.span) if isinstance(node, wanted)), None)
        if place is None:
            return None
        found.append(_resolved(module, edit, *place))
    return found


def imports_already(module: Module, statement: ast.Import | ast.ImportFrom) -> bool:
    """Whether the head of the file gives the same names already."""
    have = {
        (type(node), getattr(node, "module", None), alias.name, alias.asname)
        for node in module.tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    source = getattr(statement, "module", None)
    return all((type(statement), source, alias.name, alias.asname) in have for alias in statement.names)


def _import(module: Module, text: str) -> list[ResolvedEdit]:
    (statement,) = ast.parse(text).body
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        raise ValueError(f"no import: {text!r}")
    if imports_already(module, statement):
        return []
    node, after = import_place(module.tree)
    return [ResolvedEdit("insert after" if after else "insert before", node, module.tree, text, gap=True)]


def _resolved(module: Module, edit: TextEdit, node: ast.AST, parent: ast.AST) -> ResolvedEdit:
    assert isinstance(node, (ast.expr, ast.stmt)) and edit.kind != "import"
    text = edit.text
    if (
        edit.kind == "replace"
        and _falls_apart(text, node, parent)
        and (isinstance(parent, ast.Call) or not _is_enclosed(module, node))
    ):
        text = f"({text})"
    return ResolvedEdit(edit.kind, node, parent, text)


def _falls_apart(text: str, node: ast.expr | ast.stmt, parent: ast.AST) -> bool:
    """Whether an expression needs parentheses where another one stood."""
    new = ast.parse(text, mode="eval").body
    if isinstance(new, _ATOMS):
        # ``1.real`` is no attribute of 1.
        return isinstance(new, ast.Constant) and isinstance(parent, ast.Attribute)
    if text.startswith("(") and isinstance(new, (ast.Tuple, ast.GeneratorExp)):
        return False
    if isinstance(new, ast.BinOp) and isinstance(node, ast.BinOp) and type(new.op) is type(node.op):
        return False
    if isinstance(parent, ast.Call):
        return node is parent.func or isinstance(new, (ast.Tuple, ast.GeneratorExp, ast.NamedExpr))
    loose = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.If, ast.While, ast.keyword)
    return not isinstance(parent, loose) or isinstance(new, (ast.Tuple, ast.NamedExpr, ast.Yield, ast.YieldFrom))


def _is_enclosed(module: Module, node: ast.AST) -> bool:
    """Whether an operand stands in parentheses already."""
    (first, start), (last, end) = module.start(node), module.end(node)
    return module.lines[first - 1][:start].endswith("(") and module.lines[last - 1][end:].startswith(")")


def _at(module: Module, span: Span) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield the nodes at exactly that place with their parents, outer ones first."""
    line = span.start.line
    stack: list[tuple[ast.AST, ast.AST]] = [(child, module.tree) for child in module.tree.body]
    while stack:
        node, parent = stack.pop()
        first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
        if first == line and isinstance(node, (ast.expr, ast.stmt)) and module.span(node) == span:
            yield node, parent
        decorated = bool(getattr(node, "decorator_list", ()))
        if last >= line and (first <= line or decorated):
            stack.extend((child, node) for child in ast.iter_child_nodes(node))
