"""What computes a loss and comes out of a file as a whole: whether it is a model, and which, is not known."""

from __future__ import annotations

import ast

from amp_rules.plan.file_names import line_of
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
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
