"""Make folders that another process may have made in between.

## What it does
`os.mkdir(d)` after `if not os.path.exists(d):` becomes `os.makedirs(d, exist_ok=True)`, and `d.mkdir()` of a path
becomes `d.mkdir(exist_ok=True)`. Where the script did not
look first, and so may mean an existing folder to be an error, only several processes accept it:
`exist_ok=amp.world_size() > 1`.

## Why
Two processes look at the same time, both find nothing, and the second fails.

## Before
    if not os.path.isdir("checkpoint"):
        os.mkdir("checkpoint")

## After
    if not os.path.isdir("checkpoint"):
        os.makedirs("checkpoint", exist_ok=True)

## When it declines
Under a `try` that handles the error and goes on: where it then trains in another way, several processes are declined
(AMP294). With `exist_ok=True`.

## Leaving it out
No: the slower process fails at its first line of work.

## Source
https://docs.python.org/3/library/os.html#os.makedirs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.new_folders import new_folders
from amp_rules.roles.uncalled import uncalled
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace
from amp_rules.text.folder_edits import allowing

RULE = Rule("AMP209", "folder-made-once", "A folder may have been made by another process.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each folder that two processes may make at once."""
    made_by_one = {node for statement in context.processes.files.statements for node in walk(statement)}
    idle = uncalled(context.program)
    for site in new_folders(context.program):
        assert isinstance(site.node, ast.Call)
        if site.node in made_by_one or not idle.isdisjoint(site.module.ancestors(site.node)):
            continue
        allowed = "True" if site.looked else context.vocabulary.several_processes(site.module)
        message = f"`{site.module.text(site.node)}` does not fail if another process made the folder first"
        action = Replace(site.node, allowing(allowed, is_mkdir=site.is_mkdir))
        yield Change(RULE, site.module, site.node, message, [action], needs_import=not site.looked)
