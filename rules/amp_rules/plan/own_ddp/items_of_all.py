"""Several results of one function, of which some are put together over the processes, and others are not."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.exchanges import Exchanges
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import values_given

_MAX_DEPTH = 3
"""Functions within each other that hand on results: ``validate``, ``step``."""


def are_others_of_all(
    exchanges: Exchanges, program: Program, module: Module, call: ast.Call, names: set[str], depth: int = _MAX_DEPTH
) -> bool:
    """Whether a call puts other results of its function together than those that some variables get.

    Args:
        exchanges: what puts numbers together.
        program: the program.
        module: the file of the call.
        call: the call, as in ``loss, accuracy = validate(model, loader)``.
        names: the variables.
        depth: how many functions are looked into.
    """
    statement = blocks.statement_of(module, call)
    callees = program.flow.callees(call)
    if not (isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1 and callees):
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Tuple) or depth == 0:
        return False
    wanted = [
        place for place, item in enumerate(target.elts) if blocks.touches({blocks.path_of(item) or ""} - {""}, names)
    ]
    for info in callees:
        if info.yields or not info.returns:
            return False
        for returned in info.returns:
            if not isinstance(returned, ast.Tuple) or len(returned.elts) != len(target.elts):
                return False
            where = info.module.module
            for place in wanted:
                if _may_be_of_all(exchanges, program, where, info.node, returned.elts[place], depth):
                    return False
    return True


def _may_be_of_all(
    exchanges: Exchanges, program: Program, module: Module, body: ast.AST, result: ast.expr, depth: int
) -> bool:
    """Whether something in a function puts together what a result of it is made of."""
    nodes = list(blocks.walk_body(body))
    names = blocks.reads(result)
    bindings = [(blocks.writes(item), blocks.reads(item)) for item in nodes if isinstance(item, _BINDS)]
    while True:
        more = {path for written, read in bindings if blocks.touches(written, names) for path in read} - names
        if not more:
            break
        names |= more
    for call in nodes:
        if not isinstance(call, ast.Call) or not exchanges.puts_together(call):
            continue
        given = {path for item in values_given(call) for path in _handed_in(item)}
        given |= blocks.writes(blocks.statement_of(module, call))
        if isinstance(call.func, ast.Attribute) and not exchanges.is_of_torch(call):
            given |= _handed_in(call.func.value)
        if blocks.touches(names, given):
            if not are_others_of_all(exchanges, program, module, call, names, depth - 1):
                return True
    return False


def _handed_in(item: ast.expr) -> set[str]:
    """What a call can change in place: variables; what an expression computes is new."""
    parts = item.elts if isinstance(item, (ast.List, ast.Tuple)) else [item]
    return {path for part in parts if (path := blocks.path_of(part)) is not None}


_BINDS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
