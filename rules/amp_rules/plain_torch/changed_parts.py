"""What of a model changes after DistributedDataParallel was put around it, which knows the parameters of then."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plain_torch.training_nodes import TrainingNodes
from amp_rules.plain_torch.wrapped import Wrapped
from amp_rules.plan.written_buffers import writes_of_batch
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope

_MAX_CALLS = 4
"""Functions between a place and the one that wraps a model."""

_PUTS = frozenset({"add_module", "register_module", "register_parameter", "append", "insert", "extend"})
_OF_MODULES = frozenset({"_modules", "_parameters"})
_PARAMETERS = frozenset({"weight", "bias"})


class ChangedParts:
    """Answers for one wrapped model."""

    def __init__(self, program: Program, item: Wrapped) -> None:
        self._program = program
        self._item = item
        self._wrapping = item.place
        self._parts = program.with_parts(item.values)

    # ---- parameters that it has not seen ---------------------------------------------------------------------------

    def replaced(self) -> Site | None:
        """Where a module or parameter is put into the model after it was wrapped."""
        for node, body, scope in self._program.nodes():
            site = Site(scope.module, scope, body, node)
            if self._puts(node, scope) and self._is_run(site) and not self._is_before(site, self._wrapping):
                return site
        return None

    def _puts(self, node: ast.AST, scope: Scope) -> bool:
        """Whether a node gives the model a module or a parameter: ``model.fc = nn.Linear(4, 2)``."""
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return any(
                isinstance(target, (ast.Attribute, ast.Subscript))
                and self._is_part(_owner(target), scope)
                and (self._trains(node.value, scope) or self._trains(blocks.reading(target), scope))
                for target in targets
            )
        if isinstance(node, ast.Delete):
            return any(
                isinstance(target, (ast.Attribute, ast.Subscript))
                and self._is_part(_owner(target), scope)
                and self._trains(blocks.reading(target), scope)
                for target in node.targets
            )
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
            return self._is_part(node.args[0], scope) and self._trains(node.args[2], scope)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS:
            given = [*node.args, *(item.value for item in node.keywords)]
            return self._is_part(node.func.value, scope) and any(self._trains(item, scope) for item in given)
        return False

    def _is_part(self, node: ast.expr, scope: Scope) -> bool:
        return bool(self._program.roles.modules(node, scope) & self._parts)

    def _trains(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression may be a module or a parameter."""
        values = self._program.flow.values(node, scope)
        if any(is_module(value) or value.name.startswith("torch.nn.Parameter") for value in values):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _PARAMETERS:
            return bool(self._program.roles.modules(node.value, scope))
        return False

    def _is_run(self, site: Site) -> bool:
        """Whether a place is run by something other than the making of a model."""
        info = self._program.function_of(site.body)
        if info is None or not self._program.is_model_code(site.body):
            return True
        return info.name != "__init__" and (info.is_forward or bool(self._program.flow.callers(info)))

    def thawed(self) -> Site | None:
        """Where parameters are made to train, after the model was wrapped, that may be frozen when it is."""
        steps = TrainingNodes(self._program, callers=True)
        settings = [*self._settings()]
        if not any(_may_be(site.node, False) for site in settings if not steps.has(site.node, site.body, site.module)):
            return None
        for site in settings:
            if _may_be(site.node, True) and self._is_run(site) and not self._is_before(site, self._wrapping):
                return site
        return None

    def _settings(self) -> Iterator[Site]:
        """Yield where ``requires_grad`` of parameters is set."""
        for node, body, scope in self._program.nodes():
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                owner = node.targets[0].value if node.targets[0].attr == "requires_grad" else None
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value if node.func.attr == "requires_grad_" else None
            else:
                continue
            values = self._program.flow.values(owner, scope) if owner is not None else set()
            if any(value.kind == "parameters" or is_module(value) for value in values):
                yield Site(scope.module, scope, body, node)

    # ---- before and after ------------------------------------------------------------------------------------------

    def _is_before(self, site: Site, other: Site, depth: int = 0) -> bool:
        """Whether a place is run only before another."""
        if site.body is other.body:
            return self._is_before_there(site, other)
        if depth >= _MAX_CALLS:
            return False
        info = self._program.function_of(site.body)
        if info is not None and info.name == "__init__" and self._program.is_model_code(site.body):
            return True  # whatever it is run for is being made
        callers = self._program.flow.callers(info) if info is not None else []
        if callers and all(self._is_before(calling(caller), other, depth + 1) for caller in callers):
            return True
        info = self._program.function_of(other.body)
        callers = self._program.flow.callers(info) if info is not None else []
        return bool(callers) and all(self._is_before(site, calling(caller), depth + 1) for caller in callers)

    def _is_before_there(self, site: Site, other: Site) -> bool:
        if site.module.start(site.node) >= other.module.start(other.node):
            return False
        around = {item for item in blocks.enclosing(other.module, other.node) if isinstance(item, blocks.LOOPS)}
        shared = [item for item in blocks.enclosing(site.module, site.node) if item in around]
        return not shared or all(self._is_made_in(shared[0], value) for value in self._item.values)

    def _is_made_in(self, loop: ast.stmt, value: Value) -> bool:
        """Whether each round of a loop makes a model of its own."""
        return value.site is not None and loop in self._item.use.module.ancestors(value.site)

    # ---- buffers ---------------------------------------------------------------------------------------------------

    def written(self) -> Site | None:
        """Where the model writes buffers from its batch: each process would from its own."""
        for value in sorted((item for item in self._parts if item.kind == "instance"), key=str):
            for owner in value.ref.mro():
                for method in owner.facts.methods.values():
                    node = writes_of_batch(owner, method) if method.node in self._called else None
                    if node is not None:
                        located = self._program.locate(node)
                        if located is not None:
                            return Site(located[1].module, located[1], located[0], node)
        return None

    @cached_property
    def _called(self) -> set[ast.AST]:
        """Bodies that training steps run."""
        return TrainingNodes(self._program).bodies


def _owner(target: ast.Attribute | ast.Subscript) -> ast.expr:
    """What is given a part: ``model`` of ``model.fc``, ``model[0]`` and ``model._modules["fc"]``."""
    owner = target.value
    if isinstance(target, ast.Subscript) and isinstance(owner, ast.Attribute) and owner.attr in _OF_MODULES:
        return owner.value
    return owner


def _may_be(node: ast.AST, wanted: bool) -> bool:
    """Whether ``p.requires_grad = ...`` or ``p.requires_grad_(...)`` may set this."""
    if isinstance(node, ast.Call):
        value = node.args[0] if node.args else node.keywords[0].value if node.keywords else ast.Constant(True)
    else:
        assert isinstance(node, ast.Assign)
        value = node.value
    return bool(value.value) is wanted if isinstance(value, ast.Constant) else True
