"""Layers that a model has and its forward pass skips by a setting: DDP waits for their gradients, unless it looks."""

from __future__ import annotations

import ast
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.model_parts import has_parameters
from amp_rules.plan.outputs_in_loss import at
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, walk

_COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], bool]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}


def why_skipped(program: Program) -> str:
    """Why a model may skip layers in all steps, for the report: ``if self.normed: x = self.norm(x)``.

    A setting counts that some construction may give the value with which the layers are skipped, and an argument that
    some call may. Layers that are made under a condition of their own do not count: they may be missing where they are
    skipped.
    """
    by_class: defaultdict[ClassInfo, list[_Side]] = defaultdict(list)
    for body, scope in program.bodies:
        info = program.function_of(body)
        owner = program.flow.class_of(info) if info is not None else None
        if info is None or owner is None or info.name == "__init__" or not program.is_model_code(body):
            continue
        for node in program.nodes_of(body):
            if isinstance(node, (ast.If, ast.IfExp)):
                by_class[owner].extend(_skipped_sides(program, owner, info, scope, node))
    for owner, sides in by_class.items():
        for side in sides:
            if any(_is_skipped(owner, name, sides) for name in _layers(program, side)):
                return f"{at(side.scope.module, side.choice.test)} is a setting, by which layers may be left out"
    return ""


@dataclass(frozen=True)
class _Side:
    """One side of a condition that a setting may keep from running.

    Attributes:
        info: the method.
        scope: its variables.
        choice: the condition.
        nodes: what the side runs.
        asked: the attribute that is asked whether it is there: a layer that is itself asked for may be none.
    """

    info: FunctionFacts
    scope: Scope
    choice: ast.If | ast.IfExp
    nodes: frozenset[ast.AST]
    asked: str | None


def _skipped_sides(
    program: Program, owner: ClassInfo, info: FunctionFacts, scope: Scope, node: ast.If | ast.IfExp
) -> Iterator[_Side]:
    """The sides of a condition that a setting may keep from running; what follows a return is one."""
    tests = conjuncts(node.test)
    body: list[ast.AST] = [*node.body] if isinstance(node, ast.If) else [node.body]
    orelse: list[ast.AST] = [*node.orelse] if isinstance(node, ast.If) else [node.orelse]
    if isinstance(node, ast.If) and not orelse and isinstance(body[-1], ast.Return):
        place = blocks.place(scope.module, node)
        orelse = [*place.suite[place.index + 1 :]]
    for test in tests:
        wanted = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, wanted = test.operand, not wanted
        asked, found = _outcomes(program, owner, info, test)
        if found - {wanted} and not _is_refused(orelse):
            yield _Side(info, scope, node, frozenset(part for item in body for part in walk(item)), asked)
        if len(tests) == 1 and found - {not wanted} and not _is_refused(body):
            yield _Side(info, scope, node, frozenset(part for item in orelse for part in walk(item)), asked)


def _is_refused(side: list[ast.AST]) -> bool:
    """Whether a program that comes to this side ends."""
    return bool(side) and isinstance(side[-1], ast.Raise)


def _outcomes(
    program: Program, owner: ClassInfo, info: FunctionFacts, test: ast.AST
) -> tuple[str | None, set[bool | None]]:
    """What a condition on a setting of the constructor, or on an argument, may give; None for what is not known.

    Also the attribute, where it is asked whether that is there: a layer that is itself asked for may be none. Empty for
    what is no setting, as ``self.training`` is none.
    """
    found = _given(program, owner, info, test)
    if found is not None:
        return _own_attribute(test, info), {None if item is None else bool(item.value) for item in found}
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARISONS):
        return None, set()
    found = _given(program, owner, info, test.left)
    other = test.comparators[0]
    if found is None or not isinstance(other, ast.Constant):
        return None, set()
    holds = _COMPARISONS[type(test.ops[0])]
    return None, {None if item is None else bool(holds(item.value, other.value)) for item in found}


def _given(program: Program, owner: ClassInfo, info: FunctionFacts, node: ast.AST) -> list[ast.Constant | None] | None:
    """What a setting or an argument of a method may be, None where that is not known; None of anything else."""
    name = _own_attribute(node, info)
    if name is not None:
        return _settings(program, owner, name)
    if not isinstance(node, ast.Name) or node.id not in info.parameters or node.id == info.receiver:
        return None
    calls = [site.call for site in program.flow.callers(info)]
    found = [info.argument_or_default(call, node.id) for call in calls]
    written = [part for part in program.nodes_of(info.node) if isinstance(part, ast.Name) and part.id == node.id]
    is_kept = all(isinstance(part.ctx, ast.Load) for part in written)
    return [item if isinstance(item, ast.Constant) and is_kept else None for item in found]


def _own_attribute(node: ast.AST, info: FunctionFacts) -> str | None:
    """``norm`` of ``self.norm``."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == info.receiver
    return node.attr if is_own else None  # type: ignore[attr-defined]


def _settings(program: Program, owner: ClassInfo, name: str) -> list[ast.Constant | None]:
    """What the constructor may give an attribute, as far as that is a constant; None for what is not known."""
    found: list[ast.Constant | None] = []
    for info, statement in _assignments(owner, name):
        value = statement.value
        if isinstance(value, ast.Name) and info.name == "__init__" and value.id in info.parameters:
            given = [info.argument_or_default(site.call, value.id) for site in program.flow.callers(info)]
            found.extend([item if isinstance(item, ast.Constant) else None for item in given] or [None])
        else:
            found.append(value if isinstance(value, ast.Constant) else None)
    return found


def _assignments(owner: ClassInfo, name: str) -> Iterator[tuple[FunctionFacts, ast.Assign]]:
    for one in owner.mro():
        for info in one.facts.methods.values():
            for node in walk(info.node):
                if isinstance(node, ast.Assign) and any(_own_attribute(item, info) == name for item in node.targets):
                    yield info, node


def _layers(program: Program, side: _Side) -> Iterator[str]:
    """The layers with parameters that a side runs, by their attributes."""
    for call in side.nodes:
        if not isinstance(call, ast.Call) or not any(map(has_parameters, program.called_models(call, side.scope))):
            continue
        func: ast.AST = call.func
        while isinstance(func, ast.Subscript):
            func = func.value
        name = _own_attribute(func, side.info)
        if name is not None and name != side.asked:
            yield name


def _is_skipped(owner: ClassInfo, name: str, sides: list[_Side]) -> bool:
    """Whether each model of a class has a layer, and all that uses it stands on sides that may not run."""
    if not _is_always_made(owner, name):
        return False
    uses = list(_uses(owner, name))
    around = [[side for side in sides if use in side.nodes] for use in uses]
    if not all(around):
        return False
    # Both sides of one condition use it.
    return not any(
        side.choice is other.choice and side is not other
        for one, two in itertools.combinations(around, 2)
        for side in one
        for other in two
    )


def _is_always_made(owner: ClassInfo, name: str) -> bool:
    """Whether a constructor makes it whatever its conditions say: beside all of them, or on both sides of one."""
    made = list(_assignments(owner, name))
    if any(info.name != "__init__" or isinstance(node.value, (ast.IfExp, ast.BoolOp)) for info, node in made):
        return False
    around = {node: _choices(info, node) for info, node in made}
    if made and not any(around.values()):
        return not any(isinstance(node.value, ast.Constant) for node in around)
    calls = [node for node in around if isinstance(node.value, ast.Call)]
    return any(
        choices == [choice] and all(any(other in side for other in calls) for side in (choice.body, choice.orelse))
        for choices in around.values()
        for choice in choices
    )


def _choices(info: FunctionFacts, node: ast.Assign) -> list[ast.If]:
    return [item for item in blocks.enclosing(info.module.module, node) if isinstance(item, ast.If)]


def _uses(owner: ClassInfo, name: str) -> Iterator[ast.AST]:
    """Where methods of a class take a layer; comparing it with something does not use it."""
    for one in owner.mro():
        for info in one.facts.methods.values():
            if info.name == "__init__":
                continue
            for node in walk(info.node):
                if _own_attribute(node, info) == name and isinstance(getattr(node, "ctx", None), ast.Load):
                    if not isinstance(info.module.module.parents.get(node), ast.Compare):
                        yield node
