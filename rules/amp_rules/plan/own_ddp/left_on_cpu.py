"""Models that are on the CPU for certain where they are wrapped: a test says so, or the last move above does."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import certain_parts
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.torch.devices import ASKS_FOR_CUDA
from amp_rules.torch.wrappers import PREPARES

_MAX_NAMES = 3
"""Names between a test or a move and what it is about: ``use_cuda``, ``args.cuda``, a parameter's own name."""


def is_left_on_cpu(own: OwnDdp, wrap: Site, model: ast.expr) -> bool:
    """Whether a model that is wrapped is on the CPU on every way to its wrapper."""
    if _is_prepared(own, model, wrap):
        assert isinstance(model, ast.Call)
        model = model.args[0]
    path = blocks.path_of(model) if isinstance(model, (ast.Name, ast.Attribute)) else None
    if path is None:
        return False
    if any(_says_no_cuda(own, test, holds, wrap) for test, holds in own.branches(wrap.module, wrap.node)):
        return True
    above = blocks.statements_above(wrap.module, wrap.statement, wrap.body)
    for item in sorted(above, key=lambda item: item.lineno, reverse=True):
        value = item.value if isinstance(item, (ast.Assign, ast.Expr)) else None
        if _is_prepared(own, value, wrap):
            continue
        moved = _moved(value)
        if moved is not None and (path in blocks.writes(item) or blocks.path_of(moved) == path):
            assert isinstance(value, ast.Call)
            return _is_cpu(own, value, wrap)
        if path in blocks.writes(item) or _may_move(item, path):
            return False
    return False


def _is_prepared(own: OwnDdp, value: ast.expr | None, wrap: Site) -> bool:
    """``amp.prepare_model(model)``, which moves nothing here: the script says where its model is."""
    return isinstance(value, ast.Call) and bool(value.args and own.program.callee_names(value, wrap.scope) & PREPARES)


def _may_move(item: ast.stmt, path: str) -> bool:
    """Whether a statement that is no plain move may move a model: it calls one of its methods, or is given it."""
    calls = (node for node in blocks.walk_own(item) if isinstance(node, ast.Call))
    return any(blocks.touches({path}, blocks.reads(call)) for call in calls)


def _moved(value: ast.expr | None) -> ast.expr | None:
    """What ``model.to(device)`` and ``model.cpu()`` move."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cpu"):
        return value.func.value
    return None


def _is_cpu(own: OwnDdp, move: ast.Call, wrap: Site) -> bool:
    assert isinstance(move.func, ast.Attribute)
    if move.func.attr == "cpu":
        return True
    device = move.args[0] if move.args else keyword(move, "device")
    return device is not None and _names_cpu(own, device, wrap, _MAX_NAMES)


def _names_cpu(own: OwnDdp, node: ast.expr, wrap: Site, depth: int) -> bool:
    """``"cpu"``, ``torch.device("cpu")``, and names that are nothing else."""
    if isinstance(node, ast.Call) and node.args and "torch.device" in own.program.callee_names(node, wrap.scope):
        return len(node.args) == 1 and literal(node.args[0]) == "cpu"
    if isinstance(node, ast.Name) and depth:
        values = _all_assigned(own, node, wrap)
        return bool(values) and all(_names_cpu(own, value, wrap, depth - 1) for value in values)
    return literal(node) == "cpu"


def _all_assigned(own: OwnDdp, node: ast.Name, wrap: Site) -> list[ast.expr]:
    """What a variable is assigned, where plain assignments alone bind a name like this in the whole file."""
    bound = [
        item
        for item in wrap.module.nodes
        if (isinstance(item, ast.Name) and item.id == node.id and not isinstance(item.ctx, ast.Load))
        or (isinstance(item, ast.arg) and item.arg == node.id)
    ]
    values = assigned(own.program, node, wrap.scope)
    return values if len(values) == len(bound) else []


def _says_no_cuda(own: OwnDdp, test: ast.expr, holds: bool, wrap: Site, depth: int = _MAX_NAMES) -> bool:
    """Whether a test that comes out like this says that there is no GPU: ``not torch.cuda.is_available()``."""
    for part, comes_out in certain_parts(test, holds):
        if isinstance(part, ast.Call):
            if not comes_out and own.program.callee_names(part, wrap.scope) & ASKS_FOR_CUDA:
                return True
        elif isinstance(part, ast.Name) and depth:
            values = _all_assigned(own, part, wrap)
            if len(values) == 1 and _says_no_cuda(own, values[0], comes_out, wrap, depth - 1):
                return True
    return False
