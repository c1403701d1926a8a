"""Weights that every process draws anew once its wrapper has given all those of the first process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import BROADCASTS
from amp_rules.torch.replication import LIBRARY_SEEDS, SEEDS

_DRAW = frozenset({"_init_weights", "init_weights", "reset_parameters"})
"""Methods of models that draw weights."""


def drawn_once_wrapped(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such call: ``model.module.reset_parameters()``, where nothing seeds."""
    program = own.program
    if not own.wraps or program.calls_to(BROADCASTS | SEEDS | LIBRARY_SEEDS):
        return
    if any("seed" in last_name(call.func).lower() for call, _, _ in program.calls()):
        return
    for call, body, scope in program.calls():
        inside = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in _DRAW else None
        if not isinstance(inside, ast.Attribute) or inside.attr != "module" or scope.module not in own.modules:
            continue
        if body in own.uncalled or not wrapped_by(own, inside.value, Site(scope.module, scope, body, call), own.wraps):
            continue
        text = "draws weights once the wrapper has given all processes those of the first, and nothing seeds them alike"
        yield scope.module, call, f"`{scope.module.text(call)}` {text}: draw them above the wrapper"
        return
