"""Where a property of a class of the project is read, which runs its function."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts


def property_reads(program: Program, info: FunctionFacts) -> list[Site]:
    """The attributes whose reading runs a function; none where it is no property."""
    if not info.is_property:
        return []
    found = []
    for node, scope in program.reads_named(info.name):
        if not isinstance(node, ast.Attribute):
            continue
        owners = program.flow.values(node.value, scope)
        if any(value.kind == "instance" and value.ref.find_method(info.name) is info for value in owners):
            found.append(Site(scope.module, scope, blocks.body_of(scope.module, node), node))
    return found
