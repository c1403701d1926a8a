"""Layers that a model has and its forward pass skips by a setting: DDP waits for their gradients, unless it looks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.left_out import has_parameters
from amp_rules.roles.steps import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


def skips_layers(program: Program) -> bool:
    """Whether a model may skip layers in all steps: ``if self.normed: x = self.norm(x)``.

    A setting counts that some construction may give the value with which the layers are skipped. Layers that are made
    under a condition of their own do not count: they may be missing where they are skipped.
    """
    for body, scope in program.bodies:
        info = program.function_of(body)
        owner = program.flow.class_of(info) if info is not None else None
        if info is None or owner is None or info.name == "__init__" or not program.is_model_code(body):
            continue
        for node in program.nodes_of(body):
            if isinstance(node, (ast.If, ast.IfExp)) and any(
                _is_skipped_part(program, owner, scope, side, sides)
                for side, sides in _skipped_sides(program, owner, info, node)
            ):
                return True
    return False


def _skipped_sides(
    program: Program, owner: ClassInfo, info: FunctionFacts, node: ast.If | ast.IfExp
) -> Iterator[tuple[list[ast.AST], ast.AST]]:
    """The sides of a condition that a setting of the model may keep from running, each with the condition."""
    tests = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else [node.test]
    body: list[ast.AST] = [*node.body] if isinstance(node, ast.If) else [node.body]
    orelse: list[ast.AST] = [*node.orelse] if isinstance(node, ast.If) else [node.orelse]
    for test in tests:
        wanted = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, wanted = test.operand, not wanted
        name = _own_attribute(test, info)
        found = _settings(program, owner, name) if name is not None else set()
        if found - {wanted}:
            yield body, node
        if len(tests) == 1 and found - {not wanted}:
            yield orelse, node


def _own_attribute(node: ast.AST, info: FunctionFacts) -> str | None:
    """``norm`` of ``self.norm``."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == info.receiver
    return node.attr if is_own else None  # type: ignore[attr-defined]


def _settings(program: Program, owner: ClassInfo, name: str) -> set[bool | None]:
    """What a setting of the constructor may be as a condition; None for what is not plain to see.

    Empty for what is no setting, as ``self.training`` is none.
    """
    found: set[bool | None] = set()
    for info, statement in _assignments(owner, name):
        value = statement.value
        if isinstance(value, ast.Name) and info.name == "__init__" and value.id in info.parameters:
            given = [info.argument_or_default(site.call, value.id) for site in program.flow.callers(info)]
            found |= {bool(item.value) if isinstance(item, ast.Constant) else None for item in given} or {None}
        else:
            found.add(bool(value.value) if isinstance(value, ast.Constant) else None)
    return found


def _assignments(owner: ClassInfo, name: str) -> Iterator[tuple[FunctionFacts, ast.Assign]]:
    for one in owner.mro():
        for info in one.facts.methods.values():
            for node in walk(info.node):
                if isinstance(node, ast.Assign) and any(_own_attribute(item, info) == name for item in node.targets):
                    yield info, node


def _is_skipped_part(program: Program, owner: ClassInfo, scope: Scope, side: list[ast.AST], choice: ast.AST) -> bool:
    """Whether one side of a condition alone runs a layer that each model of the class has."""
    inside = {node for item in side for node in walk(item)}
    info = program.function_of(blocks.body_of(scope.module, choice))
    if info is None:
        return False
    for call in inside:
        if not isinstance(call, ast.Call) or not any(map(has_parameters, program.called_models(call, scope))):
            continue
        func: ast.AST = call.func
        while isinstance(func, ast.Subscript):
            func = func.value
        name = _own_attribute(func, info)
        if name is not None and _is_always_made(owner, name) and not _is_read_elsewhere(owner, name, inside):
            return True
    return False


def _is_always_made(owner: ClassInfo, name: str) -> bool:
    made = list(_assignments(owner, name))
    return bool(made) and all(
        info.name == "__init__"
        and not any(isinstance(item, ast.If) for item in blocks.enclosing(info.module.module, node))
        and not isinstance(node.value, (ast.IfExp, ast.BoolOp, ast.Constant))
        for info, node in made
    )


def _is_read_elsewhere(owner: ClassInfo, name: str, inside: set[ast.AST]) -> bool:
    """Whether other places of the class use the layer, as the other side may."""
    return any(
        _own_attribute(node, info) == name and isinstance(getattr(node, "ctx", None), ast.Load)
        for one in owner.mro()
        for info in one.facts.methods.values()
        if info.name != "__init__"
        for node in walk(info.node)
        if node not in inside
    )
