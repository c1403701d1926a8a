"""Names of methods that a function is given, and calls by: ``getattr(hook, name)(self)``."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts


def name_given(node: ast.AST, info: FunctionFacts) -> str | None:
    """The parameter whose value is the name of the method: ``name`` of ``getattr(hook, name)(self)``."""
    getter = node.func if isinstance(node, ast.Call) else None
    if not (isinstance(getter, ast.Call) and blocks.path_of(getter.func) == "getattr" and len(getter.args) > 1):
        return None
    name = getter.args[1]
    if not isinstance(name, ast.Name) or name.id not in info.parameters:
        return None
    rebound = any(isinstance(item, ast.stmt) and name.id in blocks.writes(item) for item in ast.walk(info.node))
    return None if rebound else name.id


def has_one_name(method: FunctionFacts) -> bool:
    """Whether a method stands in its class under the name of its definition alone."""
    return method.cls is not None and not any(
        isinstance(item, ast.Assign) and blocks.path_of(item.value) == method.name for item in method.cls.node.body
    )
