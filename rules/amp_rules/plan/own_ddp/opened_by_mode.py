"""Files that every process opens to write in a mode that a variable says: ``open(path, mode)`` of a logger's class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.absent import never_runs
from amp_rules.roles.file_effects import mode_of
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source.modules import Module

_MAX_DEPTH = 3
"""Names between a call and what it is given: a parameter, its default or a variable, a constant."""
_OPENS = frozenset({"open", "builtins.open", "io.open", "codecs.open"})


def opened_by_mode(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such call."""
    found = [site for site in own.program.calls_to(_OPENS) if _is_of_all(own, site)]
    for site in found[:1]:
        text = f"AMP234: every process runs `{site.module.text(site.node)}`, which writes a file"
        yield site.module, site.node, text + more_places(own.program, [(item.module, item.node) for item in found])


def _is_of_all(own: OwnDdp, site: Site) -> bool:
    call = site.node
    if not isinstance(call, ast.Call) or site.module not in own.modules or not call.args:
        return False
    mode = mode_of(call)
    if mode is None or isinstance(mode, ast.Constant) or own.is_own_file(site.module, call):
        return False
    modes = list(_values(own, mode, site, _MAX_DEPTH))
    if not modes or not all(isinstance(item, ast.Constant) and str(item.value)[:1] in "wax" for item in modes):
        return False
    # A path that nothing is known of may be that of one process.
    paths = list(_values(own, call.args[0], site, _MAX_DEPTH))
    if not paths or any(item is None or names_rank(item) for item in paths):
        return False
    if site.body in own.uncalled or never_runs(own.program.flow, site.module, call):
        return False
    return own.reach(site.module, call) is Reach.EVERY


def _values(own: OwnDdp, node: ast.expr, site: Site, depth: int) -> Iterator[ast.expr | None]:
    """Yield the expressions that a variable or a parameter is given; None for what is not known."""
    if isinstance(node, ast.IfExp):
        yield from _values(own, node.body, site, depth)
        yield from _values(own, node.orelse, site, depth)
        return
    if not isinstance(node, (ast.Name, ast.Attribute)) or not depth:
        yield node if depth else None
        return
    given = assigned(own.program, node, site.scope)
    for value in given:
        yield from _values(own, value, site, depth - 1)
    info = own.program.function_of(site.body)
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters:
        if not given:
            yield None
        return
    callers = [item for item in own.program.flow.callers(info) if item.scope.node not in own.uncalled]
    if not callers:
        yield None
    for caller in callers:
        argument = info.argument_or_default(caller.call, node.id)
        if argument is None:
            yield None
        else:
            yield from _values(own, argument, calling(caller), depth - 1)
