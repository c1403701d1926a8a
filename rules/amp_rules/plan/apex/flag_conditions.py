"""Simplifying conditions in which some names are known to be true or false."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.installed import answer
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

Known = dict[tuple[Scope, str], bool]


def simplified(file: ApexFile, node: ast.expr, known: Known) -> bool | str:
    """The value of a condition where it is settled, else the source of what is left of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name):
        value = known.get((file.references.scope_of(node).owner(node.id), node.id))
        return node.id if value is None else value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = simplified(file, node.operand, known)
        if isinstance(inner, bool):
            return not inner
        return f"not {_grouped(inner, node.operand)}"
    told = answer(file.names, node)
    if told is not None:
        return told
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _is_none(node.comparators[0]):
        if isinstance(node.left, (ast.Name, ast.Call)) and simplified(file, node.left, known) is True:
            return isinstance(node.ops[0], ast.IsNot)
    if isinstance(node, ast.BoolOp):
        return _bool_op(file, node, known)
    return file.source(node)


def emptied(file: ApexFile, statement: ast.stmt) -> ast.stmt:
    """The statement to take out: a condition that holds nothing else goes too."""
    while True:
        where = blocks.place(file.module, statement)
        if len(where.suite) > 1 or not isinstance(where.parent, ast.If) or where.parent.orelse:
            return statement
        if any(isinstance(item, ast.Call) for item in walk(where.parent.test)):
            return statement
        holder = file.module.parents[where.parent]
        if isinstance(holder, ast.If) and where.parent in holder.orelse:
            return statement
        statement = where.parent


def _bool_op(file: ApexFile, node: ast.BoolOp, known: Known) -> bool | str:
    decisive = isinstance(node.op, ast.Or)
    rest: list[str] = []
    settled = False
    for value in node.values:
        part = simplified(file, value, known)
        if part is decisive:
            # What stands before it would still run; a condition without calls does nothing else.
            return decisive
        settled = settled or part != file.source(value)
        if isinstance(part, str):
            rest.append(_grouped(part, value))
    if settled and _excludes(rest):
        return decisive
    if len(rest) > 1:
        return (" or " if decisive else " and ").join(rest)
    return rest[0] if rest else not decisive


def _excludes(parts: list[str]) -> bool:
    """Whether one part is the opposite of another: ``not fp16 or fp16`` holds, whatever the name holds."""
    return any(_is_path(part) and f"not {part}" in parts for part in parts)


def _grouped(text: str, node: ast.expr) -> str:
    if _is_path(text) or text.startswith("("):
        return text
    return f"({text})" if isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda)) else text


def _is_path(text: str) -> bool:
    """``fp16``, ``self.args.fp16``."""
    return all(part.isidentifier() for part in text.split("."))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
