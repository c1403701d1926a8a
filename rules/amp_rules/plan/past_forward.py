"""Parts of a trained model that a loss may be given beside what the model's forward pass returns."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from amp_rules.plan.training_rounds import nodes_of_rounds
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.evaluating import SHOWING_FUNCTIONS
from amp_rules.torch.models import NO_FORWARD

_MAX_CALLERS = 4
"""Functions between what is returned and its use; a longer chain counts as a use."""

_NUMBERS = frozenset({"item", "tolist", "numpy", "detach"})
"""Methods of a tensor behind which there are no gradients."""


def reads_past_forward(program: Program) -> bool:
    """Whether something besides the model's own code asks a trained model for what a loss may be made of.

    A wrapper that searches for unused parameters has taken a parameter that a loss reads there for unused. What the
    rounds of the training never name again, what is asked for without gradients and what is only shown is no part of
    a loss.
    """
    return any(True for _ in _reads(program))


def _reads(program: Program) -> Iterator[Site]:
    rounds: _Rounds | None = None
    for node, scope in program.reads:
        if not isinstance(node, ast.Attribute) or node.attr in NO_FORWARD or node.attr in ("module", "forward"):
            continue
        call = scope.module.parents[node]
        if isinstance(call, ast.Call) and call.func is node and _stands_alone(scope.module, call):
            continue  # ``model.load_from(weights)`` gives a loss nothing
        if not any(map(program.is_trained, program.flow.values(node.value, scope))):
            continue
        held = program.flow.values(node, scope)
        if held and all(value.kind in ("constant", "sequence") for value in held):
            continue
        located = program.locate(node)
        if located is not None and program.is_model_code(located[0]):
            continue
        if located is not None and program.without_gradients(scope.module, node, located[0]):
            continue
        rounds = rounds or _Rounds(program)
        if located is None or rounds.may_use(Site(scope.module, scope, located[0], node)):
            yield Site(scope.module, scope, located[0] if located is not None else scope.module.tree, node)


def _stands_alone(module: Module, node: ast.expr) -> bool:
    """Whether an expression is a statement, or what one chooses: ``model.thaw() if last else model.freeze_head()``."""
    inner, outer = node, module.parents[node]
    while (isinstance(outer, ast.IfExp) and inner is not outer.test) or (
        isinstance(outer, ast.BoolOp) and inner is outer.values[-1]
    ):
        inner, outer = outer, module.parents[outer]
    return isinstance(outer, ast.Expr)


class _Rounds:
    """What the rounds of a program's training run and name; nothing is known of one without a loop."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = nodes_of_rounds(program)
        reads = (node for node in self.nodes or () if isinstance(getattr(node, "ctx", None), ast.Load))
        self.words = {last_name(node) for node in reads}

    def may_use(self, site: Site, depth: int = 0) -> bool:
        """Whether a round may have what an expression gives: under a name, or from a function that returns it."""
        statement = blocks.statement_of(site.module, site.node)
        if self._goes_nowhere(site, statement):
            return False
        if self.nodes is None or any(isinstance(node, ast.NamedExpr) for node in walk(statement)):
            return True
        if isinstance(statement, ast.Return):
            return self._is_used_by_callers(site, depth)
        if isinstance(statement, (ast.If, ast.While, ast.Assert, ast.Raise, ast.Delete)):
            return False
        if isinstance(statement, ast.With):
            return any(item.optional_vars is not None for item in statement.items)
        if isinstance(statement, ast.Assign) and self._is_optimizer(statement.value, site):
            return False
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            stored = [
                node for item in targets for node in walk(item) if isinstance(getattr(node, "ctx", None), ast.Store)
            ]
            return any(isinstance(node, ast.Subscript) or last_name(node) in self.words for node in stored)
        return not (isinstance(statement, ast.Expr) and self._gives_nothing(statement.value, site))

    def _is_optimizer(self, value: ast.expr, site: Site) -> bool:
        held = self.program.flow.values(value, site.scope)
        return bool(held) and all(map(is_optimizer, held))

    def _goes_nowhere(self, site: Site, statement: ast.stmt) -> bool:
        """Whether only a number of what is read is used, its names or its parameters, or nothing of it at all.

        ``model.scale.item()``, ``model.head.parameters()``, ``model.head.weight.data.zero_()``.
        """
        inner: ast.AST = site.node
        for parent in site.module.ancestors(site.node):
            if parent is statement:
                return isinstance(statement, ast.Expr) and statement.value is inner and inner is not site.node
            if isinstance(parent, ast.Attribute) and (parent.attr in _NUMBERS or parent.attr in NO_FORWARD):
                return True
            if not (isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is inner):
                if not (isinstance(parent, ast.Call) and parent.func is inner):
                    return self._is_number_later(site, parent, statement)
            inner = parent
        return False

    def _is_number_later(self, site: Site, outer: ast.AST, statement: ast.stmt) -> bool:
        """``(model.scale ** 2).item()``."""
        above = itertools.takewhile(lambda node: node is not statement, site.module.ancestors(outer))
        return any(isinstance(parent, ast.Attribute) and parent.attr in _NUMBERS for parent in above)

    def _gives_nothing(self, value: ast.expr, site: Site) -> bool:
        """Whether a call whose result is dropped only shows what it is given, or sets something up before the rounds.

        A method may keep what it is given: ``losses.append(model.penalty())``.
        """
        if not isinstance(value, ast.Call):
            return False
        names = self.program.callee_names(value, site.scope)
        if names and names <= SHOWING_FUNCTIONS:
            return True
        assert self.nodes is not None
        return site.node not in self.nodes and (bool(names) or isinstance(value.func, ast.Name))

    def _is_used_by_callers(self, site: Site, depth: int) -> bool:
        info = self.program.function_of(site.body)
        callers = [calling(item) for item in self.program.flow.callers(info)] if info is not None else []
        if not callers or depth > _MAX_CALLERS:
            return True
        return any(self.may_use(item, depth + 1) for item in callers)
