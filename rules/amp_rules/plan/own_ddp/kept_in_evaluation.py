"""Models whose constructor puts all that normalises by the batch into evaluation mode: frozen encoders, wrapped."""

from __future__ import annotations

import ast

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.batch_norms import BatchNorms
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.batch_norm import names_batch_norm
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import values_given, walk

_CONSTRUCTOR = "__init__"


def is_kept_in_evaluation(own: OwnDdp, value: Value, norms: BatchNorms) -> bool:
    """Whether the parts of a model with batch norm are in evaluation mode from the start, and nothing ends that.

    What switches the model itself from outside is for the caller to find.
    """
    return value.kind == "instance" and all(_evaluates_its_parts(own, value, base, norms) for base in value.ref.mro())


def _evaluates_its_parts(own: OwnDdp, model: Value, info: ClassInfo, norms: BatchNorms) -> bool:
    parts: dict[str, set[Value]] = {}
    evaluated = set()
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
            values = own.program.roles.modules(node, located[1]) if located is not None else set()
            if path.startswith("self.") and values:
                parts.setdefault(path, set()).update(values)
    if not parts or not evaluated:
        return False
    if parts.keys() <= evaluated:
        return True
    if names_batch_norm(walk(info.facts.node)):
        return False
    kept = own.program.with_parts({value for path in evaluated for value in parts.get(path, ())})
    rest = own.program.with_parts({model}) - kept - {model}
    return not any(map(norms.may_be_in, rest)) and not _trains_one_of(own, kept)


def _trains_one_of(own: OwnDdp, kept: set[Value]) -> bool:
    """Whether something puts a part into training mode from outside, with what holds it too."""
    for call, body, scope in own.program.calls():
        if body in own.uncalled or not isinstance(call.func, ast.Attribute) or call.func.attr != "train":
            continue
        if any(literal(item) is False for item in values_given(call)):
            continue
        if own.program.with_parts(own.program.roles.modules(call.func.value, scope)) & kept:
            return True
    return False


def _is_in_constructor(own: OwnDdp, call: ast.Call) -> bool:
    """Whether a line of ``__init__`` makes a call in any case, outside of all tests."""
    module = own.program.module_of(call)
    if module is None or not isinstance(module.parents[call], ast.Expr):
        return False
    around = module.parents[module.parents[call]]
    return isinstance(around, ast.FunctionDef) and around.name == _CONSTRUCTOR
