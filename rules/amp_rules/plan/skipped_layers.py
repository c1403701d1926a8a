"""Layers that a model has and its forward pass skips by a setting: DDP waits for their gradients, unless it looks.

What the shape of a tensor decides is not known, so that it may skip them as well.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.building_models import only_builds
from amp_rules.plan.model_parts import surely_has_parameters
from amp_rules.plan.outputs_in_loss import at
from amp_rules.plan.setting_tests import SettingTests, assignments, own_attribute
from amp_rules.plan.untrained_reads import runs_without_gradients
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, walk
from amp_rules.torch.functions import PARAMETER_MAKERS


def why_skipped(program: Program, trained: set[ClassInfo]) -> str:
    """Why a model may skip layers in all steps, for the report: ``if self.normed: x = self.norm(x)``.

    A setting counts that some construction may give the value with which the layers are skipped, an argument that
    some call may, and what the shape of a tensor decides. Layers that are made under a condition of their own do not
    count: they may be missing where they are skipped.
    """
    by_class: defaultdict[ClassInfo, list[_Side]] = defaultdict(list)
    for body, scope in program.bodies:
        info = program.function_of(body)
        owner = program.flow.class_of(info) if info is not None else None
        if info is None or owner not in trained or info.name == "__init__" or not program.is_model_code(body):
            continue
        for node in program.nodes_of(body):
            if isinstance(node, (ast.If, ast.IfExp)):
                by_class[owner].extend(_skipped_sides(program, owner, info, scope, node))
    layers = _Layers(program)
    for owner, sides in by_class.items():
        is_skipped = cache(partial(_is_skipped, program, owner, sides))
        for side in sides:
            if any(map(is_skipped, layers.of(side))):
                test = at(program, side.scope.module, side.choice.test)
                if any(own_attribute(node, side.info) == "training" for node in walk(side.choice.test)):
                    return f"{test} leaves layers out of training"
                if side.by_shape:
                    return f"{test} may leave layers out"
                return f"{test} is a setting, by which layers may be left out"
    return ""


@dataclass(frozen=True)
class _Side:
    """One side of a condition that a setting may keep from running.

    Attributes:
        info: the method.
        scope: its variables.
        choice: the condition.
        nodes: what the side runs.
        asked: the attributes that are asked whether they are there: a layer that is itself asked for may be none.
        by_shape: whether the shape of a tensor decides.
    """

    info: FunctionFacts
    scope: Scope
    choice: ast.If | ast.IfExp
    nodes: frozenset[ast.AST]
    asked: frozenset[str]
    by_shape: bool


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
    settings = SettingTests(program, owner, info, scope)
    asked = frozenset(_asked_for(node.test, info))
    for test in tests:
        found = settings.outcomes(test)
        by_shape = any(isinstance(part, ast.expr) and settings.asks_for_shape(part) for part in walk(test))
        if found - {True} and not _is_refused(orelse):
            yield _Side(info, scope, node, frozenset(part for item in body for part in walk(item)), asked, by_shape)
        if len(tests) == 1 and found - {False} and not _is_refused(body):
            yield _Side(info, scope, node, frozenset(part for item in orelse for part in walk(item)), asked, by_shape)


def _asked_for(test: ast.expr, info: FunctionFacts) -> Iterator[str]:
    """The attributes of which a test asks whether they are there: ``self.norm``, ``self.norm is not None``."""
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _asked_for(part, info)
        return
    if isinstance(test, ast.UnaryOp):
        test = test.operand
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        test = test.left
    name = own_attribute(test, info)
    if name is not None:
        yield name


def _is_refused(side: list[ast.AST]) -> bool:
    """Whether a program that comes to this side ends."""
    return bool(side) and isinstance(side[-1], ast.Raise)


class _Layers:
    """Answers which layers and weights methods run or go through. What is asked for many sides is found once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._has_parameters = cache(partial(surely_has_parameters, program))
        self._of_methods: dict[ast.AST, frozenset[str]] = {}

    def of(self, side: _Side) -> Iterator[str]:
        """Yield those of a side, by their attributes, and of methods that it calls.

        Where an argument decides, as in ``if mode == "train": return self.loss(x)``, what a method runs is what was
        asked of the model.
        """
        yield from self._named(side.info, side.scope, side.nodes, side.asked)
        is_setting = any(own_attribute(node, side.info) is not None for node in walk(side.choice.test))
        for node in side.nodes if is_setting else ():
            if isinstance(node, ast.Call) and own_attribute(node.func, side.info) is not None:
                for method in self._program.flow.callees(node):
                    yield from sorted(self._of_method(method) - side.asked)

    def _of_method(self, method: FunctionFacts) -> frozenset[str]:
        known = self._of_methods.get(method.node)
        if known is None:
            scope, found = self._program.flow.scopes.get(method.node), frozenset[str]()
            if scope is not None and method.receiver is not None:
                nodes = self._program.nodes_of(method.node)
                found = frozenset(self._named(method, scope, nodes, frozenset()))
            known = self._of_methods[method.node] = found
        return known

    def _named(
        self, info: FunctionFacts, scope: Scope, nodes: Iterable[ast.AST], asked: frozenset[str]
    ) -> Iterator[str]:
        """Yield the attributes of a method's own object in some nodes that hold layers or weights."""
        for node in nodes:
            name = own_attribute(node, info)
            if name is None or name in asked or not isinstance(node, ast.Attribute):
                continue
            values = self._program.flow.values(node, scope)
            held = values | self._program.flow.elements(values)
            if any(value.name in PARAMETER_MAKERS or self._has_parameters(value) for value in held):
                yield name


def _is_skipped(program: Program, owner: ClassInfo, sides: list[_Side], name: str) -> bool:
    """Whether each model of a class has a layer, and all that trains it stands on sides that may not run."""
    if not _is_always_made(owner, name):
        return False
    around = [_around(program, info, use, sides, 1) for info, use in _uses(program, owner, name)]
    if not around or not all(around):
        return False
    # Both sides of one condition use it.
    return not any(
        side.choice is other.choice and side is not other
        for one, two in itertools.combinations(around, 2)
        for side in one
        for other in two
    )


def _around(program: Program, info: FunctionFacts, use: ast.AST, sides: list[_Side], depth: int) -> list[_Side]:
    """The sides that a use stands on, or all calls of its method do."""
    found = [side for side in sides if use in side.nodes]
    if found or depth == 0 or info.name in ("forward", "__call__"):
        return found
    calls = [calling(caller) for caller in program.flow.callers(info)]
    callers = [(program.function_of(site.body), site) for site in calls]
    of_calls = [_around(program, one, site.node, sides, depth - 1) for one, site in callers if one is not None]
    return [side for item in of_calls for side in item] if len(of_calls) == len(calls) and all(of_calls) else []


def _is_always_made(owner: ClassInfo, name: str) -> bool:
    """Whether a constructor makes it whatever its conditions say: beside all of them, or on both sides of one."""
    made = list(assignments(owner, name))
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


def _uses(program: Program, owner: ClassInfo, name: str) -> Iterator[tuple[FunctionFacts, ast.AST]]:
    """Where methods of a class take a layer to train it; comparing it with something does not use it.

    Nor does what sets the weights that it begins with, and what runs without gradients.
    """
    for one in owner.mro():
        for info in one.facts.methods.values():
            if only_builds(program, info):
                continue
            for node in walk(info.node):
                if own_attribute(node, info) != name or not isinstance(getattr(node, "ctx", None), ast.Load):
                    continue
                module = info.module.module
                if isinstance(module.parents.get(node), ast.Compare):
                    continue
                if not runs_without_gradients(program, module, node, info.node):
                    yield info, node
