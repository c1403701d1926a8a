"""How an optimizer can be named at a place, to unscale its gradients there."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, Step
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.text.vocabulary import Unscaled


class OptimizerNames:
    """Names of optimizers, by the steps of the same body, by variables and by attributes."""

    def __init__(self, program: Program, owners: GradientOwners) -> None:
        self._program = program
        self._owners = owners

    def at(self, optimizer: Value, site: Site, target: ast.stmt) -> Unscaled | None:
        """The optimizer's name in front of ``target``; None where it has none that is bound there."""
        for step in self._program.steps:
            if step.body is site.body and optimizer in self._owners.stepped(step):
                named = self._as_stepped(step, target)
                if named is not None:
                    return named
        variable = self._variable(optimizer, site, target)
        return Unscaled(variable) if variable is not None else None

    def _as_stepped(self, step: Step, target: ast.stmt) -> Unscaled | None:
        receiver = ast.unparse(step.optimizer)
        path = blocks.path_of(step.optimizer)
        if path is None:
            return None
        name = path.split(".")[0]
        for parent in step.module.ancestors(step.node):
            if parent is step.body:
                break
            if isinstance(parent, (ast.For, ast.AsyncFor)) and name in blocks.writes_target(parent):
                within = any(node is target for node in blocks.walk_own(parent)) and target is not parent
                return Unscaled(receiver, None if within else loop_head(parent.target, parent.iter))
        named = in_comprehension(step)
        if named is not None:
            return None if hides_variable(step) else named
        return Unscaled(receiver) if self._is_bound(name, step.scope, target) else None

    def _variable(self, optimizer: Value, site: Site, target: ast.stmt) -> str | None:
        scope: Scope | None = site.scope
        while scope is not None:
            for name in sorted(scope.bound) if not scope.is_class else ():
                if site.scope.owner(name) is scope and self._holds_only(scope.node, name, optimizer):
                    if self._is_bound(name, site.scope, target):
                        return name
            scope = scope.parent
        info = self._program.function_of(site.body)
        owner = self._program.flow.class_of(info) if info is not None else None
        if info is None or owner is None or info.receiver is None or info.is_class_method:
            return None
        for cls in owner.mro():
            for name in sorted(self._program.flow.attribute_names.get(cls.facts.node, ())):
                if self._holds_only(cls.facts.node, name, optimizer):
                    return f"{info.receiver}.{name}"
        return None

    def _holds_only(self, owner: ast.AST, name: str, optimizer: Value) -> bool:
        cell = self._program.flow.cells.get((owner, name))
        values = cell.values if cell is not None else set()
        return optimizer in values and all(is_optimizer(value) for value in values) and len(values) == 1

    @staticmethod
    def _is_bound(name: str, scope: Scope, target: ast.stmt) -> bool:
        """Whether a variable is there when ``target`` runs: a parameter, one from outside, or assigned above."""
        owner = scope.owner(name)
        if owner.node is not scope.node:
            return True
        arguments = getattr(owner.node, "args", None)
        if arguments is not None and name in {item.arg for item in walk(arguments) if isinstance(item, ast.arg)}:
            return True
        above = (
            node.lineno
            for part in blocks.own_parts(owner.node)
            for node in blocks.walk_own(part)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        )
        return any(line < target.lineno for line in above)


def in_comprehension(step: Step) -> Unscaled | None:
    """The optimizer of ``[optimizer.step() for optimizer in optimizers if ...]``; None for a step on its own."""
    generator = _generator_of(step)
    if generator is None:
        return None
    conditions = tuple(ast.unparse(item) for item in generator.ifs)
    return Unscaled(ast.unparse(step.optimizer), loop_head(generator.target, generator.iter), conditions)


def hides_variable(step: Step) -> bool:
    """Whether a name of the comprehension that steps is that of another variable, which a loop would overwrite."""
    generator = _generator_of(step)
    names = _names(generator.target) if generator is not None else set()
    for node in blocks.walk_body(step.body):
        if isinstance(node, ast.Name) and node.id in names and not isinstance(node.ctx, ast.Load):
            if not any(isinstance(parent, ast.comprehension) for parent in step.module.ancestors(node)):
                return True
    arguments = getattr(step.body, "args", None)
    return arguments is not None and any(item.arg in names for item in walk(arguments) if isinstance(item, ast.arg))


def _generator_of(step: Step) -> ast.comprehension | None:
    """The part of a comprehension that gives the optimizer which it steps."""
    name = (blocks.path_of(step.optimizer) or "").split(".")[0]
    for parent in step.module.ancestors(step.node):
        if isinstance(parent, ast.stmt):
            break
        for generator in getattr(parent, "generators", ()):
            if name in _names(generator.target):
                return generator  # type: ignore[no-any-return]
    return None


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in walk(target) if isinstance(node, ast.Name)}


def loop_head(target: ast.expr, iterated: ast.expr) -> str:
    """``for optimizer in optimizers:``."""
    names = ast.unparse(target).removeprefix("(").removesuffix(")") if isinstance(target, ast.Tuple) else None
    return f"for {names or ast.unparse(target)} in {ast.unparse(iterated)}:"
