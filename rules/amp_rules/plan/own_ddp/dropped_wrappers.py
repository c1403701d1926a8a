"""Wrappers that a function makes and drops: it gives them to a variable of its own, which nothing reads any more.

``def spread(model): model = DDP(model)`` leaves the caller the model without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_LEAVES = (ast.Global, ast.Nonlocal)


def dropped_wrappers(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first wrapper of a trained model in each function, where the model has no other."""
    dropped = [wrap for wrap in own.wraps if _is_dropped(wrap)]
    if not dropped or may_average(own.program):
        return
    kept: set[Value] = set()
    for wrap in own.wraps:
        kept |= set() if wrap in dropped else _models(own, wrap)
    told: set[ast.AST] = set()
    for wrap in dropped:
        models = _models(own, wrap) & own.program.trained
        if not models or models & kept or wrap.body in told or wrap.body in own.uncalled:
            continue
        told.add(wrap.body)
        assert isinstance(wrap.body, ast.FunctionDef)
        yield (
            wrap.module,
            wrap.node,
            f"this wrapper is gone when `{wrap.body.name}` ends, which does not give it back: the callers train the "
            "model without it, and nothing averages the gradients over the processes; return the wrapper, and use that",
        )


def is_dropped(own: OwnDdp, wrap: Site) -> bool:
    """Whether a wrapper is dropped so, and what its model is trained by does not go through it."""
    return any(module is wrap.module and _stand_together(node, wrap) for module, node, _ in dropped_wrappers(own))


def _stand_together(node: ast.AST, wrap: Site) -> bool:
    return _is_dropped(wrap) and any(item is node for item in walk(wrap.body))


def _models(own: OwnDdp, wrap: Site) -> set[Value]:
    assert isinstance(wrap.node, ast.Call)
    given = argument_at(wrap.node, "module", 0)
    return own.program.flow.values(given, wrap.scope) if given is not None else set()


def _is_dropped(wrap: Site) -> bool:
    """Whether nothing can read what a function's variable holds from its wrapper on."""
    statement, body = wrap.statement, wrap.body
    if not isinstance(body, ast.FunctionDef):
        return False
    if isinstance(statement, ast.Expr):
        return statement.value is wrap.node
    if not isinstance(statement, ast.Assign) or statement.value is not wrap.node:
        return False
    names = {target.id if isinstance(target, ast.Name) else "" for target in statement.targets}
    if "" in names:
        return False
    in_loop = blocks.loop_around(wrap.module, statement) is not None
    for node in walk(body):
        if isinstance(node, _LEAVES) and names & {*node.names}:
            return False
        if isinstance(node, ast.Name) and node.id in names and not isinstance(node.ctx, ast.Store):
            is_above = node.lineno <= (statement.end_lineno or statement.lineno)
            is_nested = blocks.body_of(wrap.module, node) is not body
            if (in_loop or is_nested or not is_above) and not blocks.exclude_each_other(wrap.module, node, statement):
                if node not in set(walk(wrap.node)):
                    return False
    return True
