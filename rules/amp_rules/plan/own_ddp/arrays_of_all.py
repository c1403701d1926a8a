"""Arrays in files that every process makes anew, and works with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.absent import never_runs
from amp_rules.roles.file_effects import given_paths
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.file_access import ARRAYS_IN_FILES, OPENERS


def arrays_of_all(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first array that each process empties while others fill theirs, which is the same file."""
    paths = Paths(own.program)
    found = [site for site in own.program.calls_to(ARRAYS_IN_FILES) if _is_of_all(own, paths, site)]
    for site in found[:1]:
        text = (
            f"every process makes the file of `{site.module.text(site.node)}` anew, which empties it, and works with "
            "it: one that comes later takes away what others have filled in; name it by the rank"
        )
        yield site.module, site.node, text + more_places(own.program, [(item.module, item.node) for item in found])


def makes_array(own: OwnDdp, call: ast.AST, scope: Scope) -> bool:
    """Whether a call makes a file anew for an array: ``np.memmap(path, mode="w+")``."""
    names = own.program.callee_names(call, scope) & ARRAYS_IN_FILES if isinstance(call, ast.Call) else set()
    return any(literal(argument_at(call, "mode", OPENERS[name])) == "w+" for name in names)  # type: ignore[arg-type]


def _is_of_all(own: OwnDdp, paths: Paths, site: Site) -> bool:
    call = site.node
    if not isinstance(call, ast.Call) or site.module not in own.modules or own.is_own_file(site.module, call):
        return False
    if not makes_array(own, call, site.scope):
        return False
    files = given_paths(call)
    texts = {text for path in files for text in paths.of(path, site.scope)}
    # A path of which nothing is known may hold the rank.
    if not texts or not any(text.strip("*") for text in texts) or paths.is_own(files, site.scope):
        return False
    if site.body in own.uncalled or never_runs(own.program.flow, site.module, call):
        return False
    return own.reach(site.module, call) is Reach.EVERY
