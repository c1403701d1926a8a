"""Loops that get their loader together with the function that they call for each batch: one trains, another evaluates.

``run(train_loader, train_step)`` and ``run(valid_loader, valid_step)``; or both are chosen in the branches of one test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.loaders_by_flag import Apart, use_of
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk

_Sides = dict[object, tuple[ast.expr, Site]]
"""What a variable is given in each case: by the test and its side, or by the call."""


def by_function(program: Program, use: LoaderUse) -> Apart | None:
    """Find the loaders of a loop that trains with some and evaluates with others; None where that is not certain."""
    if not isinstance(use.loader, ast.Name):
        return None
    for name in calls_for_both(program, use):
        for given in (_in_branches, _by_callers):
            functions, loaders = given(program, use, name), given(program, use, use.loader.id)
            if functions and functions.keys() == loaders.keys():
                apart = _apart(program, functions, loaders)
                if apart is not None:
                    return apart
    return None


def calls_for_both(program: Program, use: LoaderUse) -> list[str]:
    """The variables that the loop calls, and that may hold a function that trains and one that does not."""
    return [
        node.func.id
        for node in walk(blocks.statement_of(use.module, use.loader))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and len({_trains(program, info) for info in program.flow.callees(node)}) > 1
    ]


def _trains(program: Program, info: FunctionFacts) -> bool:
    return any(map(program.runs_backward, blocks.own_parts(info.node)))


def _in_branches(program: Program, use: LoaderUse, name: str) -> _Sides:
    """What a variable is given on each side of one test: in branches of an ``if``, or by ``one if test else two``."""
    found: _Sides = {}
    for node in program.nodes_of(use.body):
        if name not in blocks.writes_itself(node):
            continue
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return {}
        site = Site(use.module, use.scope, use.body, node)
        for test, side, value in _sides(use, node):
            for target, given in blocks.unpacked(node.targets[0], value):
                if blocks.path_of(target) == name:
                    key = (ast.dump(test), side)
                    if key in found:
                        return {}
                    found[key] = (given, site)
    return found if len(found) == 2 else {}


def _sides(use: LoaderUse, node: ast.Assign) -> Iterator[tuple[ast.expr, bool, ast.expr]]:
    """The test that an assignment depends on, its side, and what is given there."""
    if isinstance(node.value, ast.IfExp):
        yield node.value.test, True, node.value.body
        yield node.value.test, False, node.value.orelse
        return
    parent = use.module.parents[node]
    if isinstance(parent, ast.If):
        yield parent.test, node in parent.body, node.value


def _by_callers(program: Program, use: LoaderUse, name: str) -> _Sides:
    """What each call gives for a parameter that is not assigned again."""
    info = program.function_of(use.body)
    if info is None or name not in info.parameters:
        return {}
    if any(name in blocks.writes_itself(node) for node in program.nodes_of(use.body)):
        return {}
    found: _Sides = {}
    for caller in program.flow.callers(info):
        given = info.argument(caller.call, name)
        if given is None:
            return {}
        found[caller.call] = (given, calling(caller))
    return found


def _apart(program: Program, functions: _Sides, loaders: _Sides) -> Apart | None:
    found = Apart()
    for case, (function, site) in functions.items():
        held = {
            _trains(program, value.ref)
            for value in program.flow.values(function, site.scope)
            if value.kind == "function"
        }
        if len(held) != 1:
            return None
        (found.training if held.pop() else found.evaluated).append(use_of(program, *loaders[case]))
    return found if found.training and all(item.values for item in found.training) else None
