"""Calls of what is looked up by a text: ``getattr(importlib.import_module(name), kind)(**settings)``."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name

_MANY = 12
"""Functions of other names; a table of models or losses that a script calls has fewer in one file."""


def may_run_anything(program: Program, call: ast.Call) -> bool:
    """Whether a call runs one of many functions, for all that is known: what one of them is told says nothing."""
    name = last_name(call.func)
    others = {info.node for info in program.flow.callees(call) if info.name != name}
    return len(others) > _MANY


def is_only_looked_up(program: Program, module: Module, node: ast.AST) -> bool:
    """Whether a place is in a function that such calls alone may run: nothing else calls it, or names it."""
    info = program.function_of(blocks.body_of(module, node))
    if info is None or info.receiver is not None or info.decorator_list:
        return False
    callers = program.flow.callers(info)
    return bool(callers) and all(may_run_anything(program, item.call) for item in callers)
