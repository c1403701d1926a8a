"""Whether a number comes of the length of a loader: such a number is that of a process's share already."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import walk

MAX_VARIABLES = 4
"""Variables through which a number is followed to the length of a loader."""


def comes_of_loader(program: Program, processes: Distribution, node: ast.expr, scope: Scope) -> bool:
    """Whether a number does, or what a function works out."""
    values = program.flow.values(node, scope)
    is_function = bool(values) and all(value.kind == "function" for value in values)
    if not is_function and of_loader(program, processes, node, scope):
        return True
    for value in values:
        if value.kind == "function":
            inner = program.flow.scopes[value.ref.node]
            begins = set(_begins_at(value.ref.node))
            body = [value.ref.node.body] if isinstance(value.ref.node, ast.Lambda) else value.ref.body
            parts = (part for item in body for part in walk(item) if isinstance(part, ast.expr))
            if any(part not in begins and of_loader(program, processes, part, inner, at=begins) for part in parts):
                return True
    return False


def _begins_at(function: ast.AST) -> Iterator[ast.AST]:
    """Yield where the count of a function of the step begins, which says nothing of its length: ``step += first``."""
    given = {item.arg for item in arguments_of(function)} if isinstance(function, FunctionNode) else set()
    for node in walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and blocks.path_of(node.target) in given:
            yield from walk(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if blocks.path_of(one) in given:
                    yield from walk(other)


def of_loader(
    program: Program,
    processes: Distribution,
    node: ast.AST,
    scope: Scope,
    depth: int = 0,
    *,
    at: Collection[ast.AST] = (),
) -> bool:
    """Whether a number comes of the length of a loader or of its dataset, but for where it begins ``at``."""
    lengths = processes.whole_lengths
    for part in walk(node):
        if not isinstance(part, ast.expr) or part in at:
            continue
        if lengths.count(part, scope) is not None or is_length(lengths, part, scope):
            return True
        if _is_of_kept(lengths, part, scope):
            return True
        if isinstance(part, ast.Subscript) and depth < MAX_VARIABLES:
            given = lengths.entries.get(name, ()) if isinstance(name := literal(part.slice), str) else ()
            if any(of_loader(program, processes, value, where, depth + 1) for value, where in given):
                return True
        if isinstance(part, (ast.Name, ast.Attribute)) and depth < MAX_VARIABLES:
            key = program.flow.key(part, scope)
            for value, where in lengths.assigned.get(key, ()) if key is not None else ():
                if of_loader(program, processes, value, where, depth + 1):
                    return True
    return False


def is_length(lengths: WholeLengths, node: ast.AST, scope: Scope) -> bool:
    """Whether an expression is ``len(loader)``, or ``len(loader.sampler)``."""
    if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and len(node.args) == 1):
        return False
    return lengths.holds(node.args[0], scope) or lengths.is_sampler(node.args[0], scope)


def _is_of_kept(lengths: WholeLengths, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is ``len(batches)`` of all that a loader gives: ``batches = [*loader]``."""
    if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and len(node.args) == 1):
        return False
    key = lengths.program.flow.key(node.args[0], scope)
    given = lengths.assigned.get(key, ()) if key is not None else ()
    return any(_keeps_all(lengths, value, where) for value, where in given)


def _keeps_all(lengths: WholeLengths, value: ast.expr, scope: Scope) -> bool:
    if isinstance(value, ast.ListComp) and len(value.generators) == 1 and not value.generators[0].ifs:
        return lengths.holds(value.generators[0].iter, scope)
    if isinstance(value, ast.List) and len(value.elts) == 1 and isinstance(value.elts[0], ast.Starred):
        return lengths.holds(value.elts[0].value, scope)
    is_list = isinstance(value, ast.Call) and blocks.path_of(value.func) in ("list", "tuple")
    return is_list and len(value.args) == 1 and lengths.holds(value.args[0], scope)  # type: ignore[attr-defined]
