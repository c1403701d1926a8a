"""Shares that each process takes of an order of its own: a shuffle by a seed of the rank, then every N-th element."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.plan.own_ddp.orders_apart import made_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given

_SEEDS = frozenset({"default_rng", "RandomState", "Random", "manual_seed", "seed"})
_SHUFFLES = frozenset({"shuffle", "permutation", "randperm"})


def shares_of_own_orders(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such share."""
    for node, body, scope in own.program.nodes():
        if not isinstance(node, ast.Subscript) or scope.module not in own.modules or body in own.uncalled:
            continue
        if not isinstance(node.slice, ast.Slice) or node.slice.lower is None or node.slice.step is None:
            continue
        above = [item for item in blocks.walk_body(body) if getattr(item, "lineno", node.lineno) < node.lineno]
        if not _is_of_rank(node.slice.lower, above):
            continue
        shuffle = _shuffle(scope.module, node, above)
        if shuffle is not None:
            text = (
                f"`{scope.module.text(shuffle)}` gives each process an order of its own, as its seed is the rank's, "
                f"and `{scope.module.text(node)}` takes its share of that: some samples are in several shares and "
                "others in none; seed it alike in all of them"
            )
            yield scope.module, shuffle, text
            return


def _is_of_rank(first: ast.expr, above: list[ast.AST]) -> bool:
    """Whether a share begins at the rank, by a variable too: ``start = self.rank``."""
    if names_rank(first):
        return True
    path = blocks.path_of(first)
    given = [item.value for item in above if isinstance(item, ast.Assign) and path in blocks.writes(item)]
    return bool(given) and path is not None and all(map(names_rank, given))


def _shuffle(module: Module, share: ast.Subscript, above: list[ast.AST]) -> ast.Call | None:
    """The call that shuffles what the share is of, by a seed of the rank that is set above it."""
    calls = [item for item in above if isinstance(item, ast.Call)]
    seeds = [item for item in calls if last_name(item.func) in _SEEDS]
    if not seeds or not all(any(map(names_rank, values_given(item))) for item in seeds):
        return None
    for call in calls:
        if last_name(call.func) not in _SHUFFLES or call.lineno < min(item.lineno for item in seeds):
            continue
        statement = blocks.statement_of(module, call)
        path = blocks.path_of(call.args[0]) if call.args else None
        names = {path} if path is not None else set()
        if isinstance(statement, ast.Assign):
            names = blocks.writes(statement)
        below = [item for item in above if getattr(item, "lineno", 0) >= call.lineno]
        if blocks.touches(names | made_of(below, names), blocks.reads(share.value)):
            return call
    return None
