"""Calls of what is looked up by a text: ``getattr(importlib.import_module(name), kind)(**settings)``."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.syntax import last_name

_MANY = 12
"""Functions of other names; a table of models or losses that a script calls has fewer in one file."""


def may_run_anything(program: Program, call: ast.Call) -> bool:
    """Whether a call runs one of many functions, for all that is known: what one of them is told says nothing."""
    name = last_name(call.func)
    others = {info.node for info in program.flow.callees(call) if info.name != name}
    return len(others) > _MANY
