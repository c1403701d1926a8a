"""Outputs of a part that its model drops: what computed them gets no gradients, and DDP has to look for that."""

from __future__ import annotations

import ast

from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program


def drops_outputs(program: Program) -> bool:
    """Whether a model of the program takes several outputs of a part and reads some only: ``mu, _ = self.encoder(x)``.

    Parts of the project alone are looked at: recurrent layers and attention compute all outputs of all parameters.
    """
    for body, scope in program.bodies:
        if not program.is_model_code(body):
            continue
        nodes = program.nodes_of(body)
        read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        for node in nodes:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            names = [
                item.id
                for target in node.targets
                if isinstance(target, (ast.Tuple, ast.List))
                for item in target.elts
                if isinstance(item, ast.Name)
            ]
            called = program.flow.values(node.value.func, scope)
            if set(names) - read and any(value.kind == "instance" and is_module(value) for value in called):
                return True
    return False
