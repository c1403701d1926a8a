"""Make folders that another process may have made, in own processes.

## What it does
A folder that every process makes may be there: `os.makedirs(d)` becomes `os.makedirs(d, exist_ok=True)` where the
script looked for the folder first. Where it did not, and so may mean an existing folder to be an error, only several
processes accept it: `exist_ok=torch.distributed.get_world_size() > 1`.

## Why
All processes look at the same time, all find nothing, and all but the first fail with `FileExistsError`.

## Before
    if not os.path.exists(args.output):
        os.makedirs(args.output)

## After
    if not os.path.exists(args.output):
        os.makedirs(args.output, exist_ok=True)

## When it declines
Where a test on the way asks for the rank, or the rank is in the path; where only the process that spawns the others
makes it; under a `try` that handles the error; and where
the script did not look and the processes have not joined yet (AMP288).

## Leaving it out
Yes: the processes then race for the folder, as they did.

## Source
https://docs.python.org/3/library/os.html#os.makedirs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.context import Change
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.plan.rule import Rule
from amp_rules.roles.absent import never_runs
from amp_rules.roles.new_folders import Folder, new_folders
from amp_rules.text.actions import Replace
from amp_rules.text.folder_edits import allowing

RULE = Rule(
    "AMP239", "folder-of-all-ranks", "A folder may have been made by another process.", "distribution", optional=True
)

_SIZE = "torch.distributed.get_world_size"
_INITIALISED = "torch.distributed.is_initialized"


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield an edit for each folder that all processes make."""
    spawned = Spawned(own)
    for site in new_folders(own.program):
        call = site.node
        assert isinstance(call, ast.Call)
        if site.module not in own.modules or own.is_own_file(site.module, call):
            continue
        if never_runs(own.program.flow, site.module, call) or own.reach(site.module, call) is not Reach.EVERY:
            continue
        if spawned.is_left_to_parent(site):
            continue
        allowed = "True" if site.looked else _several(own, site)
        if allowed is None:
            text = f"every process runs `{site.module.text(call)}`, which fails where another has made the folder"
            own.leave(RULE, site.module, call, f"{text}: `exist_ok=True` accepts one that is there")
            continue
        message = f"`{site.module.text(call)}` does not fail if another process made the folder first"
        yield Change(RULE, site.module, call, message, [Replace(call, allowing(allowed, is_mkdir=site.is_mkdir))])


def _several(own: OwnDdp, site: Folder) -> str | None:
    """The test for several processes; None where they have not joined for certain, or the file has no words for it."""
    size, initialised = own.word(site.module, _SIZE), own.word(site.module, _INITIALISED)
    if size is None or initialised is None or not own.is_joined_at(site.module, site.node):
        return None
    # Another script may use the same file, and join no processes.
    always = own.is_several_always and site.module is own.program.entry
    return f"{size}() > 1" if always else f"{initialised}() and {size}() > 1"
