"""Functions with a backward pass of their own that write into what they are given: a memory of features.

At O1 such a buffer is FP32. At O2 and O3 it is half, as with Apex: a function in FP32 would write into a copy.
"""

from __future__ import annotations

import ast

from amp_rules.plan.apex.stages import initializing
from amp_rules.plan.function_writes import function_writes
from amp_rules.roles.program import Program
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.torch import apex as api

_IN_FP32 = frozenset({"O0", "O1"})
"""Levels at which buffers stay FP32."""


def writes_into_half(program: Program) -> tuple[Module, ast.AST, str] | None:
    """The first place where such a function writes, with its name, in a program whose buffers may be half."""
    if all(_level(call) in _IN_FP32 for call in initializing(program)):
        return None
    for info in program.flow.classes.values():
        for write in function_writes(info):
            return info.facts.module.module, write.node, info.facts.name
    return None


def _level(call: ast.Call) -> object:
    place = api.INITIALIZE_PARAMETERS.index("opt_level")
    given = keyword(call, "opt_level") or (call.args[place] if len(call.args) > place else None)
    return "O1" if given is None else literal(given)
