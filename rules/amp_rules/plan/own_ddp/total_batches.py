"""Batches whose size is that of all processes by the help of its option, and of which each process takes as many."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk

_TOTAL = re.compile(
    r"\b(total|global)\b.{0,12}\bbatch|\bbatch.{0,40}\b(total|all|across)\b.{0,24}\b(gpus?|devices|processes|workers)\b",
    re.IGNORECASE | re.DOTALL,
)
"""``total batch size for all GPUs``; one for accumulated gradients is not meant."""
_MAX_NAMES = 3


def total_batches(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first size of such a batch; none where the program divides some batch by anything."""
    options = {dest: option for option, dest in _options(own)}
    if not options or any(map(_divides, (node for node, _, _ in own.program.nodes()))):
        return
    shared = shares.metrics.shared_loaders
    for use in own.data.uses:
        for value in use.values:
            given = given_to_loader(value.site, "batch_size") if isinstance(value.site, ast.Call) else None
            located = own.program.locate(given) if given is not None and value.site in shared else None
            if given is None or located is None or located[1].module not in own.modules:
                continue
            option = next(
                (options[name] for name in _names(own, given, located[1], _MAX_NAMES) if name in options), None
            )
            if option is not None:
                text = (
                    f"each process takes as many samples in a batch as `{option}` says, which is the total of all by "
                    "its help: the batch is N times as large; divide it by the number of processes"
                )
                yield located[1].module, given, text
                return


def _options(own: OwnDdp) -> Iterator[tuple[str, str]]:
    """Yield the options whose help speaks of a total, each with the attribute that it becomes."""
    for call, _, _ in own.program.calls():
        told = literal(keyword(call, "help")) if last_name(call.func) == "add_argument" else None
        if not isinstance(told, str) or not _TOTAL.search(told) or "accumul" in told.lower():
            continue
        flags = [flag for item in call.args if isinstance(flag := literal(item), str)]
        flag = next((item for item in flags if item.startswith("--")), None)
        dest = literal(keyword(call, "dest"))
        if flag is not None:
            yield flag, dest if isinstance(dest, str) else flag.lstrip("-").replace("-", "_")


def _names(own: OwnDdp, node: ast.expr, scope: Scope, depth: int) -> Iterator[str]:
    """Yield the attributes that an expression is for certain, through variables and parameters."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name) and depth:
        owner = scope.owner(node.id)
        values = [
            value
            for item in blocks.walk_body(owner.node)
            if isinstance(item, ast.Assign)
            for target in item.targets
            for one, value in blocks.unpacked(target, item.value)
            if blocks.path_of(one) == node.id
        ]
        info = own.program.function_of(owner.node)
        if info is not None and node.id in info.parameters:
            for caller in own.program.flow.callers(info):
                given = info.argument_or_default(caller.call, node.id)
                if given is not None:
                    yield from _names(own, given, caller.scope, depth - 1)
        elif len(values) == 1:
            yield from _names(own, values[0], owner, depth - 1)


def _divides(node: ast.AST) -> bool:
    """Whether a batch is divided, by the number of processes for all that is known."""
    if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, (ast.Div, ast.FloorDiv)):
        return False
    divided = node.left if isinstance(node, ast.BinOp) else blocks.reading(node.target)
    return any("batch" in path.lower() for part in walk(divided) for path in blocks.reads(part))
