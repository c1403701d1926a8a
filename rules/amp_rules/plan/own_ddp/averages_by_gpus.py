"""Sums over the processes that are divided by the number of GPUs of the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.gpu_counts import counts_gpus
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import REDUCTIONS


def averages_by_gpus(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such division of each function, where a launcher says how many processes there are."""
    if not Starts(own.program, own.joins).counted_by_launcher:
        return
    for site in own.program.calls_to(REDUCTIONS):
        reduced = blocks.path_of(site.node.args[0]) if isinstance(site.node, ast.Call) and site.node.args else None
        if reduced is None or site.module not in own.modules or site.body in own.uncalled:
            continue
        for node in blocks.walk_body(site.body):
            divisor = _divisor(node, reduced)
            if divisor is None or getattr(node, "lineno", 0) <= site.line:
                continue
            if counts_gpus(own, divisor, site.scope):
                text = (
                    f"`{reduced}`, a sum over the processes, is divided by `{site.module.text(divisor)}`, the number "
                    "of GPUs of one machine: where a launcher starts another number of processes it is no mean; "
                    "`torch.distributed.get_world_size()` is theirs"
                )
                yield site.module, node, text
                break


def _divisor(node: ast.AST, path: str) -> ast.expr | None:
    """What a variable is divided by."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and blocks.path_of(node.target) == path:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and blocks.path_of(node.left) == path:
        return node.right
    return None
