"""Functions that call a method by a name that they are given: ``def call_hook(self, name)``."""

from __future__ import annotations

import ast

from amp_rules.flow.values import CallSite
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts


def callers_on_the_way(program: Program, info: FunctionFacts, site: Site, method: FunctionFacts) -> list[CallSite]:
    """The callers of a function that can make one of its calls run a method.

    All of them, save where the call finds the method by a name that the function is given, and a caller gives another.
    """
    callers = program.flow.callers(info)
    parameter = _name_given(site.node, info)
    if parameter is None or not _has_one_name(method):
        return callers
    found = []
    for caller in callers:
        given = info.argument_or_default(caller.call, parameter)
        if not isinstance(given, ast.Constant) or given.value == method.name:
            found.append(caller)
    return found


def _name_given(node: ast.AST, info: FunctionFacts) -> str | None:
    """The parameter whose value is the name of the method: ``name`` of ``getattr(hook, name)(self)``."""
    getter = node.func if isinstance(node, ast.Call) else None
    if not (isinstance(getter, ast.Call) and blocks.path_of(getter.func) == "getattr" and len(getter.args) > 1):
        return None
    name = getter.args[1]
    if not isinstance(name, ast.Name) or name.id not in info.parameters:
        return None
    rebound = any(isinstance(item, ast.stmt) and name.id in blocks.writes(item) for item in ast.walk(info.node))
    return None if rebound else name.id


def _has_one_name(method: FunctionFacts) -> bool:
    """Whether a method stands in its class under the name of its definition alone."""
    return method.cls is not None and not any(
        isinstance(item, ast.Assign) and blocks.path_of(item.value) == method.name for item in method.cls.node.body
    )
