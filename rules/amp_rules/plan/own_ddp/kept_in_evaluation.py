"""Models whose constructor puts all that they run into evaluation mode: frozen encoders of a library, wrapped."""

from __future__ import annotations

import ast

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_CONSTRUCTOR = "__init__"


def is_kept_in_evaluation(own: OwnDdp, value: Value) -> bool:
    """Whether the parts of a model are in evaluation mode from the start, and its class never leaves it.

    What switches the model itself from outside is for the caller to find.
    """
    return value.kind == "instance" and all(_evaluates_its_parts(own, base) for base in value.ref.mro())


def _evaluates_its_parts(own: OwnDdp, info: ClassInfo) -> bool:
    parts, evaluated = set(), set()
    for node in walk(info.facts.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            path = blocks.path_of(node.func.value) or ""
            if node.func.attr == "train":
                return False
            if node.func.attr == "eval" and path.startswith("self.") and _is_in_constructor(own, node):
                evaluated.add(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            located = own.program.locate(node)
            path = blocks.path_of(node) or ""
            if path.startswith("self.") and located is not None and own.program.roles.modules(node, located[1]):
                parts.add(path)
    return bool(parts) and parts <= evaluated


def _is_in_constructor(own: OwnDdp, call: ast.Call) -> bool:
    """Whether a line of ``__init__`` makes a call in any case, outside of all tests."""
    module = own.program.module_of(call)
    if module is None or not isinstance(module.parents[call], ast.Expr):
        return False
    around = module.parents[module.parents[call]]
    return isinstance(around, ast.FunctionDef) and around.name == _CONSTRUCTOR
