"""Functions that are given a model for its parts alone: no variable holds it, and nothing runs it."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk


def takers_of_parts(program: Program, value: Value) -> set[ast.AST]:
    """The functions that are given a model where it is made, and ask their parameter for nothing but its parts.

    ``Net(Backbone())`` over ``self.layer1 = base.layer1``. None where one of them may do more with it.
    """
    made = value.site
    located = program.locate(made) if isinstance(made, ast.Call) else None
    return takers_of_argument(program, located[1].module, made) if located is not None and made is not None else set()


def takers_of_argument(program: Program, module: Module, argument: ast.AST) -> set[ast.AST]:
    """The same of the functions that one argument of a call goes to: ``base`` in ``Net(base)``."""
    call = module.parents[argument]
    call = module.parents[call] if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or call.func is argument:
        return set()
    found: set[ast.AST] = set()
    for info in program.flow.callees(call):
        name = next((name for name, given in info.bound(call) if given is argument), None)
        if name is None or not _asks_for_parts_alone(info, name):
            return set()
        found.add(info.node)
    return found


def _asks_for_parts_alone(info: FunctionFacts, name: str) -> bool:
    """Whether a function asks a parameter for attributes, and calls none of them as a method."""
    parents = info.module.module.parents
    for node in walk(info.node):
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        part = parents[node]
        if not isinstance(part, ast.Attribute) or not isinstance(part.ctx, ast.Load):
            return False
        outer = parents[part]
        if isinstance(outer, ast.Call) and outer.func is part:
            return False
    return True
