"""Models whose outputs other models are given, and nothing else: a generator's images, which are no probabilities."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope

_SHOWING = ("torchvision.utils.", "torchvision.transforms.", "matplotlib.", "builtins.print", "builtins.len")
_SAME = frozenset({"detach", "data", "clone", "cpu", "to", "view", "reshape", "mul", "add", "shape", "size"})


def only_feeds_models(program: Program, model: Value) -> bool:
    """Whether each output of a model goes to another model, or is shown, as far as its name is read."""
    fed = False
    for call, body, scope in program.calls_of_model(model):
        if _goes_to_model(program, scope, call, model):
            fed = True
            continue
        statement = blocks.statement_of(scope.module, call)
        if not isinstance(statement, ast.Assign) or _outermost(scope.module, call) is not statement.value:
            return False
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            return False
        for node in program.nodes_of(body):
            if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load):
                if _goes_to_model(program, scope, node, model):
                    fed = True
                elif not _is_shown(program, scope, node):
                    return False
    return fed


def _outermost(module: Module, node: ast.expr) -> ast.expr:
    """``x.detach().cpu()`` around ``x``."""
    while True:
        parent = module.parents.get(node)
        is_part = isinstance(parent, ast.Attribute) and parent.attr in _SAME
        if not is_part and not (isinstance(parent, ast.Call) and parent.func is node):
            return node
        assert isinstance(parent, (ast.Attribute, ast.Call))
        node = parent


def _goes_to_model(program: Program, scope: Scope, node: ast.expr, model: Value) -> bool:
    """Whether an expression is an argument of a call of another network."""
    given = _outermost(scope.module, node)
    parent = scope.module.parents.get(given)
    if not isinstance(parent, ast.Call) or parent.func is given:
        return False
    called = program.called_models(parent, scope)
    return bool(called) and all(item != model and is_module(item) and program.is_trained(item) for item in called)


def _is_shown(program: Program, scope: Scope, node: ast.expr) -> bool:
    given = _outermost(scope.module, node)
    parent = scope.module.parents.get(given)
    if isinstance(parent, ast.Subscript):
        parent = scope.module.parents.get(_outermost(scope.module, parent))
    if isinstance(parent, ast.Attribute) and parent.attr in _SAME:
        return True
    names = program.callee_names(parent, scope) if isinstance(parent, ast.Call) else set()
    return any(name.startswith(_SHOWING) for name in names)
