"""What a script takes from a run of a tracking service, whose configuration a sweep can fill."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.torch.writers import RUN_INPUTS, RUNS

_SERVICES = frozenset(name.partition(".")[0] for name in RUNS)
_CURRENT_RUNS = _SERVICES | {f"{name}.run" for name in _SERVICES}
"""What stands for the run that a script is in: the service, or its attribute."""

_CONFIGURED = ("update", "setdefaults")
"""What is asked of a run's configuration by those who only write it down."""


def read_from_run(program: Program) -> str | None:
    """What the script takes from a run, a setting or data, as it stands there; None where it only writes to it.

    A disabled run need not hold the same. In a sweep, which a command line can start for any script, a run keeps the
    sweep's settings whatever the script stores over them, and a disabled one takes what the script stores.
    """
    for node, _, scope in program.nodes():
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if isinstance(node, ast.Attribute) and node.attr in RUN_INPUTS and _is_run(program, node, scope):
            return scope.module.text(node)
        if not _is_configuration(program, node, scope):
            continue
        parent = scope.module.parents[node]
        is_named = _is_kept_by_name(node, parent) or _is_given_to_function(program, node, scope)
        if is_named and _is_external(program, node, scope):
            continue  # the name is looked at wherever it stands
        key = _key(node, parent)
        if key is None:
            return scope.module.text(node)
        is_target = isinstance(scope.module.parents[parent], (ast.Assign, ast.AnnAssign)) and _is_stored(parent)
        if key not in _CONFIGURED and not is_target:
            return scope.module.text(parent)
    return None


def _is_configuration(program: Program, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
    """Whether an expression may be the configuration of a run."""
    is_asked = isinstance(node, ast.Attribute) and node.attr == "config" and _is_run(program, node, scope)
    return is_asked or _is_external(program, node, scope)


def _is_external(program: Program, node: ast.expr, scope: Scope) -> bool:
    return bool(program.names(node, scope) & {f"{run}.config" for run in _CURRENT_RUNS})


def _is_kept_by_name(node: ast.expr, parent: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Assign)
        and parent.value is node
        and all(isinstance(target, ast.Name) for target in parent.targets)
    )


def _is_given_to_function(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a call hands the value to functions of the project, as a parameter of its own."""
    parent = scope.module.parents[node]
    call = scope.module.parents[parent] if isinstance(parent, ast.keyword) and parent.arg is not None else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    called = program.flow.values(call.func, scope)
    return bool(called) and all(value.kind == "function" and _has_plain_head(value.ref.node) for value in called)


def _has_plain_head(function: ast.AST) -> bool:
    return (
        isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not function.decorator_list
        and function.args.vararg is None
        and function.args.kwarg is None
    )


def _key(node: ast.expr, parent: ast.AST) -> str | None:
    """What is asked of a configuration, or put into it; None where that isn't one thing that is known."""
    if isinstance(parent, ast.Attribute):
        return parent.attr
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant):
        return str(parent.slice.value)
    return None


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store)


def _is_run(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """Whether an attribute is asked of a run: `wandb.config`, `run.config`."""
    if any(name.rpartition(".")[0] in _CURRENT_RUNS for name in program.names(node, scope)):
        return True
    return any(value.kind == "object" and value.ref in RUNS for value in program.flow.values(node.value, scope))
