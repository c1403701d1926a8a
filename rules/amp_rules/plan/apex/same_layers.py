"""A layer of Apex that is tried above PyTorch's own of the same arguments: without Apex the two are one."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.guards import Guard
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import last_name, walk

_NAMES = frozenset(
    {"apex.normalization.FusedLayerNorm", "apex.normalization.fused_layer_norm.FusedLayerNorm"},
)
_ONLY_ASK = frozenset({"is_available", "is_scripting", "is_tracing"})
"""What a condition around the attempt may call: it changes nothing."""


def tried_above_the_same(file: ApexFile, guard: Guard) -> ast.stmt | None:
    """The attempt, with the conditions around it alone, above ``return torch.nn.LayerNorm(...)`` that does the same."""
    node = guard.node
    if len(node.body) != 2 or node.orelse or not all(isinstance(item, ast.Pass) for item in node.handlers[0].body):
        return None
    given = node.body[1]
    if not isinstance(node.body[0], ast.ImportFrom) or not isinstance(given, ast.Return):
        return None
    call = given.value
    if not isinstance(call, ast.Call) or not file.references.targets(call.func) & _NAMES:
        return None
    outer: ast.stmt = node
    for parent in blocks.enclosing(file.module, node):
        if not isinstance(parent, ast.If) or parent.body != [outer] or parent.orelse or not _only_asks(parent.test):
            break
        if blocks.is_elif(file.module, parent):
            return None
        outer = parent
    where = blocks.place(file.module, outer)
    behind = where.suite[where.index + 1] if where.index + 1 < len(where.suite) else None
    other = behind.value if isinstance(behind, ast.Return) else None
    if not isinstance(other, ast.Call) or not _is_layer_norm(file.module, other.func):
        return None
    return outer if _arguments(call) == _arguments(other) else None


def _only_asks(test: ast.expr) -> bool:
    calls = [part for part in walk(test) if isinstance(part, ast.Call)]
    return all(last_name(call.func) in _ONLY_ASK and not call.args and not call.keywords for call in calls)


def _is_layer_norm(module: Module, node: ast.expr) -> bool:
    names = names_of(module)
    path = blocks.path_of(node)
    heads = {"torch": ".nn.LayerNorm", "torch.nn": ".LayerNorm", "torch.nn.LayerNorm": ""}
    return path is not None and any(path == f"{names.name_of(head)}{rest}" for head, rest in heads.items())


def _arguments(call: ast.Call) -> list[str]:
    return [*map(ast.dump, call.args), *sorted(map(ast.dump, call.keywords))]
