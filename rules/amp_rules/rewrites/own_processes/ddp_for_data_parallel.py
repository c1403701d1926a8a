"""Wrap the model for the processes that a script joins, not for threads.

## What it does
`DataParallel` becomes `DistributedDataParallel` where the processes of the script have joined and nothing else averages
the gradients. Devices stay where they are the one of the process; a list of several goes.

## Why
`DataParallel` knows nothing of other processes: each trains a model of its own, on its share of the data.

## Before
    model = nn.DataParallel(model, device_ids=[args.local_rank], output_device=args.local_rank)

## After
    model = nn.parallel.DistributedDataParallel(model, device_ids=[args.local_rank], output_device=args.local_rank)

## When it declines
Where the program has `DistributedDataParallel` or averages gradients itself; where the place may be reached in one
process that drives several GPUs; and where the model is moved after it was wrapped (AMP288).

## Leaving it out
Yes: the processes then train apart, as they did.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.context import Change
from amp_rules.plan.own_ddp.averaging import may_average, may_wrap
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.plan.rule import Rule
from amp_rules.roles.sites import Site
from amp_rules.source.index import keyword
from amp_rules.text.actions import ExpressionEdit, Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch.wrappers import DATA_PARALLEL

RULE = Rule(
    "AMP235", "ddp-for-data-parallel", "The model is wrapped for the processes that were joined.", "distribution",
    optional=True, together=True,
)  # fmt: skip

_DDP = "torch.nn.parallel.DistributedDataParallel"


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield an edit for each wrapper, and for each look for one."""
    if may_wrap(own.program) or may_average(own.program):
        return
    ranks = RankValues(own.program)
    done = False
    for site in own.program.calls_to(DATA_PARALLEL):
        call = site.node
        if not isinstance(call, ast.Call) or site.module not in own.modules:
            continue
        is_of_rank = _has_device_of_rank(call, site, ranks)
        if not is_of_rank and own.several_alone(site.module, call) is not True:
            continue
        word = own.word(site.module, _DDP)
        parent = site.module.parents[call]
        if word is None or isinstance(parent, ast.Attribute) or len(call.args) > 1:
            own.leave(RULE, site.module, call, f"`{site.module.text(call)}` does not average gradients over processes")
            continue
        done = True
        message = f"`{site.module.text(call.func)}` knows nothing of other processes"
        yield Change(RULE, site.module, call, message, [Replace(call, _wrapped(word, keeps_devices=is_of_rank))])
    if done:
        yield from _looks(own)


def _has_device_of_rank(call: ast.Call, site: Site, ranks: RankValues) -> bool:
    """``device_ids=[local_rank]``."""
    devices = keyword(call, "device_ids")
    return (
        isinstance(devices, ast.List) and len(devices.elts) == 1 and ranks.of(devices.elts[0], site.scope) is not None
    )


def _wrapped(word: str, *, keeps_devices: bool) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        arguments = [
            item
            for item in call.args
            if keeps_devices or item.keyword is None or item.keyword.value not in ("device_ids", "output_device")
        ]
        kept = [item for item in arguments if item.keyword is None or item.keyword.value != "dim" or keeps_devices]
        if len(kept) < len(call.args):
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return call.with_changes(func=cst.parse_expression(word), args=kept)

    return edit


def _looks(own: OwnDdp) -> Iterator[Change]:
    """``isinstance(model, nn.DataParallel)``, which asks for ``.module``, is meant for the new wrapper too."""
    for node, _, scope in own.program.nodes():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
            continue
        if (
            len(node.args) != 2
            or scope.module not in own.modules
            or not isinstance(node.args[1], (ast.Name, ast.Attribute))
        ):
            continue
        word = own.word(scope.module, _DDP)
        if word is not None and own.program.names(node.args[1], scope) & DATA_PARALLEL:
            kinds = f"({own.source(scope.module, node.args[1])}, {word})"
            message = f"`{scope.module.text(node)}` is meant for the new wrapper too"
            yield Change(RULE, scope.module, node, message, [Replace(node.args[1], substitute(kinds))])
