"""Functions that call a method by a name that they are given: ``def call_hook(self, name)``."""

from __future__ import annotations

import ast

from amp_rules.flow.values import CallSite
from amp_rules.roles.given_names import has_one_name, name_given
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import FunctionFacts


def callers_on_the_way(program: Program, info: FunctionFacts, site: Site, method: FunctionFacts) -> list[CallSite]:
    """The callers of a function that can make one of its calls run a method.

    All of them, save where the call finds the method by a name that the function is given, and a caller gives another.
    """
    callers = program.flow.callers(info)
    parameter = name_given(site.node, info)
    if parameter is None or not has_one_name(method):
        return callers
    found = []
    for caller in callers:
        given = info.argument_or_default(caller.call, parameter)
        if not isinstance(given, ast.Constant) or given.value == method.name:
            found.append(caller)
    return found
