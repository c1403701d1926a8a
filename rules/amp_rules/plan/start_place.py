"""Where the runtime starts, given what uses it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.arguments_in_reach import Place
from amp_rules.plan.distribution import visible_devices
from amp_rules.plan.main_path import anchor
from amp_rules.source import blocks
from amp_rules.source.modules import Module

DEVICE = "AMP201"
"""The rewrite of devices, which need no start."""

if TYPE_CHECKING:
    from amp_rules.plan.context import Change, Context


def start_place(context: Context) -> Place:
    """The place of the start, before all changes that were made so far and need it."""
    users = [change for change in context.made if change.needs_import]
    entry = context.program.entry
    earlier = [statement for module, statement in visible_devices(context.program) if module is entry]
    used = running(_waiting(context, users))
    return Place(*anchor(context.program, used, earlier))


def _waiting(context: Context, users: Sequence[Change]) -> list[Change]:
    """The changes without those of constants of a file whose main path stands under ``if __name__ == "__main__":``.

    The device of a rank is known before the start. Above the guard the start would run in each script that imports the
    file, and join its processes.
    """
    entry = context.program.entry
    if not any(isinstance(item, ast.If) and is_main_guard(item) for item in entry.tree.body):
        return [*users]
    constants = {
        item for item in entry.tree.body if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None
    }
    return [
        change
        for change in users
        if change.rule.code != DEVICE or blocks.statement_of(change.module, change.node) not in constants
    ]


def running(users: Sequence[Change]) -> list[tuple[Module, ast.stmt]]:
    """The statements that use the runtime when they run; a lambda's body runs later."""
    return [
        (change.module, blocks.statement_of(change.module, change.node))
        for change in users
        if not isinstance(blocks.body_of(change.module, change.node), ast.Lambda)
    ]
