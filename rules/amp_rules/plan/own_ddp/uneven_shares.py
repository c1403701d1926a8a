"""Shares of which some processes have one element more, each trained on: ``items[rank::world_size]``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk

_AROUND = frozenset({"tqdm", "enumerate", "track", "list"})
_MAX_NAMES = 2
"""Variables between a share and the loop over it: ``share = items[rank::size]`` and a bar."""


def uneven_shares(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the loops over such shares that run backward passes through a wrapper."""
    if not own.wraps or any(
        isinstance(call.func, ast.Name) and call.func.id == "Join" for call, _, _ in own.program.calls()
    ):
        return
    for loop, body, scope in own.program.nodes():
        if not isinstance(loop, ast.For) or scope.module not in own.modules or body in own.uncalled:
            continue
        share = _share(own.program, loop.iter, scope, _MAX_NAMES)
        if share is not None and own.program.runs_backward(loop) and not _is_cut(own.program, share, scope):
            text = (
                f"`{scope.module.text(share)}` gives some processes one element more, unless the length is a multiple "
                "of their number: they wait in the backward pass for those that have ended"
            )
            yield scope.module, loop.iter, text


def _share(program: Program, node: ast.expr, scope: Scope, depth: int) -> ast.Subscript | None:
    """The slice that a loop goes through: every N-th element, from the one of the process on."""
    if isinstance(node, ast.Call):
        is_around = last_name(node.func) in _AROUND and bool(node.args)
        return _share(program, node.args[0], scope, depth) if is_around else None
    if isinstance(node, ast.Subscript):
        part = node.slice
        if not isinstance(part, ast.Slice) or part.lower is None or part.step is None or part.upper is not None:
            return None
        return node if names_rank(part.lower) else None
    values = assigned(program, node, scope) if isinstance(node, (ast.Name, ast.Attribute)) and depth else []
    return _share(program, values[0], scope, depth - 1) if len(values) == 1 else None


def _is_cut(program: Program, share: ast.Subscript, scope: Scope) -> bool:
    """Whether the length is made a multiple: ``items = items[: len(items) // size * size]``."""
    if not isinstance(share.value, (ast.Name, ast.Attribute)):
        return True
    path = blocks.path_of(share.value)
    given = [*assigned(program, share.value, scope)]
    grown = [
        node.value
        for node in scope.module.nodes
        if isinstance(node, ast.AugAssign) and blocks.path_of(node.target) == path
    ]
    return bool(grown) or any(isinstance(node, (ast.FloorDiv, ast.Mod)) for value in given for node in walk(value))
