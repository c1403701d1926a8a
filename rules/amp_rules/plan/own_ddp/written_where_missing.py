"""Files that every process makes where they are missing, by a library's method whose name alone says so.

``if not path.exists(): tokenizer.save(str(path))``: another process may read half of it meanwhile. Whether such a
method writes a file is too little known to leave it to one process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.made_by_first import is_in_turns, is_made_by_first
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.absent import never_runs
from amp_rules.roles.file_effects import FileEffect, file_effects
from amp_rules.roles.file_paths import taken_as_it_is
from amp_rules.roles.path_objects import is_path
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given, walk
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import LOOKS, LOOKS_OF_PATHS


def written_where_missing(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such file that is read beside the look for it."""
    barriers = {site.body for site in own.program.calls_to(BARRIERS)}
    found = [
        (effect, test)
        for effect in file_effects(own.program)
        if effect.module in own.modules
        and effect.body not in own.uncalled
        and effect.body not in barriers
        and not (effect.removes or own.saves(effect.module, effect.call))
        and (test := _look_around(own, effect)) is not None
        and _by_all(own, effect)
    ]
    for effect, test in found[:1]:
        module = effect.module
        text = (
            f"every process that misses the file (`{module.text(test)}`) runs `{module.text(effect.call)}`, and one "
            "that looks meanwhile may read half of it: let the first process come here before the others"
        )
        yield module, effect.call, text + more_places(own.program, [(item.module, item.call) for item, _ in found])


def _by_all(own: OwnDdp, effect: FileEffect) -> bool:
    """Whether every process may write the file, and none waits for another."""
    module, call = effect.module, effect.call
    if own.reach(module, call) is not Reach.EVERY or never_runs(own.program.flow, module, call):
        return False
    if own.is_own_file(module, call) or is_made_by_first(own, module, call):
        return False
    return not is_in_turns(own, Site(module, effect.scope, effect.body, call))


def _look_around(own: OwnDdp, effect: FileEffect) -> ast.expr | None:
    """The test by which a file is written where it is missing alone, if a call beside that is given its path."""
    same = partial(_text, own, effect.scope)
    for test, holds in own.branches(effect.module, effect.call):
        is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        path = _looked_for(own, test.operand if isinstance(test, ast.UnaryOp) else test, effect.scope)
        if path is None or holds is not is_not or same(path) not in map(same, effect.paths):
            continue
        branch = effect.module.parents[test]
        if not isinstance(branch, ast.If):
            continue
        where = blocks.place(effect.module, branch)
        beside = [*(branch.orelse if is_not else branch.body), *where.suite[where.index + 1 :]]
        calls = (node for item in beside for node in walk(item) if isinstance(node, ast.Call))
        given = (item for call in calls if call is not effect.call for item in values_given(call))
        if any(same(item) == same(path) for item in given):
            return test
    return None


def _looked_for(own: OwnDdp, look: ast.expr, scope: Scope) -> ast.expr | None:
    """The path that a call looks for: ``os.path.exists(path)``, ``path.exists()``, ``Path.exists(path)``."""
    if not isinstance(look, ast.Call):
        return None
    names = own.program.callee_names(look, scope)
    if look.args and (names & LOOKS or any(name.rpartition(".")[0] == "pathlib.Path" for name in names)):
        return look.args[0]
    if not isinstance(look.func, ast.Attribute) or look.func.attr not in LOOKS_OF_PATHS:
        return None
    return look.func.value if is_path(own.program, look.func.value, scope) else None


def _text(own: OwnDdp, scope: Scope, path: ast.expr) -> str:
    return ast.unparse(taken_as_it_is(own.program, path, scope))
