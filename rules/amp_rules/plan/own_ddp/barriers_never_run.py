"""Barriers under a test that asks for a function, by the name that a parameter has elsewhere: it is always there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.syntax import conjuncts
from amp_rules.torch.distributed import BARRIERS


def barriers_never_run(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such barrier."""
    found = [
        (site, name)
        for site in own.program.calls_to(BARRIERS)
        if site.module in own.modules and site.body not in own.uncalled
        if (name := _function_denied(own, site)) is not None
    ]
    for site, name in found[:1]:
        others = more_places(own.program, [(item.module, item.node) for item, _ in found])
        text = (
            f"`{name.id}` is a function here, so that `not {name.id}` never holds, and "
            f"`{site.module.text(site.node)}` never runs: no process waits for another{others}"
        )
        yield site.module, site.node, text


def _function_denied(own: OwnDdp, barrier: Site) -> ast.Name | None:
    """The name in a test around a barrier that holds without it alone, and is that of a function."""
    for test, holds in own.branches(barrier.module, barrier.node):
        for part in conjuncts(test) if holds else ():
            if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) and isinstance(part.operand, ast.Name):
                values = own.program.flow.values(part.operand, barrier.scope)
                if values and all(value.kind == "function" for value in values):
                    return part.operand
    return None
