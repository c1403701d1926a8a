"""What an expression takes its value from: variables, parameters and functions of the project."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.old_torch.old import OldProgram
from amp_rules.roles.path_objects import assigned
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name

_HANDS_ON = frozenset({"builtins.max", "builtins.min"})


def origins(old: OldProgram, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what an expression takes its value from."""
    flow = old.program.flow
    if isinstance(node, ast.Call):
        for info in flow.callees(node):
            yield from ((item, flow.scopes[info.node]) for item in info.returns if info.node in flow.scopes)
        if old.program.callee_names(node, scope) & _HANDS_ON:
            yield from ((item, scope) for item in node.args)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        owner = scope.owner(node.id) if isinstance(node, ast.Name) else scope
        yield from ((item, owner) for item in assigned(old.program, node, scope))
        function = flow.functions.get(owner.node)
        if isinstance(node, ast.Name) and function is not None:
            yield from ((item, owner) for item in _known_arguments(node, function.node))
            for caller in flow.callers(function) if node.id in function.parameters else ():
                given = function.argument_or_default(caller.call, node.id)
                if given is not None:
                    yield given, flow.scope_given(function, caller, given)


def _known_arguments(node: ast.Name, body: ast.AST) -> Iterator[ast.expr]:
    """Yield the call behind the first of two variables: ``args, rest = parser.parse_known_args()``."""
    for item in blocks.walk_body(body):
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Tuple) and item.targets[0].elts:
            first = item.targets[0].elts[0]
            is_it = isinstance(first, ast.Name) and first.id == node.id
            if is_it and isinstance(item.value, ast.Call) and last_name(item.value.func) == "parse_known_args":
                yield item.value
