"""Steps and backward passes that are handed around as values: nothing tells where they run.

``step = optimizer.step``, ``getattr(optimizer, "step")``, ``stack.callback(optimizer.step)``: only a call that is
written as one can go through the scaler.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import BACKWARD_FUNCTIONS, BY_NAME, MAKES_GETTERS, ONLY_LOOKS
from amp_rules.torch.models import OF_MODULES_ALONE
from amp_rules.torch.optimizers import COUNTED, is_optimizer_name

_STEP = "step"
_BACKWARD = "backward"
_DELEGATES = frozenset({"__getattr__", "__getattribute__"})
_OF_DATA = "torch.utils.data."
"""Bases of data, none of which hands a ``backward()`` on."""


def reasons(program: Program) -> Iterator[Declined]:
    """Yield each place where a step or a backward pass becomes a value, or is reached by its name."""
    for node, body, scope in program.nodes():
        if isinstance(node, ast.Call):
            yield from _by_name(program, node, body, scope)
        elif isinstance(node, (ast.Attribute, ast.Name)):
            yield from _as_value(program, node, scope)
    for backward in program.backwards:
        yield from _no_tensor(program, backward)


def _as_value(program: Program, node: ast.Attribute | ast.Name, scope: Scope) -> Iterator[Declined]:
    if _is_called(program, node, scope):
        return
    text = scope.module.text(node)
    if program.names(node, scope) & BACKWARD_FUNCTIONS and not isinstance(node.ctx, ast.Store):
        yield _backward(program, node, scope, f"`{text}` is used as a value: what it differentiates was not followed")
    if not isinstance(node, ast.Attribute):
        return
    is_stored = isinstance(node.ctx, ast.Store)
    if node.attr == _STEP and _may_be_optimizer(program, node.value, scope) and not _is_counted(program, node, scope):
        what = "is replaced" if is_stored else "is used as a value: where it runs was not followed"
        yield _step(program, node, scope, f"`{text}` {what}")
    elif node.attr == _BACKWARD and not is_stored and _may_be_loss(program, node, scope):
        yield _backward(program, node, scope, f"`{text}` is used as a value: where it runs was not followed")


def _is_counted(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """Whether a copy of PyTorch's schedules has an optimizer count its steps: what it puts in place steps as before.

    The wrapper carries the mark by which PyTorch's own schedules tell that an optimizer counts already.
    """
    parents = scope.module.parents
    statement = next((item for item in scope.module.ancestors(node) if isinstance(item, ast.stmt)), None)
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.value, ast.Call)
    ):
        return False
    call, target = statement.value, statement.targets[0]
    is_same = [blocks.path_of(item) for item in call.args] == [blocks.path_of(target)]
    if not is_same or not (node is target or parents[node] is call):
        return False
    callees = program.flow.callees(call)
    return bool(callees) and all(map(_marks, callees))


def _marks(info: FunctionFacts) -> bool:
    return any(
        isinstance(item, ast.Attribute) and item.attr in COUNTED and isinstance(item.ctx, ast.Store)
        for item in walk(info.node)
    )


def _is_called(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether the method is called on the spot, or given to a function that only looks at it."""
    parent = scope.module.parents.get(node)
    if not isinstance(parent, ast.Call):
        return isinstance(parent, ast.Attribute)  # ``optimizer.step.__name__``
    return parent.func is node or bool(program.callee_names(parent, scope) & ONLY_LOOKS)


def _by_name(program: Program, call: ast.Call, body: ast.AST, scope: Scope) -> Iterator[Declined]:
    names = program.callee_names(call, scope)
    text = scope.module.text(call)
    if names & MAKES_GETTERS:
        said = {item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)}
        lasts = {name.rpartition(".")[2] for name in said}
        if _STEP in lasts:
            yield _step(program, call, scope, f"`{text}` steps what it is given: that was not followed")
        if _BACKWARD in lasts:
            yield _backward(program, call, scope, f"`{text}` runs the backward pass of what it is given")
    elif names & BY_NAME - {"builtins.hasattr"} and len(call.args) > 1:
        can_be = _names(program, call.args[1], scope)
        info = program.function_of(body)
        is_delegate = info is not None and info.name in _DELEGATES
        if (_STEP in can_be or (not can_be and not is_delegate)) and _may_be_optimizer(program, call.args[0], scope):
            yield _step(program, call, scope, f"`{text}` reaches a method of an optimizer by its name")
        elif _BACKWARD in can_be and not _is_other(program, call.args[0], scope):
            yield _backward(program, call, scope, f"`{text}` reaches a backward pass by its name")


def _names(program: Program, node: ast.expr, scope: Scope) -> set[object]:
    """What a name that an attribute is looked up by can be; empty where that is not known."""
    if isinstance(node, ast.Constant):
        return {node.value}
    values = program.flow.values(node, scope)
    return {value.ref for value in values if value.kind == "constant"}


def _may_be_optimizer(program: Program, node: ast.expr, scope: Scope) -> bool:
    if program.roles.uses(node, scope) & OF_MODULES_ALONE:
        return False
    values = program.flow.values(node, scope)
    if any(is_optimizer(value) for value in values):
        return True
    if any(value.kind == "external" and is_optimizer_name(value.ref) for value in values):
        return True
    if any(value.kind in ("instance", "class", "module") for value in values):
        return False
    return bool({"zero_grad", "param_groups"} & program.roles.uses(node, scope))


def _may_be_loss(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """Whether ``x.backward`` can be the method of a tensor: nothing else of that name is known."""
    held = program.flow.values(node, scope)
    return not _is_other(program, node.value, scope) and not any(value.kind == "function" for value in held)


def _is_other(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether the owner of an attribute is known, and no tensor."""
    values = program.flow.values(node, scope)
    return any(
        value.kind in ("instance", "class", "module", "external", "constant")
        or is_module(value)
        or (value.kind == "object" and str(value.ref).startswith("argparse."))
        for value in values
    )


def _no_tensor(program: Program, backward: Backward) -> Iterator[Declined]:
    """Backward passes of an object of the project that has no such method of its own: another one runs it.

    Only an object that can have the method counts: where a loss is looked up by a name from a configuration, every
    class of the module looks like its maker, the model's among them, and no ``nn.Module`` has a ``backward``.
    """
    values: set[Value] = program.flow.values(backward.loss, backward.scope)
    passing_on = {value.ref.facts.name for value in values if value.kind == "instance" and _passes_on(value)}
    for name in sorted(passing_on):
        text = backward.module.text(backward.loss)
        what = f"`{text}` is an object of `{name}`, which hands its backward() on"
        yield _backward(program, backward.node, backward.scope, what)


def _passes_on(value: Value) -> bool:
    """Whether an object of the project can have a backward() that another object runs."""
    bases: frozenset[str] = value.ref.external_bases()
    if any(base.startswith("torch.Tensor") for base in bases):
        return False
    is_plain = is_module(value) or all(base == "builtins.object" or base.startswith(_OF_DATA) for base in bases)
    return not is_plain or any(value.ref.find_method(name) is not None for name in _DELEGATES)


def _step(program: Program, node: ast.AST, scope: Scope, what: str) -> Declined:
    return declining.decline(
        declining.UNKNOWN_STEP,
        scope.module,
        node,
        what,
        "call `optimizer.step()` where it is to run, then migrate again; or step with `amp.scaler.step(optimizer)`",
    )


def _backward(program: Program, node: ast.AST, scope: Scope, what: str) -> Declined:
    return declining.decline(
        declining.UNKNOWN_LOSS,
        scope.module,
        node,
        what,
        "call `loss.backward()` where it is to run, then migrate again; or write `amp.scaler.scale(loss).backward()`",
    )
