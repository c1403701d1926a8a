"""Let the first process alone write files, in a script with processes of its own.

## What it does
Statements that save a checkpoint, an image or an array, and those that remove, move or copy files, run under a test for
the first rank where every process reached them. The test is the script's own where it has one, as in
`if args.rank == 0:`; else a variable that is the rank, or `torch.distributed.get_rank()`.

## Why
Several processes that write one file at the same time leave a broken one.

## Before
    torch.save(model.module.state_dict(), "checkpoint.pt")

## After
    if rank == 0:
        torch.save(model.module.state_dict(), "checkpoint.pt")

## When it declines
Where a test on the way asks for the rank already; for commands, downloads, and methods that only their names say to
save; where what is saved is put together by all processes, where a result of the statement is used, and where another
place reads the file again: that would need a barrier (AMP288).

## Leaving it out
Yes: the script then writes as it did.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.context import Change, adjacent
from amp_rules.plan.file_guards import file_guards
from amp_rules.plan.file_order import FileOrder
from amp_rules.plan.own_ddp.first_rank import FirstRank
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.rule import Rule
from amp_rules.roles.file_paths import Paths
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Wrap

RULE = Rule("AMP234", "save-on-first-rank", "The first process alone writes files.", "distribution", optional=True)


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield a test around each group of statements that write files."""
    first_rank = FirstRank(own)
    paths = Paths(own.program)

    def is_left(module: Module, node: ast.AST) -> bool:
        if module not in own.modules:
            return True
        # Commands and downloads may be for each machine, and what keeps a log is no file to be saved.
        if isinstance(node, ast.Call) and (not own.saves(module, node) or own.is_own_file(module, node)):
            return True
        # The ways to a place are many: this is asked last.
        return own.reach(module, node) is not Reach.EVERY

    guards = file_guards(own.program, paths, [], is_left)
    order = FileOrder(own.program, paths, guards)
    waits = order.barriers()
    saves = _lifted(guards.statements)
    told = False
    for module, first, last in adjacent(saves):
        if is_left(module, first) or own.told_by_rank(module, first):
            continue
        if order.reasons or waits:
            place = order.reasons[0].refusal.message if order.reasons else waits[0][0].text(waits[0][1])
            if not told:
                own.leave(RULE, module, first, f"every process writes this file, and reads one again: `{place}`")
            told = True
            continue
        test = first_rank.at(module, first)
        if test is None:
            own.leave(RULE, module, first, "every process writes this file, and nothing here says which one it is")
            continue
        message = f"`{module.text(first)}` is left to the first process"
        yield Change(RULE, module, first, message, [Wrap(first, last, f"if {test.text}:")])


def _lifted(found: dict[ast.stmt, Module]) -> list[tuple[Module, ast.stmt]]:
    """The statements; beside another one the ``if best:`` around some that asks for nothing but variables."""
    chosen = dict(found)
    for statement, module in found.items():
        parent = module.parents[statement]
        if not (
            isinstance(parent, ast.If) and not parent.orelse and isinstance(parent.test, (ast.Name, ast.Attribute))
        ):
            continue
        if parent in getattr(module.parents[parent], "orelse", ()) or not all(item in chosen for item in parent.body):
            continue
        where = blocks.place(module, parent)
        if any(item in chosen for item in where.suite[max(0, where.index - 1) : where.index + 2]):
            for item in parent.body:
                del chosen[item]
            chosen[parent] = module
    return [(module, statement) for statement, module in chosen.items()]
