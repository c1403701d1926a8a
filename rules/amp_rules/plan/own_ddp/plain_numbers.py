"""Which numbers of a function are certainly Python's own: no tensors, and none of NumPy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import walk

_MAX_VARIABLES = 5
"""Variables behind variables; what takes more is taken for a tensor."""
_MAKES_NUMBER = frozenset({"builtins.len", "builtins.int", "builtins.float", "time.time", "time.perf_counter"})
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COUNTS = frozenset({"builtins.range", "builtins.enumerate"})


def is_plain_number(program: Program, node: ast.expr, site: Site, depth: int = _MAX_VARIABLES) -> bool:
    """Whether an expression is a number of Python, whatever it is made of: ``total / len(loader)``."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.UnaryOp):
        return is_plain_number(program, node.operand, site, depth)
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        return isinstance(node.op, _ARITHMETIC) and all(is_plain_number(program, side, site, depth) for side in sides)
    if isinstance(node, ast.Call):
        # ``loss.item()``, ``x.numel()``, ``x.size(0)``: without an argument, a size is one of all dimensions.
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in ("item", "numel") or (method == "size" and len(node.args) == 1):
            return True
        return bool(program.callee_names(node, site.scope) & _MAKES_NUMBER)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and not _is_slice(node.slice)
    return isinstance(node, ast.Name) and depth > 0 and is_plain_variable(program, node.id, site, depth)


def _is_slice(node: ast.expr) -> bool:
    return isinstance(node, (ast.Slice, ast.Tuple))


def is_plain_variable(program: Program, name: str, site: Site, depth: int = _MAX_VARIABLES) -> bool:
    """Whether all that a variable of the function at a place is given is such a number."""
    if site.scope.owner(name).node is not site.body:
        return False
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in site.module.nodes):
        return False
    if isinstance(site.body, FunctionNode) and name in {item.arg for item in arguments_of(site.body)}:
        return False
    found = False
    for node in program.nodes_of(site.body):
        for target, value in _given(node):
            if not any(isinstance(part, ast.Name) and part.id == name for part in walk(target)):
                continue
            found = True
            counted = isinstance(node, ast.For) and _is_count(program, node, name, site)
            itself = isinstance(value, ast.Name) and value.id == name
            if not isinstance(target, ast.Name) or value is None:
                if not counted:
                    return False
            elif not (counted or itself or _is_plain(program, value, name, site, depth - 1)):
                return False
    return found


def _is_plain(program: Program, value: ast.expr, name: str, site: Site, depth: int) -> bool:
    """Whether a value is plain, if the variable that it is made of itself is: ``total = total + loss.item()``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _ARITHMETIC):
        return all(
            (isinstance(side, ast.Name) and side.id == name) or _is_plain(program, side, name, site, depth)
            for side in (value.left, value.right)
        )
    return is_plain_number(program, value, site, depth)


def _given(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield what a statement binds, with the value; None where that is one of several things."""
    if isinstance(node, ast.Assign):
        for item in node.targets:
            yield from blocks.unpacked(item, node.value)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, None
    elif isinstance(node, ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None


def _is_count(program: Program, loop: ast.For, name: str, site: Site) -> bool:
    """Whether a variable is the count of a loop: ``for step, batch in enumerate(loader)``."""
    call = loop.iter
    if not isinstance(call, ast.Call) or not program.callee_names(call, site.scope) & _COUNTS:
        return False
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    return isinstance(first, ast.Name) and first.id == name
