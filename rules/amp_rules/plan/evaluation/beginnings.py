"""Where what a loop adds up begins with 0, or with an empty list, on the way to the loop."""

from __future__ import annotations

import ast
from typing import Literal

from amp_rules.plan.evaluation.assignments import Unclear
from amp_rules.plan.evaluation.meters import Meter, is_reset
from amp_rules.plan.training_loops import variable
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.torch import evaluating

Kind = Literal["number", "numbers", "list"]

_MOVING = frozenset({"to", "cuda", "cpu", "double", "float", "long", "int", "item"})
"""Methods that leave zeros zeros."""


class Beginnings:
    """What stands before one loop, within the loop around it.

    Args:
        program: the program.
        loop: the loop.
    """

    def __init__(self, program: Program, loop: Site) -> None:
        self._program = program
        self._loop = loop
        self._before = [
            item
            for suite, index in blocks.suites_around(loop.module, loop.statement)
            for item in reversed(suite[:index])
        ]

    def kind_of(self, path: str, adding: ast.AST) -> Kind:
        """How a variable begins.

        Raises:
            Unclear: it does not begin anew before the loop, with 0 or an empty list.
        """
        base = path.partition("[")[0]
        for item in self._before:
            for target, value in _assigned(item):
                if variable(target) == base:
                    kind = self._kind(value)
                    is_shared = len(getattr(item, "targets", ())) > 1 and not isinstance(value, ast.Constant)
                    if kind is None or is_shared:
                        break
                    return kind
            if blocks.touches(blocks.writes(item), {base}):
                raise Unclear(adding, f"it is not known what `{base}` holds before the loop")
            if not isinstance(item, (ast.Expr, ast.Assign, ast.With, ast.If, ast.For, ast.Import, ast.Global)):
                continue
            if base in blocks.reads(item) and not isinstance(item, ast.Global):
                raise Unclear(adding, f"`{base}` is used before the loop fills it")
        raise Unclear(adding, f"`{base}` is not reset right before the loop")

    def begins_meter(self, path: str, meter: Meter, adding: ast.AST) -> None:
        """Check that an object that averages is new, or was reset, before the loop.

        Raises:
            Unclear: it is not.
        """
        for item in self._before:
            if any(variable(target) == path and isinstance(value, ast.Call) for target, value in _assigned(item)):
                return
            call = item.value if isinstance(item, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "reset":
                if variable(call.func.value) == path:
                    values = self._program.flow.values(call.func.value, self._loop.scope)
                    if values and all(value.kind == "instance" and is_reset(value.ref, meter.sums) for value in values):
                        return
            if any(isinstance(node, ast.Attribute) and variable(node.value) == path for node in blocks.walk_own(item)):
                break
        raise Unclear(adding, f"`{path}` is not reset right before the loop")

    def _kind(self, value: ast.expr) -> Kind | None:
        if isinstance(value, ast.List) and not value.elts:
            return "list"
        if isinstance(value, ast.Call) and not value.args and not value.keywords:
            if self._names(value) == {"builtins.list"}:
                return "list"
        if self._is_zero(value):
            return "number"
        return "numbers" if self._are_zeros(value) else None

    def _is_zero(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Constant):
            return isinstance(value.value, (int, float)) and not isinstance(value.value, bool) and value.value == 0
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Attribute) and value.func.attr in _MOVING:
                return self._is_zero(value.func.value)
            if self._names(value) & evaluating.MADE_OF and len(value.args) == 1:
                inner = value.args[0]
                parts = inner.elts if isinstance(inner, (ast.List, ast.Tuple)) else [inner]
                return bool(parts) and all(map(self._is_zero, parts))
            return not self._moved_to_zeros(value) and bool(self._names(value) & evaluating.ZEROS)
        return False

    @staticmethod
    def _moved_to_zeros(value: ast.Call) -> bool:
        return any(item.arg == "out" for item in value.keywords)

    def _are_zeros(self, value: ast.expr) -> bool:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            lists = [part for part in (value.left, value.right) if isinstance(part, ast.List)]
            return len(lists) == 1 and self._are_zeros(lists[0])
        if isinstance(value, (ast.List, ast.Tuple)):
            return isinstance(value, ast.List) and all(map(self._is_zero, value.elts))
        if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
            return self._is_zero(value.elt)
        if isinstance(value, ast.DictComp):
            return self._is_zero(value.value)
        if isinstance(value, ast.Dict):
            return bool(value.values) and None not in value.keys and all(map(self._is_zero, value.values))
        if isinstance(value, ast.Call) and self._names(value) == {"builtins.list"} and len(value.args) == 1:
            return self._are_zeros(value.args[0])
        return False

    def _names(self, call: ast.Call) -> set[str]:
        return self._program.callee_names(call, self._loop.scope)


def _assigned(item: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment, each with what it is given."""
    if isinstance(item, ast.AnnAssign) and item.value is not None:
        return [(item.target, item.value)]
    if not isinstance(item, ast.Assign):
        return []
    found: list[tuple[ast.expr, ast.expr]] = []
    for target in item.targets:
        if isinstance(target, ast.Tuple) and isinstance(item.value, ast.Tuple):
            if len(target.elts) == len(item.value.elts):
                found.extend(zip(target.elts, item.value.elts, strict=True))
        else:
            found.append((target, item.value))
    return found
