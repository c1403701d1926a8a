"""Reads of a part of a model through which no gradient comes to its parameters, as those of an averaged copy."""

from __future__ import annotations

import ast

from amp_rules.flow.values import ClassInfo
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_COMPUTES_NOTHING = frozenset(
    {"load_state_dict", "state_dict", "eval", "train", "to", "cuda", "cpu", "parameters", "named_parameters", "buffers",
     "named_buffers"}
)  # fmt: skip
"""What is asked of a part without a forward pass."""

_MAX_CALLS = 2


def gets_no_gradient(program: Program, module: Module, node: ast.expr, body: ast.AST, depth: int = _MAX_CALLS) -> bool:
    """Whether what is done with a part where it is read cannot give its parameters gradients, nor take them away.

    ``self.average.load_state_dict(self.network.state_dict())``, ``update(self.average, self.network)``, and all that
    runs under ``no_grad``. Where something says which parameters are trained, this is not said: what is frozen is not
    waited for.
    """
    if _says_what_is_trained(program, body):
        return False
    if runs_without_gradients(program, module, node, body, depth):
        return True
    parent = module.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in _COMPUTES_NOTHING
    if not isinstance(parent, ast.Call) or node not in parent.args or depth == 0:
        return False
    called = program.flow.callees(parent)
    return bool(called) and all(_does_nothing_with(program, one, parent, node, depth - 1) for one in called)


def _does_nothing_with(program: Program, info: FunctionFacts, call: ast.Call, given: ast.expr, depth: int) -> bool:
    names = [name for name in info.parameters if info.argument(call, name) is given]
    if not names:
        return False
    uses = [item for item in program.nodes_of(info.node) if isinstance(item, ast.Name) and item.id in names]
    return all(
        isinstance(use.ctx, ast.Load) and gets_no_gradient(program, info.module.module, use, info.node, depth)
        for use in uses
    )


def runs_without_gradients(
    program: Program, module: Module, node: ast.AST, body: ast.AST, depth: int = _MAX_CALLS
) -> bool:
    """Whether a node runs under ``no_grad``, or all that call its function do."""
    if program.without_gradients(module, node, body):
        return True
    info = program.function_of(body)
    callers = [calling(item) for item in program.flow.callers(info)] if info is not None and depth > 0 else []
    return bool(callers) and all(
        runs_without_gradients(program, site.module, site.node, site.body, depth - 1) for site in callers
    )


def _says_what_is_trained(program: Program, body: ast.AST) -> bool:
    return any(map(_sets_what_is_trained, program.nodes_of(body)))


def _sets_what_is_trained(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr.startswith("requires_grad")


def is_made_for_itself(owner: ClassInfo, name: str) -> bool:
    """Whether a class only ever makes a part, or copies it, and freezes nothing.

    Another name of what a model has is trained with that.
    """
    if any(_sets_what_is_trained(node) for node in walk(owner.facts.node)):
        return False
    values = [
        node.value
        for info in owner.facts.methods.values()
        for node in walk(info.node)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == name
    ]
    return bool(values) and all(isinstance(value, ast.Call) for value in values)
