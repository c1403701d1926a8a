"""Calls that fail on one process and not on the others, where the script goes on in another way then."""

from __future__ import annotations

import ast

from amp_rules.plan.file_guards import FileGuards
from amp_rules.roles.file_effects import makes_folder, try_that_expects
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import conjuncts, own_name, walk
from amp_rules.torch.file_access import FOLDER_ERRORS, FOLDER_LOOKS, TELL_FAILURES

_HELPERS = 3
"""Callers above callers whose ``try`` is looked for; people wrap a call, or the helper around it."""


def fail_alone(program: Program, guards: FileGuards) -> frozenset[ast.Call]:
    """Calls within a ``try`` that expects them to fail, which not all processes make, or of which one alone succeeds.

    A ``try`` around the training is none of these: when that fails, the run is over.
    """
    left = {site.node for site in guards.calls}
    inner = {node for statement in guards.statements for node in walk(statement)}
    alone = [(item.module, item.call) for item in guards.effects if item.call in inner or item.call.func in left]
    found = {
        call
        for module, call in alone
        if not _tells_failures(program, call) and _is_expected(program, module, call, _HELPERS)
    }
    for call, _, scope in program.calls():
        # Where nothing expects it here, a folder that is there already is accepted (AMP209).
        if makes_folder(program, call, scope) and try_that_expects(scope.module, call, FOLDER_ERRORS) is not None:
            if _is_expected(program, scope.module, call, 0):
                found.add(call)
    return frozenset(found)


def asks_for_existing(program: Program) -> tuple[frozenset[ast.expr], frozenset[ast.expr]]:
    """Tests of a handler that hold where another process has made the folder first, and tests that do not.

    ``if e.errno != errno.EEXIST: raise`` raises for what is wrong with the folder in all processes alike.
    """
    holding, excluded = set[ast.expr](), set[ast.expr]()
    for call, _, scope in program.calls():
        if not makes_folder(program, call, scope):
            continue
        expecting = try_that_expects(scope.module, call, FOLDER_ERRORS)
        for handler in expecting.handlers if expecting is not None else ():
            for node in walk(handler) if handler.name is not None else ():
                if isinstance(node, ast.If):
                    asked = [_of_existing(item, handler.name) for item in conjuncts(node.test)]
                    if all(item is ast.Eq for item in asked):
                        holding.add(node.test)
                    elif asked == [ast.NotEq]:
                        excluded.add(node.test)
    return frozenset(holding), frozenset(excluded)


def _of_existing(test: ast.expr, error: str | None) -> type[ast.cmpop] | None:
    """How a test compares the number of an error to that of what is there already, or asks for the folder itself."""
    if isinstance(test, ast.Call) and own_name(test.func) in FOLDER_LOOKS:
        return ast.Eq
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and blocks.path_of(test.left) == f"{error}.errno"):
        return None
    return type(test.ops[0]) if own_name(test.comparators[0]) == "EEXIST" else None


def _tells_failures(program: Program, call: ast.Call) -> bool:
    """Whether a call raises nothing where it fails: ``os.system(command)``."""
    located = program.locate(call)
    return located is not None and bool(program.callee_names(call, located[1]) & TELL_FAILURES)


def _is_expected(program: Program, module: Module, call: ast.Call, depth: int) -> bool:
    expecting = try_that_expects(module, call)
    if expecting is not None:
        return not any(map(program.runs_backward, expecting.body))
    info = program.function_of(blocks.body_of(module, call))
    callers = [calling(item) for item in program.flow.callers(info)] if info is not None and depth else []
    return any(
        isinstance(item.node, ast.Call) and _is_expected(program, item.module, item.node, depth - 1) for item in callers
    )


def follows_failed_training(program: Program, module: Module, node: ast.AST, depth: int = _HELPERS) -> bool:
    """Whether a place is reached only when the training has failed: one process may come there alone."""
    for parent in module.ancestors(node):
        if isinstance(parent, ast.ExceptHandler):
            failed = module.parents[parent]
            if isinstance(failed, ast.Try) and any(map(program.runs_backward, failed.body)):
                return True
    info = program.function_of(blocks.body_of(module, node))
    callers = program.flow.callers(info) if info is not None and depth else []
    return bool(callers) and all(
        follows_failed_training(program, item.scope.module, item.call, depth - 1) for item in callers
    )
