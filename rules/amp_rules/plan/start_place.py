"""Where the runtime starts, given what uses it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.arguments_in_reach import Place
from amp_rules.plan.distribution import visible_devices
from amp_rules.plan.main_path import anchor, anchor_of_first_process, is_text, parses_arguments
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.devices import READ_BY_CUDA

DEVICE = "AMP201"
"""The rewrite of devices, which need no start."""

if TYPE_CHECKING:
    from amp_rules.plan.context import Change, Context
    from amp_rules.roles.program import Program


def start_place(context: Context) -> Place:
    """The place of the start, before all changes that were made so far and need it."""
    return Place(*anchor(context.program, *_used_and_earlier(context)))


def start_of_first_process(context: Context) -> Place | None:
    """The place of the start in the process that starts the others, where that trains too, else None."""
    if context.distribution is not None:
        return None
    found = anchor_of_first_process(context.program, *_used_and_earlier(context))
    return Place(*found) if found is not None else None


def _used_and_earlier(context: Context) -> tuple[list[tuple[Module, ast.stmt]], list[ast.stmt]]:
    """The statements that use the runtime, and those of the entry that choose what devices there are."""
    users = [change for change in context.made if change.needs_import]
    entry = context.program.entry
    earlier = [statement for module, statement in visible_devices(context.program) if module is entry]
    earlier += _settings_read_at_the_start(context.program)
    return running(_waiting(context, users)), earlier


def _settings_read_at_the_start(program: Program) -> list[ast.stmt]:
    """What the entry sets in the environment for CUDA: directly below imports, the command line, or on top of a body.

    Below other code such a setting may stand after what needs the start.
    """
    found: list[ast.stmt] = []
    for node in walk(program.entry.tree):
        if not isinstance(node, ast.Assign) or not _sets_for_cuda(node):
            continue
        where = blocks.place(program.entry, node)
        above = where.suite[where.index - 1] if where.index else None
        if (
            above is None
            or isinstance(above, (ast.Import, ast.ImportFrom))
            or is_text(above)
            or _setting(above) is not None
            or (isinstance(above, ast.Assign) and parses_arguments(program, above))
        ):
            found.append(node)
    return found


def _sets_for_cuda(statement: ast.Assign) -> bool:
    """Whether a statement sets a variable of the environment that CUDA reads: ``os.environ["CUDA_..."] = "1"``."""
    target = _setting(statement)
    key = target.slice if target is not None else None
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.startswith(READ_BY_CUDA)


def _setting(statement: ast.stmt) -> ast.Subscript | None:
    """The variable of the environment that a statement sets."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    is_setting = isinstance(target, ast.Subscript) and blocks.path_of(target.value) in ("os.environ", "environ")
    return target if isinstance(target, ast.Subscript) and is_setting else None


def _waiting(context: Context, users: Sequence[Change]) -> list[Change]:
    """The changes without those of devices that need no start above them, as the device of a rank is known before.

    These are the constants of a file whose main path stands under ``if __name__ == "__main__":``, above which the start
    would run in each script that imports the file, and join its processes; and what parses the command line, which may
    end the script.
    """
    entry = context.program.entry
    users = [change for change in users if change.rule.code != DEVICE or not _parses(context.program, change.node)]
    if not any(isinstance(item, ast.If) and is_main_guard(item) for item in entry.tree.body):
        return users
    constants = {
        item for item in entry.tree.body if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None
    }
    return [
        change
        for change in users
        if change.rule.code != DEVICE or blocks.statement_of(change.module, change.node) not in constants
    ]


def _parses(program: Program, node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and parses_arguments(program, node)


def running(users: Sequence[Change]) -> list[tuple[Module, ast.stmt]]:
    """The statements that use the runtime when they run; a lambda's body runs later."""
    return [
        (change.module, blocks.statement_of(change.module, change.node))
        for change in users
        if not isinstance(blocks.body_of(change.module, change.node), ast.Lambda)
    ]
