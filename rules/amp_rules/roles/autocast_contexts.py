"""Where a program may compute under autocast: in a context around a place, or around a call of its function."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.mixed_precision import is_off

_MAX_CALLERS = 4
"""Calls between a place and the context that it runs in; what lies deeper counts as being in one."""


def may_cast(program: Program, context: ast.expr, scope: Scope | None) -> bool:
    """Whether what a ``with`` enters may switch autocast, as far as that is known."""
    if not isinstance(context, ast.Call) or scope is None:
        return True
    names = program.callee_names(context, scope)
    if not names or program.flow.callees(context):
        return True
    return any(name.startswith("contextlib.") or _switches(name) for name in names)


def _switches(name: str) -> bool:
    return "autocast" in name or name.rpartition(".")[2] in ("disable_casts", "float_function", "half_function")


def is_entered(program: Program, module: Module, node: ast.AST, scope: Scope) -> bool:
    """Whether a node stands in a ``with`` of its own function that may switch autocast, on or off."""
    return any(
        isinstance(parent, (ast.With, ast.AsyncWith))
        and any(may_cast(program, item.context_expr, scope) for item in parent.items)
        for parent in blocks.enclosing(module, node)
    )


def is_decorated_to_cast(program: Program, body: ast.AST) -> bool:
    """Whether a decorator of the function may switch autocast; of one that is not known nothing is said."""
    info = program.function_of(body)
    return info is not None and any(_switches(name) or not name for name, _ in info.decorators)


class AutocastContexts:
    """Answers for the places of a program.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def forward_outside(self, statement: ast.stmt) -> ast.Call | None:
        """The first forward pass with gradients of a trained model that a statement runs outside of autocast.

        A context that turns autocast off is one that somebody chose, and counts like one that turns it on.
        """
        located = self._program.locate(statement)
        if located is None:
            return None
        body, scope = located
        if self._is_within(Site(scope.module, scope, body, statement)):
            return None
        return self._first_outside([statement], {body})

    def _first_outside(self, parts: list[ast.AST], seen: set[ast.AST]) -> ast.Call | None:
        for part in parts:
            for node in blocks.walk_own(part):
                located = self._program.locate(node) if isinstance(node, ast.Call) else None
                if located is None or not isinstance(node, ast.Call):
                    continue
                body, scope = located
                if is_entered(self._program, scope.module, node, scope):
                    continue
                if self._program.without_gradients(scope.module, node, body):
                    continue
                if found := self._outside(node, scope, seen):
                    return found
        return None

    def _outside(self, call: ast.Call, scope: Scope, seen: set[ast.AST]) -> ast.Call | None:
        callees = [info.node for info in self._program.flow.callees(call)]
        if self._is_chosen(call, scope) or any(map(self._turns_on, callees)):
            return None
        if any(map(self._program.is_trained, self._program.called_models(call, scope))):
            return call
        for body in callees:
            if body not in seen and not self._program.is_model_code(body):
                seen.add(body)
                if found := self._first_outside(blocks.own_parts(body), seen):
                    return found
        return None

    def _is_chosen(self, call: ast.Call, scope: Scope) -> bool:
        """Whether what is called was made by a function that chooses the type: ``amp.float_function(model)(x)``."""
        made = call.func
        return isinstance(made, ast.Call) and may_cast(self._program, made, scope)

    def _turns_on(self, body: ast.AST) -> bool:
        """Whether a function is under autocast by a decorator, or somewhere within by a context that is not off."""
        if self._is_decorated(body):
            return True
        scope = self._program.flow.scopes.get(body)
        return any(
            self._may_turn_on(item.context_expr, scope)
            for node in self._program.nodes_of(body)
            if isinstance(node, (ast.With, ast.AsyncWith)) and self._program.is_model_code(body)
            for item in node.items
        )

    def _may_turn_on(self, context: ast.expr, scope: Scope | None) -> bool:
        if not may_cast(self._program, context, scope):
            return False
        if not isinstance(context, ast.Call) or scope is None:
            return True
        names = self._program.callee_names(context, scope)
        return not names or not all(is_off(name, context) for name in names)

    def _is_decorated(self, body: ast.AST) -> bool:
        return is_decorated_to_cast(self._program, body)

    def _is_within(self, site: Site, depth: int = 0) -> bool:
        """Whether a place is run in a context that may be autocast, at least by one of the ways to it."""
        if depth > _MAX_CALLERS or is_entered(self._program, site.module, site.node, site.scope):
            return True
        if self._is_decorated(site.body):
            return True
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None else []
        return any(self._is_within(calling(caller), depth + 1) for caller in callers)
