"""Where autocast is turned on or off around a function: by its decorators, and by helpers that enter a region."""

from __future__ import annotations

import ast

from amp_rules.source.facts import Definitions, FunctionFacts
from amp_rules.source.syntax import walk
from amp_rules.torch.mixed_precision import is_off


def by_decorators(function: FunctionFacts, project: Definitions) -> bool | None:
    """Whether decorators turn autocast on or off for a function; None where they say nothing of it."""
    for name, node in function.decorators:
        last = name.rpartition(".")[2]
        if last == "autocast":
            keywords = node.keywords if isinstance(node, ast.Call) else []
            given = [*(node.args if isinstance(node, ast.Call) else []), *(item.value for item in keywords)]
            return not any(isinstance(item, ast.Constant) and item.value is False for item in given)
        if last == "custom_fwd" and isinstance(node, ast.Call):
            if any(item.arg == "cast_inputs" for item in node.keywords):
                return False
        elif name and last not in _OF_PYTHON:
            found = function.module.functions.get(name) or project.resolve(function.module, name)
            if isinstance(found, FunctionFacts) and found.node is not function.node and turns_off(found):
                return False
    return None


_OF_PYTHON = frozenset(
    "property staticmethod classmethod abstractmethod cached_property contextmanager wraps lru_cache setter".split()
)


def turns_off(function: FunctionFacts) -> bool:
    """Whether a function calls what it is given, or gives way, in a region without autocast.

    The first is what decorators do, the second what context managers do.
    """
    rows = function.module.module.lines[function.node.lineno - 1 : function.node.end_lineno]
    if not any("autocast" in row for row in rows):
        return False
    return any(
        isinstance(item, (ast.With, ast.AsyncWith))
        and any(_is_off(function, entered.context_expr) for entered in item.items)
        and any(_hands_over(function, inner) for statement in item.body for inner in walk(statement))
        for item in function.nodes
    )


def _hands_over(function: FunctionFacts, node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in function.parameters
    return isinstance(node, ast.Yield)


def _is_off(function: FunctionFacts, region: ast.expr) -> bool:
    return isinstance(region, ast.Call) and is_off(function.module.dotted(region.func) or "", region)
