"""Reductions of a tensor that only the call holds: nothing reads what comes of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module

_ALL_REDUCE = frozenset({"torch.distributed.all_reduce"})


def dropped_results(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield ``dist.all_reduce(total / world_size)`` as a statement: the quotient is a tensor of its own."""
    for site in own.program.calls_to(_ALL_REDUCE):
        call = site.node
        if not isinstance(call, ast.Call) or not call.args or site.module not in own.modules:
            continue
        if isinstance(call.args[0], ast.BinOp) and isinstance(site.module.parents[call], ast.Expr):
            text = site.module.text(call.args[0])
            yield (
                site.module,
                call,
                f"`{text}` is a new tensor, in which the result is lost: what is read after it is of this process "
                "alone; give the tensor a name before it is reduced, and read that",
            )
