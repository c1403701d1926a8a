"""Files that the first process makes before the others look for them: it runs a function, and a barrier follows."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import LOOKS

_MAX_CALLERS = 4
"""Functions between the look for a file and the one that lets one process go first."""


def is_made_by_first(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether the others find what is written at a place where the file is missing alone: ``if not exists(path):``."""
    if not _is_where_missing(own, module, node):
        return False
    body = blocks.body_of(module, node)
    return _goes_first(own, Site(module, own.program.flow.scopes[body], body, node), _MAX_CALLERS)


def _is_where_missing(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    inner: ast.AST = node
    for parent in blocks.enclosing(module, node):
        if isinstance(parent, blocks.BODIES):
            return False
        if isinstance(parent, ast.If):
            test, is_other = parent.test, inner in parent.orelse
            is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            looked = test.operand if isinstance(test, ast.UnaryOp) else test
            located = own.program.locate(looked) if isinstance(looked, ast.Call) else None
            if located is not None and is_not is not is_other:
                if own.program.callee_names(looked, located[1]) & LOOKS:  # type: ignore[arg-type]
                    return True
        inner = parent
    return False


def _goes_first(own: OwnDdp, place: Site, depth: int) -> bool:
    """Whether a caller has one process run a function, and all of them again behind a barrier."""
    info = own.program.function_of(place.body)
    if info is None or depth == 0:
        return False
    callers = [calling(item) for item in own.program.flow.callers(info)]
    calls = {item.node for item in callers}
    runs = own.program.closure(lambda node: node in calls)
    barriers = {site.node for site in own.program.calls_to(BARRIERS)}
    waits = own.program.closure(lambda node: node in barriers)
    for item in callers:
        for parent in blocks.enclosing(item.module, item.node):
            if not isinstance(parent, ast.If) or not own.parts_first(item.module, parent):
                continue
            if not any(node is item.node for part in parent.body for node in walk(part)):
                continue
            waited = False
            for suite, index in blocks.suites_around(item.module, parent):
                for statement in suite[index + 1 :]:
                    if waited and runs(statement):
                        return True
                    waited = waited or waits(statement)
    return any(_goes_first(own, item, depth - 1) for item in callers)
