"""What computes a loss and comes out of a file as a whole, or of another script: which model it is, is not known."""

from __future__ import annotations

import ast

from amp_rules.plan import unresolved
from amp_rules.plan.file_names import line_of
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.file_access import UNPICKLERS


def what_is_loaded(program: Program, site: Backward, computing: ast.AST) -> str:
    """What of a file the statement that computes a loss calls, itself or in a function, for the report."""
    inside = set(walk(computing))
    bodies = program.called_from(inside)
    for call, body, scope in program.calls():
        if call not in inside and body not in bodies:
            continue
        # No method of what is loaded: ``weights.mean()``.
        is_kept = isinstance(call.func, (ast.Name, ast.Attribute)) and program.flow.key(call.func, scope) is not None
        for value in program.flow.values(call.func, scope):
            while value.kind == "attribute" and value.receiver is not None and is_kept:
                value = value.receiver  # ``run.model``, where ``run`` is what the file holds
            module = program.module_of(value.site) if value.ref in UNPICKLERS and value.site is not None else None
            if module is None or not isinstance(value.site, ast.Call):
                continue
            called = f"`{scope.module.text(call.func)}` ({line_of(program, scope.module, call.lineno, site.module)})"
            loading = f"`{module.text(value.site.func)}` ({line_of(program, module, value.site.lineno, site.module)})"
            loss = site.module.text(site.loss)
            return f"`{loss}` is computed by {called}, of which nothing is known: it comes out of {loading}"
    return ""


def what_is_given(program: Program, site: Backward, computing: ast.AST) -> str:
    """What is called on the way to a loss, and is given by a script that is not part of the program, for the report."""
    for statement in _on_the_way(site, computing):
        for node in walk(statement):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if program.flow.values(node.func, site.scope):
                continue
            outside = unresolved.given_outside(program, node.func, site.scope, site.body)
            if outside:
                line = line_of(program, site.module, node.lineno, site.module)
                called = f"`{site.module.text(node.func)}` ({line})"
                name = node.func.id
                return f"`{site.module.text(site.loss)}` is computed by {called}, and `{name}` is not known{outside}"
    return ""


def forward_of_unknown(computing: ast.AST) -> ast.Attribute | None:
    """The ``forward`` that a statement calls, where that is no model that is known: ``part.model.forward(x)``."""
    for node in walk(computing):
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(func, ast.Attribute) and func.attr == "forward" and blocks.path_of(func.value) is not None:
            return func
    return None


def _on_the_way(site: Backward, computing: ast.AST) -> list[ast.AST]:
    """The statement that computes a loss, and the assignments of its function that it has its values of."""
    assigned = [node for node in blocks.walk_body(site.body) if isinstance(node, ast.Assign)]
    found = [computing]
    for statement in found:
        read = {node.id for node in walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        found += [item for item in assigned if item not in found and read & blocks.writes(item)]
    return found
