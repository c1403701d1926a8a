"""Files that are written, and read, while the script's imports run: above the start no process waits for another."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.statements import is_under_main_guard
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.sites import Site


def written_on_import(effect: FileEffect, followed: Iterable[tuple[Site, Site]]) -> bool:
    """Whether what a call writes is read in the own body of a file that others import.

    What takes files away is left: a folder that is made anew is there whoever comes first.

    Args:
        effect: the call.
        followed: the places of one body by which a run comes to a read, and to the call before it.
    """
    return not effect.removes and any(_runs_on_import(write) for _, write in followed)


def not_on_import(effect: FileEffect, read: Site) -> Declined:
    """The reason for such a call, with the place that reads."""
    line = f"line {read.told_line}" + ("" if read.module is effect.module else f" of {read.module.path.name}")
    return declining.decline(
        declining.FILES,
        effect.module,
        effect.call,
        f"`{effect.module.text(effect.call)}` writes, when its file is imported, what {line} reads: above `amp.init` "
        "no process waits for another",
        "call it in the training script, below the imports",
    )


def _runs_on_import(site: Site) -> bool:
    if site.module.is_entry or not isinstance(site.body, ast.Module):
        return False
    return not is_under_main_guard(site.module, site.node)
