"""Chains around models that a program makes only to save them: ``best = nn.Sequential(net)``."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_chain
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope


def chains(program: Program) -> tuple[set[Value], set[Value]]:
    """The chains that a program makes of layers, ``nn.Sequential(...)``: those used, those only saved."""
    made = {
        value
        for cell in program.flow.cells.values()
        for value in cell.values
        if value.kind == "object" and value.site is not None and is_chain(value)
    }
    if not made:
        return set(), set()
    parts = {
        value
        for info in program.flow.classes.values()
        for values in program.flow.held_by(info.facts.node)
        for value in values
    }
    used = made & (parts | program.trained)
    for node, _, scope in program.nodes():
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            held = (program.flow.values(node, scope) & made) - used
            if held and not _is_saved(program, node, scope):
                used |= held
    return used, made - used


def _is_saved(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a variable is read to get another name or into a file, and for nothing else."""
    parent = scope.module.parents[node]
    if isinstance(parent, ast.Assign):
        return parent.value is node
    return isinstance(parent, ast.Call) and node in parent.args and "torch.save" in program.callee_names(parent, scope)
