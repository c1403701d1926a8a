"""Samplers of the project that repeat samples, so that each process gets as many: ``indices += indices[:missing]``."""

from __future__ import annotations

import ast

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name, walk

_JOINING = frozenset({"cat", "concat", "concatenate", "hstack"})
_DROPS = "drop_last"


def padding_samplers(own: OwnDdp) -> dict[ast.AST, Site]:
    """Where samplers are made whose class repeats the first of its samples, whatever else it is told."""
    padding = {info for info in own.program.flow.classes.values() if _pads(own, info)}
    found: dict[ast.AST, Site] = {}
    for call, body, scope in own.program.calls() if padding else ():
        made = own.program.flow.values(call, scope)
        if made and all(value.kind == "instance" and value.site is call and value.ref in padding for value in made):
            found[call] = Site(scope.module, scope, body, call)
    return found


def _pads(own: OwnDdp, info: ClassInfo) -> bool:
    """Whether the order that a class gives has samples twice, under no switch that may keep it from that."""
    given = info.find_method("__iter__")
    if given is None:
        return False
    init = info.find_method("__init__")
    default = init.defaults.get(_DROPS) if init is not None else None
    module = own.program.module_of(given.node)
    return module is not None and any(
        _adds_part_of_itself(node)
        and not any(
            _is_switch(item.test, drops=literal(default) is not False)
            for item in blocks.enclosing(module, node)
            if isinstance(item, ast.If)
        )
        for node in blocks.walk_body(given.node)
    )


def _is_switch(test: ast.expr, *, drops: bool) -> bool:
    """Whether a test asks for an attribute alone, other than one that is off by default: ``not self.drop_last``."""
    test = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    return isinstance(test, (ast.Name, ast.Attribute)) and (drops or last_name(test) != _DROPS)


def _adds_part_of_itself(node: ast.AST) -> bool:
    """``order += order[:n]``, ``order + order[:n]``, ``order.extend(order[:n])``, ``torch.cat([order, order[:n]])``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return _is_part_of(node.value, blocks.path_of(node.target))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_part_of(node.right, blocks.path_of(node.left))
    if not isinstance(node, ast.Call) or not node.args:
        return False
    first = node.args[0]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "extend":
        return _is_part_of(first, blocks.path_of(node.func.value))
    if last_name(node.func) in _JOINING and isinstance(first, (ast.List, ast.Tuple)) and len(first.elts) > 1:
        return _is_part_of(first.elts[1], blocks.path_of(first.elts[0]))
    return False


def _is_part_of(node: ast.expr, path: str | None) -> bool:
    """Whether an expression is the beginning of what a variable holds, or of it repeated: ``(order * 2)[:n]``."""
    return (
        path is not None
        and isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Slice)
        and node.slice.upper is not None
        and any(
            blocks.path_of(part) == path for part in walk(node.value) if isinstance(part, (ast.Name, ast.Attribute))
        )
    )
