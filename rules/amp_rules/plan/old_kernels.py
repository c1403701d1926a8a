"""Functions of models that call kernels which the version of a package that a project pins has for FP32 alone."""

from __future__ import annotations

import ast

from amp_rules.plan.refused_types import Refusing
from amp_rules.roles.in_regions import bodies_in
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source.pinned_versions import pinned_version
from amp_rules.source.scopes import Scope
from amp_rules.torch.half_precision import DGL_WITH_HALF, PASSES_MESSAGES


def is_dgl_without_half(program: Program) -> bool:
    """Whether a project pins a version of DGL that refuses half."""
    if not any("dgl" in module.source.text for module in program.flow.modules):
        return False
    version = pinned_version(program.project, "dgl")
    return version is not None and version < DGL_WITH_HALF


def passing_messages(program: Program, runs: list[StatementRun], full_precision: list[StatementRun]) -> list[Refusing]:
    """The functions within regions that pass messages by DGL's own kernels, where the pinned version refuses half.

    They compute in FP32 as a whole: what a graph keeps under a name may have come from anywhere in the function.
    """
    if not is_dgl_without_half(program):
        return []
    found = []
    for body in bodies_in(program, runs) - bodies_in(program, full_precision):
        info = program.function_of(body)
        if info is None or not isinstance(info.node, ast.FunctionDef) or info.is_generator or info.is_property:
            continue
        scope = program.flow.scopes[info.node]
        calls = (node for node in program.nodes_of(body) if isinstance(node, ast.Call))
        call = next((node for node in calls if _runs_kernels(program, node, scope)), None)
        if call is not None:
            found.append(Refusing(info, scope.module.text(call.func)))
    return sorted(found, key=lambda item: item.info.place)


def _runs_kernels(program: Program, call: ast.Call, scope: Scope) -> bool:
    """``g.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))``, ``edge_softmax(g, scores)``."""
    if any(name.startswith("dgl.") and name.endswith(".edge_softmax") for name in program.callee_names(call, scope)):
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in PASSES_MESSAGES:
        return False
    given = [item for item in call.args if isinstance(item, ast.Call)]
    return any(name.startswith("dgl.function.") for item in given for name in program.callee_names(item, scope))
