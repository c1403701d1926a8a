"""Whether an expression may have another value in another training step.

A draw, a number out of a tensor, a counter, a batch and what is made of them may; settings, shapes and what a
constructor keeps do not. An unknown function of what does not change counts as unchanging.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.varying import (
    ASKS_KIND,
    ASKS_SHAPE,
    DRAWING_METHODS,
    DRAWN,
    OF_THE_SHAPE,
    READS_DATA,
    SELECTS,
)

_MAX_DEPTH = 12
"""Variables and callers between an expression and what it comes from; a longer chain counts as unchanging."""


class Changing:
    """Answers for the forward passes of a program and for what calls them."""

    def __init__(self, program: Program, *, by_rank: bool = False) -> None:
        """Prepare.

        Args:
            program: the program.
            by_rank: whether what counts is another value on another rank: of what is set later, what it is set to.
        """
        self._program = program
        self._by_rank = by_rank
        # Variables, and assignments as ``self.p = self.p * 0.9``, by how far from the question they were met.
        self._looked_at: dict[object, int] = {}

    def changes(self, node: ast.expr, site: Site, depth: int = 0) -> bool:
        """Whether the expression, in the body of ``site``, may differ between two steps."""
        if depth > _MAX_DEPTH:
            return False
        if depth == 0:
            self._looked_at.clear()
        pending: list[ast.AST] = [node]
        while pending:
            part = pending.pop()
            if isinstance(part, FunctionNode):
                continue
            if isinstance(part, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in part.ops):
                if any(self._may_be_absent(side, site, depth + 1) for side in (part.left, *part.comparators)):
                    return True
                continue
            asked = _asked_for_its_shape(part)
            if asked is not None:
                if any(self._is_selected(name, site) for name in blocks.reads(asked)):
                    return True
                continue
            if isinstance(part, ast.Call):
                if self._draws(part, site.scope):
                    return True
                if any(self._gives_changing(info, depth) for info in self._program.flow.callees(part)):
                    return True
            elif isinstance(part, (ast.Name, ast.Attribute)) and self._variable_changes(part, site, depth):
                return True
            if isinstance(part, ast.Attribute) and self._is_self(part.value, site):
                continue
            pending.extend(ast.iter_child_nodes(part))
        return False

    def _is_self(self, node: ast.expr, site: Site) -> bool:
        info = self._program.function_of(site.body)
        return info is not None and isinstance(node, ast.Name) and node.id == info.receiver

    def _draws(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the call draws at random, or looks into a tensor."""
        names = self._program.callee_names(call, scope)
        if any(name.startswith(DRAWN) for name in names):
            return True
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return not self._program.flow.callees(call) and method in DRAWING_METHODS | READS_DATA

    def _gives_changing(self, info: FunctionFacts, depth: int) -> bool:
        if info.name in ("__init__", "forward", "__call__"):
            return False
        site = Site(info.module.module, self._program.flow.scopes[info.node], info.node, info.node)
        return any(self.changes(given, site, depth + 3) for given in info.returns)

    def _variable_changes(self, node: ast.Name | ast.Attribute, site: Site, depth: int) -> bool:
        key = self._program.flow.key(node, site.scope)
        if isinstance(node, ast.Attribute):
            return key is not None and any(self._is_changed(value, where, depth) for value, where in self._given[key])
        if not self._is_model_code(site.body):
            return self._changes_in_loop(node, site, depth)
        if self._was_looked_at((key, node.id, site.body), depth):
            return False
        found = self._given.get(key, []) if key is not None else []
        if any(value is not None and self.changes(value, where, depth + 1) for value, where in found):
            return True
        return any(self.changes(value, where, depth + 1) for value, where in self._arguments(node, site))

    def _was_looked_at(self, variable: object, depth: int) -> bool:
        """Whether a question came by a variable before, as near to where it began: what changes it is found by then."""
        if self._looked_at.get(variable, _MAX_DEPTH + 1) <= depth:
            return True
        self._looked_at[variable] = depth
        return False

    def _is_changed(self, value: ast.expr | None, where: Site, depth: int) -> bool:
        """Whether an attribute is given another value once its object was made."""
        if not _is_set_later(where, self._program):
            return False
        if not self._by_rank or value is None:
            return True
        if isinstance(where.node, ast.AugAssign) or where.body in self._in_forward:
            return True  # one rank may run the model more often: to look at it
        # A switch that a schedule throws is alike on all ranks.
        if isinstance(value, ast.Constant) or self._was_looked_at(where.node, depth):
            return False
        return self.changes(value, where, depth + 1)

    def _changes_in_loop(self, node: ast.Name, site: Site, depth: int) -> bool:
        """Whether a variable of the code that trains is assigned in a loop around the place."""
        for loop in blocks.enclosing(site.module, site.node):
            if isinstance(loop, blocks.LOOPS) and node.id in blocks.writes(loop):
                if not self._by_rank or self._is_made_anew(node.id, loop, site, depth):
                    return True
        key = self._program.flow.key(node, site.scope)
        info = self._program.function_of(site.body)
        if info is not None and node.id in info.parameters:
            # A model that makes parts of its own class hands its parameters to itself.
            return not self._was_looked_at((info.node, node.id), depth) and any(
                isinstance(given, ast.Name) and self._changes_in_loop(given, where, depth + 1)
                for given, where in self._arguments(node, site)
            )
        if info is not None and site.scope.owner(node.id).node is not info.node and key is not None:
            return any(
                isinstance(loop, blocks.LOOPS)
                for _, where in self._given[key]
                for loop in blocks.enclosing(where.module, where.node)
            )
        return False

    def _is_made_anew(self, name: str, loop: ast.stmt, site: Site, depth: int) -> bool:
        """Whether a round of a loop may give a variable another value than on another rank: not what is looked up."""
        if isinstance(loop, (ast.For, ast.AsyncFor)) and name in blocks.writes_target(loop):
            return True
        for item in blocks.walk_own(loop):
            if not isinstance(item, ast.stmt) or hasattr(item, "body") or name not in blocks.writes(item):
                continue
            if not isinstance(item, ast.Assign) or not all(isinstance(target, ast.Name) for target in item.targets):
                return True
            where = Site(site.module, site.scope, site.body, item)
            if not self._was_looked_at(item, depth) and self.changes(item.value, where, depth + 1):
                return True
        return any(
            name in blocks.writes_target(item)
            for item in blocks.walk_own(loop)
            if isinstance(item, (ast.For, ast.AsyncFor))
        )

    def _may_be_absent(self, node: ast.expr, site: Site, depth: int) -> bool:
        """Whether a value that is asked for None may be None in one step and not in another."""
        if isinstance(node, ast.IfExp):
            absent = [is_none(side) for side in (node.body, node.orelse)]
            return any(absent) and not all(absent) and self.changes(node.test, site, depth)
        if not isinstance(node, ast.Name) or depth > _MAX_DEPTH:
            return False
        key = self._program.flow.key(node, site.scope)
        if self._was_looked_at(("absent", key, node.id, site.body), depth):
            return False
        for value, where in self._given.get(key, []) if key is not None else []:
            if is_none(value):
                # ``if random() < 0.1: labels = None``
                tests = [item.test for item in blocks.enclosing(where.module, where.node) if isinstance(item, ast.If)]
                if any(self.changes(test, where, depth + 1) for test in tests):
                    return True
            elif isinstance(value, (ast.IfExp, ast.Name)) and self._may_be_absent(value, where, depth + 1):
                return True
        return any(self._may_be_absent(value, where, depth + 1) for value, where in self._arguments(node, site))

    def _is_selected(self, path: str, site: Site) -> bool:
        """Whether a variable has as many items as the data says: ``rows = (kind == i).nonzero()``, ``x[kind == i]``."""
        assigned = [node for node in self._program.nodes_of(site.body) if isinstance(node, ast.Assign)]
        masks = {
            part
            for node in assigned
            if isinstance(node.value, ast.Compare)
            for target in node.targets
            for part in _paths(target)
        }
        for node in assigned:
            if path not in {part for target in node.targets for part in _paths(target)}:
                continue
            for part in walk(node.value):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in SELECTS:
                    return True
                if isinstance(part, ast.Subscript) and (
                    blocks.path_of(part.slice) in masks
                    or any(isinstance(item, ast.Compare) for item in walk(part.slice))
                ):
                    return True
        return False

    # ---- where values come from ----------------------------------------------------------------------------

    def _arguments(self, node: ast.Name, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """What callers that train give for a parameter."""
        info = self._program.function_of(site.scope.owner(node.id).node)
        if info is None or node.id not in info.parameters:
            return
        for caller in self._program.flow.callers(info):
            where = calling(caller)
            given = info.argument(caller.call, node.id)
            if given is not None and not self._program.without_gradients(where.module, where.node, where.body):
                yield given, where

    @cached_property
    def _in_forward(self) -> set[ast.AST]:
        """The functions that a forward pass runs."""
        own = [info.node for info in self._program.flow.functions.values() if info.name in ("forward", "__call__")]
        return {*own, *self._program.called_from([node for body in own for node in walk(body)])}

    @cached_property
    def _given(self) -> defaultdict[object, list[tuple[ast.expr | None, Site]]]:
        """What each variable is assigned, and where; None for a value that is not an expression of its own."""
        found: defaultdict[object, list[tuple[ast.expr | None, Site]]] = defaultdict(list)
        for node, body, scope in self._program.nodes():
            value: ast.expr | None = None
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets, value = list(node.targets), node.value
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                targets, value = [node.target], node.value
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                targets, value = [node.target], node.iter
            while targets:
                target = targets.pop()
                if isinstance(target, (ast.Tuple, ast.List)):
                    targets.extend(target.elts)
                elif isinstance(target, (ast.Name, ast.Attribute)):
                    key = self._program.flow.key(blocks.reading(target), scope)
                    if key is not None:
                        found[key].append((value, Site(scope.module, scope, body, node)))
        return found

    def _is_model_code(self, body: ast.AST) -> bool:
        return self._program.is_model_code(body)


def _is_set_later(where: Site, program: Program) -> bool:
    """Whether an attribute is set after its object was made."""
    info = program.function_of(where.body)
    return info is None or info.name not in ("__init__", "__post_init__", "__new__")


def _asked_for_its_shape(node: ast.AST) -> ast.expr | None:
    """What a part of an expression is only asked about: ``x`` of ``x.shape[0]``, ``len(x)``, ``isinstance(x, A)``."""
    if isinstance(node, ast.Attribute) and node.attr in OF_THE_SHAPE:
        return node.value
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ASKS_SHAPE:
            return node.func.value
        if isinstance(node.func, ast.Name) and node.func.id in ASKS_KIND and node.args:
            return node.args[0]
    return None


def _paths(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _paths(element)
    elif (path := blocks.path_of(target)) is not None:
        yield path
