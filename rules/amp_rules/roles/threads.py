"""Functions that run in threads of their own: there a process waits for no other."""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary

from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.torch.threads import HANDING_OVER, POOLS, THREADS

_KNOWN: WeakKeyDictionary[Program, frozenset[ast.AST]] = WeakKeyDictionary()


def handed_over(program: Program, call: ast.Call, scope: Scope) -> ast.expr | None:
    """The function that a call has another thread run."""
    if program.callee_names(call, scope) & THREADS:
        by_name = next((item.value for item in call.keywords if item.arg in ("target", "function")), None)
        return by_name or (call.args[1] if len(call.args) > 1 else None)
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in HANDING_OVER and call.args):
        return None
    pools = program.flow.values(call.func.value, scope)
    return call.args[0] if any(value.kind == "object" and value.ref in POOLS for value in pools) else None


def bodies_of_threads(program: Program) -> frozenset[ast.AST]:
    """What only other threads than the main one run, beside the training: what draws a window, for one."""
    known = _KNOWN.get(program)
    if known is None:
        known = _KNOWN[program] = _found(program)
    return known


def _found(program: Program) -> frozenset[ast.AST]:
    started: set[FunctionFacts] = set()
    for call, _, scope in program.calls():
        given = handed_over(program, call, scope)
        values = program.flow.values(given, scope) if given is not None else ()
        started |= {value.ref for value in values if isinstance(value.ref, FunctionFacts)}
    started = {info for info in started if not any(map(program.runs_backward, program.nodes_of(info.node)))}
    bodies = {info.node for info in started}
    found = bodies | program.called_from([node for body in bodies for node in program.nodes_of(body)])
    while True:
        others = {body for body in found if _is_called_elsewhere(program, body, found)}
        if not others:
            return frozenset(found)
        found -= others


def _is_called_elsewhere(program: Program, body: ast.AST, within: set[ast.AST]) -> bool:
    info = program.function_of(body)
    return info is None or any(caller.scope.node not in within for caller in program.flow.callers(info))
