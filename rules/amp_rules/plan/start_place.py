"""Where the runtime starts, given what uses it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amp_rules.plan.arguments_in_reach import Place
from amp_rules.plan.distribution import visible_devices
from amp_rules.plan.main_path import anchor
from amp_rules.source import blocks
from amp_rules.source.modules import Module

if TYPE_CHECKING:
    from amp_rules.plan.context import Change, Context


def start_place(context: Context) -> Place:
    """The place of the start, before all changes that were made so far and need it."""
    users = [change for change in context.made if change.needs_import]
    entry = context.program.entry
    earlier = [statement for module, statement in visible_devices(context.program) if module is entry]
    return Place(*anchor(context.program, running(users), earlier))


def running(users: Sequence[Change]) -> list[tuple[Module, ast.stmt]]:
    """The statements that use the runtime when they run; a lambda's body runs later."""
    return [
        (change.module, blocks.statement_of(change.module, change.node))
        for change in users
        if not isinstance(blocks.body_of(change.module, change.node), ast.Lambda)
    ]
