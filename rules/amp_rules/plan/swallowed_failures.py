"""Steps that fail on one process while the script goes on: the others would wait for it in theirs."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import ends_process
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import called_name, own_name, walk
from amp_rules.torch.failures import ALL_ERRORS, ERRORS_OF_A_DEVICE

_OF_PYTHON = frozenset(dir(builtins))
_TAKES_NEXT = frozenset({"next", "__next__"})
_GOES_ELSEWHERE = (ast.Continue, ast.Break, ast.Return)


def swallowed_failures(program: Program) -> Iterator[tuple[Module, ast.ExceptHandler]]:
    """Handlers that go on where a part of a training step has failed: for want of memory, one process is alone with it.

    What the script raises itself is not among it: all processes decide that alike. Nor is a ``try`` around the whole
    training: nothing waits behind it.
    """
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Try) or not _holds_a_step(program, Site(scope.module, scope, body, node), node):
            continue
        for handler in node.handlers:
            if _catches_failures(handler) and goes_on(handler.body) and not _is_expected(program, node, handler):
                yield scope.module, handler


def _holds_a_step(program: Program, site: Site, node: ast.Try) -> bool:
    """Whether a ``try`` that runs more than once has a part of a step in it."""
    module = site.module
    around = any(
        isinstance(parent, blocks.LOOPS) and program.runs_backward(parent) for parent in blocks.enclosing(module, node)
    )
    if around and any(program.runs_backward(item) or program.runs_step(item) for item in node.body):
        return True
    own = [part for item in node.body for part in blocks.walk_own(item)]
    if any(isinstance(part, blocks.LOOPS) for part in own):
        return False
    sites = {item.node for item in (*program.backwards, *program.steps)}
    if any(part in sites for part in own):
        return True
    handled = [part for item in node.handlers for part in walk(item)]
    # What runs the model again in the handler has taken its part in the step.
    leaves_out = any(isinstance(part, _GOES_ELSEWHERE) for part in handled) or not any(
        map(program.runs_forward, handled)
    )
    return (
        around and leaves_out and any(isinstance(part, ast.Call) and program.forwards(part, site.scope) for part in own)
    )


def _catches_failures(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or not _caught(handler).isdisjoint(ERRORS_OF_A_DEVICE)


def _caught(handler: ast.ExceptHandler) -> set[str]:
    """The own names of what a handler catches."""
    given = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    return {own_name(item) for item in given}


def _is_expected(program: Program, node: ast.Try, handler: ast.ExceptHandler) -> bool:
    """Whether the script raises in the ``try`` itself what the handler catches, or iterates by hand to the end."""
    caught = _caught(handler)
    catches_all = handler.type is None or not caught.isdisjoint(ALL_ERRORS)
    own = [part for item in node.body for part in blocks.walk_own(item)]
    bodies = program.called_from(own)
    for part in [*own, *(inner for body in bodies for inner in program.nodes_of(body))]:
        if isinstance(part, ast.Raise) and part.exc is not None:
            raised = called_name(part.exc)
            if raised in caught or (raised[:1].isupper() and raised not in _OF_PYTHON):
                return True
        if catches_all and part in own and isinstance(part, ast.Call) and called_name(part) in _TAKES_NEXT:
            if not _begins_anew(part):
                return True
    return False


def _begins_anew(call: ast.Call) -> bool:
    """Whether a new iterator gives its first item, which is no end: ``next(iter(loader))``."""
    return bool(call.args) and isinstance(call.args[0], ast.Call) and called_name(call.args[0]) == "iter"


def goes_on(suite: list[ast.stmt]) -> bool:
    """Whether a suite can be left without an error."""
    for statement in suite:
        if isinstance(statement, ast.Raise) or (isinstance(statement, ast.Expr) and ends_process(statement.value)):
            return False
        if isinstance(statement, _GOES_ELSEWHERE):
            return True
        if isinstance(statement, ast.If) and statement.orelse:
            if not goes_on(statement.body) and not goes_on(statement.orelse):
                return False
        if any(isinstance(part, _GOES_ELSEWHERE) for part in _inner(statement)):
            return True
    return True


def _inner(statement: ast.stmt) -> Iterator[ast.AST]:
    """What stands in a statement, without the functions that it defines."""
    if not isinstance(statement, (FunctionNode, ast.ClassDef)):
        yield from walk(statement)
