"""A condition for a block that stands alone below another condition, or above one, joins it: no ``if`` in an ``if``."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Action, Insert, Join, Remove, Unwrap, Wrap
from amp_rules.text.line_width import width_of

_HEAD = "if "


def joined(module: Module, actions: Sequence[Action]) -> list[Action]:
    """The actions, with a condition for each block that needs no ``if`` of its own."""
    return [_joined(module, item, actions) or item if isinstance(item, Wrap) else item for item in actions]


def with_test(node: cst.If, join: Join) -> cst.If:
    """The branch, whose condition is both."""
    own, other = _operand(node.test), _operand(cst.parse_expression(join.test))
    left, right = (other, own) if join.first else (own, other)
    whole = cst.BooleanOperation(left, cst.And(), right)
    space = cst.SimpleWhitespace(" ")
    return node.with_changes(test=whole, whitespace_before_test=space)


def _joined(module: Module, wrap: Wrap, actions: Sequence[Action]) -> Join | None:
    if not wrap.header.startswith(_HEAD) or _is_shared(wrap, actions):
        return None
    test = wrap.header.removeprefix(_HEAD).rstrip(":")
    suite = blocks.place(module, wrap.first).suite
    parent = module.parents.get(wrap.first)
    if isinstance(parent, ast.If) and parent.body == list(suite) and (wrap.first, wrap.last) == (suite[0], suite[-1]):
        edges = ((suite[0], False), (suite[-1], True))
        if _can_join(module, parent, test, actions, last=True) and not _has_company(edges, actions):
            return Join(parent, test)
    if isinstance(wrap.first, ast.If) and wrap.first is wrap.last and _can_join(module, wrap.first, test, actions):
        return Join(wrap.first, test, first=True)
    return None


def _is_shared(wrap: Wrap, actions: Sequence[Action]) -> bool:
    """Whether another block is put around the same statements: which is the outer one, their order says."""
    return any(
        isinstance(item, Wrap) and item is not wrap and item.first is wrap.first and item.last is wrap.last
        for item in actions
    )


def _has_company(edges: tuple[tuple[ast.stmt, bool], ...], actions: Sequence[Action]) -> bool:
    """Whether lines are put at the edges of a suite, outside of what the condition is for."""
    return any(isinstance(item, Insert) and (item.statement, item.after) in edges for item in actions)


def _can_join(module: Module, branch: ast.If, test: str, actions: Sequence[Action], *, last: bool = False) -> bool:
    """Whether a condition has room beside that of a branch, which has no ``else`` and stays where it is."""
    if branch.orelse or any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(branch.test)):
        return False
    if any(isinstance(item, (Remove, Unwrap)) and item.statement is branch for item in actions):
        return False
    (line, _), (end, _) = module.start(branch), module.end(branch.test)
    if not last and line != end:
        return False  # its other lines stand below its first
    row = module.lines[(end if last else line) - 1]
    return len(row.rstrip()) + len(f" and {test}") <= width_of(module)


def _operand(node: cst.BaseExpression) -> cst.BaseExpression:
    """What stands beside ``and``, in parentheses where it needs them, and without where it has some on one line."""
    is_loose = isinstance(node, (cst.IfExp, cst.Lambda, cst.NamedExpr)) or (
        isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or)
    )
    if is_loose:
        return node if node.lpar else node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    is_whole = isinstance(node, (cst.Tuple, cst.GeneratorExp)) or "\n" in cst.Module([]).code_for_node(node)
    return node if is_whole else node.with_changes(lpar=[], rpar=[])
