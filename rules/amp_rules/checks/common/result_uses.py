"""What becomes of a result, read off the text of a function: for fixes that are right for some uses only."""

from __future__ import annotations

import ast

from amp_rules.lattice.frame import Frame
from amp_rules.source.facts import FunctionFacts

_SOFTMAX = frozenset({"torch.softmax", "torch.nn.functional.softmax"})


def only_softmax(frame: Frame, call: ast.Call) -> bool:
    """Whether the result of ``call`` goes into one softmax and nowhere else."""
    function = frame.function
    if function is None or call not in function.nodes:
        return False
    parents = function.module.module.parents
    parent = parents.get(call)
    if isinstance(parent, ast.Attribute):
        parent = parents.get(parent)
    if isinstance(parent, ast.Call):
        return _is_softmax_of(frame, parent, call)
    name = _target(call, parent)
    if name is None or not isinstance(parent, ast.stmt):
        return False
    reads = _reads_after(function, name, parent)
    if len(reads) != 1:
        return False
    use = parents.get(reads[0])
    if isinstance(use, ast.Attribute):
        use = parents.get(use)
    return isinstance(use, ast.Call) and _is_softmax_of(frame, use, reads[0])


def _target(call: ast.Call, parent: ast.AST | None) -> str | None:
    """The variable that holds the result from then on."""
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return parent.targets[0].id
    function = call.func
    if isinstance(parent, ast.Expr) and isinstance(function, ast.Attribute) and function.attr.endswith("_"):
        return function.value.id if isinstance(function.value, ast.Name) else None
    return None


def _reads_after(function: FunctionFacts, name: str, statement: ast.stmt) -> list[ast.Name]:
    """The reads of a variable below a statement, until it is assigned anew."""
    loads: list[ast.Name] = []
    stores: list[ast.Name] = []
    last = statement.end_lineno or statement.lineno
    for item in function.nodes:
        if isinstance(item, ast.Name) and item.id == name and item.lineno > last:
            (loads if isinstance(item.ctx, ast.Load) else stores).append(item)
    end = min((item.lineno for item in stores), default=None)
    return [item for item in loads if end is None or item.lineno <= end]


def _is_softmax_of(frame: Frame, call: ast.Call, subject: ast.expr) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute) and function.value is subject:
        return function.attr == "softmax"
    if not call.args or call.args[0] is not subject:
        return False
    if frame.module.dotted(function) in _SOFTMAX:
        return True
    held = function.attr if isinstance(function, ast.Attribute) else ""
    value = frame.variables.get(f"self.{held}")
    return value is not None and value.op == "layer" and (value.sym or "").endswith(".Softmax")
