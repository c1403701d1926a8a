"""Counters of steps that a loop gives to a function, and what that does every so many of them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


class GivenTest(NamedTuple):
    """A condition of a function that a loop calls, on a counter that it is given.

    Attributes:
        scope: the function's.
        branch: the statement.
        rest: ``step % every``.
        counter: the counter as the loop calls it.
    """

    scope: Scope
    branch: ast.If
    rest: ast.BinOp
    counter: str


def given_tests(program: Program, loop: BatchLoop, counters: Collection[str]) -> Iterator[GivenTest]:
    """Yield such conditions of the one function that a call of the loop runs.

    A branch that the call turns off, or leaves off, is none, nor is what gives the parameter another value.
    """
    for call in loop.inner:
        callees = program.flow.callees(call) if isinstance(call, ast.Call) else ()
        if len(callees) != 1 or not isinstance(call, ast.Call):
            continue
        info = next(iter(callees))
        scope = program.flow.scopes.get(info.node)
        if scope is None or isinstance(info.node, ast.Lambda):
            continue
        given = {name: info.argument_or_default(call, name) for name in info.parameters}
        counted = {
            name: path
            for name, value in given.items()
            if value is not None and (path := blocks.path_of(value)) in counters and path is not None
        }
        written = {path for item in info.body for path in blocks.writes(item)} if counted else set()
        for branch in blocks.walk_body(info.node) if counted else ():
            if not isinstance(branch, ast.If) or any(map(program.runs_step, branch.body)):
                continue
            for part in walk(branch.test):
                if not (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)):
                    continue
                name = part.left.id if isinstance(part.left, ast.Name) else ""
                if name in counted and name not in written and not _is_off(info, call, scope, branch):
                    yield GivenTest(scope, branch, part, counted[name])


def _is_off(info: FunctionFacts, call: ast.Call, scope: Scope, branch: ast.If) -> bool:
    """Whether a condition around a branch is a parameter that the call leaves false."""
    for around in blocks.enclosing(scope.module, branch):
        if isinstance(around, ast.If) and isinstance(around.test, ast.Name) and around.test.id in info.parameters:
            value = info.argument_or_default(call, around.test.id)
            if isinstance(value, ast.Constant) and not value.value:
                return True
    return False
