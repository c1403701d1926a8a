"""Runners that call a method of each callback by the name of an event, and what these methods give back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import conjuncts, is_none, last_name


def is_never_true(own: OwnDdp, test: ast.expr) -> bool:
    """Whether ``self("after_epoch")`` gives nothing true: no method of that name in the program gives anything."""
    callees = list(own.program.flow.callees(test)) if isinstance(test, ast.Call) else []
    return bool(callees) and all(_gives_nothing(own, info, test) for info in callees)  # type: ignore[arg-type]


def _gives_nothing(own: OwnDdp, runner: FunctionFacts, call: ast.Call) -> bool:
    events = {name: event for name in runner.parameters if isinstance(event := _event(runner, call, name), str)}
    returns = [node for node in blocks.walk_body(runner.node) if isinstance(node, ast.Return)]
    module = own.program.module_of(runner.node)
    if not events or module is None:
        return False
    return all(
        node.value is None
        or literal(node.value) in (None, False)
        or (
            literal(node.value) is True
            and any(_answers_nothing(own, part, runner, events) for part in _asked(module, node))
        )
        for node in returns
    )


def _event(runner: FunctionFacts, call: ast.Call, name: str) -> object:
    given = runner.argument(call, name)
    return literal(given) if given is not None else None


def _asked(module: Module, node: ast.Return) -> Iterator[ast.expr]:
    """Yield what has to hold right around a ``return``: ``f`` and ``f()`` of ``if f and f(): return True``."""
    parent = module.parents[node]
    if isinstance(parent, ast.If) and node in parent.body:
        yield from conjuncts(parent.test)


def _answers_nothing(own: OwnDdp, part: ast.expr, runner: FunctionFacts, events: dict[str, str]) -> bool:
    """Whether a call runs the method that is named after the event, and no such method gives anything."""
    if not isinstance(part, ast.Call):
        return False
    method: ast.expr = part.func
    if isinstance(method, ast.Name):
        given = [
            node.value
            for node in blocks.walk_body(runner.node)
            if isinstance(node, ast.Assign) and method.id in [blocks.path_of(target) for target in node.targets]
        ]
        if len(given) != 1:
            return False
        method = given[0]
    if not (isinstance(method, ast.Call) and last_name(method.func) == "getattr" and len(method.args) > 1):
        return False
    event = events.get(blocks.path_of(method.args[1]) or "")
    named = [info for info in own.program.flow.functions.values() if info.name == event]
    return bool(named) and all(map(_is_procedure, named))


def _is_procedure(info: FunctionFacts) -> bool:
    is_plain = isinstance(info.node, ast.FunctionDef) and not info.decorator_list
    gives = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in blocks.walk_body(info.node))
    return is_plain and not gives and all(map(is_none, info.returns))
