"""The edits of a fix, with the nodes that they are about."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Literal

from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.head import import_place
from amp_rules.source.modules import Module

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


class EditResolver:
    """Finds the nodes that the fixes of one file are about."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def resolve(self, fix: Fix) -> list[ResolvedEdit] | None:
        """Return the edits of a fix, or None if a node is not where the fix says or the new text is no Python."""
        found: list[ResolvedEdit] = []
        try:
            for edit in fix.edits:
                if edit.kind == "import":
                    found += _import(self.module, edit.text)
                    continue
                node = self._node(edit)
                if node is None:
                    return None
                found.append(_resolved(self.module, edit, node))
        except SyntaxError:
            return None
        return found

    def _node(self, edit: TextEdit) -> ast.expr | ast.stmt | None:
        """Return the outermost node of the right kind that is exactly where the edit says."""
        wanted: type[ast.AST] | UnionType = ast.stmt
        if edit.kind in ("replace", "decorate"):
            wanted = ast.expr if edit.kind == "replace" else Definition
        span = edit.span
        nodes = self._by_line.get(span.start.line, ())
        return next((node for node in nodes if isinstance(node, wanted) and self.module.span(node) == span), None)

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each name stands in the file."""
        return uses([self.module.tree])

    @cached_property
    def _by_line(self) -> Mapping[int, list[ast.expr | ast.stmt]]:
        """The nodes by the line on which they begin, outer ones first."""
        found: dict[int, list[ast.expr | ast.stmt]] = {}
        for node in ast.walk(self.module.tree):
            if isinstance(node, (ast.expr, ast.stmt)):
                found.setdefault(node.lineno, []).append(node)
        return found


def uses(trees: Iterable[ast.AST]) -> Counter[str]:
    """How often each name stands in some trees."""
    return Counter(node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))


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


def _resolved(module: Module, edit: TextEdit, node: ast.expr | ast.stmt) -> ResolvedEdit:
    assert edit.kind != "import"
    text, parent = edit.text, module.parents[node]
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
