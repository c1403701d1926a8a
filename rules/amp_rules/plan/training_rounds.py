"""What the rounds of a program's training run, where it is not yet known what becomes of its steps."""

from __future__ import annotations

import ast

from amp_rules.plan.left_out import calls_as_written
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks

_MAX_CALLERS = 4
"""Functions between a backward pass and the loop around its step; a longer chain is not followed."""


def nodes_of_rounds(program: Program) -> set[ast.AST] | None:
    """The nodes of the loops around backward passes that run the model too, and of the functions that these call.

    None where a backward pass has no such loop.
    """
    runs = {site.node for site in calls_as_written(program)}
    return _together([_around(program, site, runs, 0) for site in program.backwards])


def _around(program: Program, site: Site, runs: set[ast.AST], depth: int) -> set[ast.AST] | None:
    for loop in blocks.enclosing(site.module, site.node):
        if isinstance(loop, blocks.LOOPS):
            nodes = set(blocks.walk_own(loop))
            nodes |= {node for body in program.called_from(nodes) for node in program.nodes_of(body)}
            if not nodes.isdisjoint(runs):
                return nodes
    info = program.function_of(site.body)
    if info is None or depth > _MAX_CALLERS:
        return None
    return _together([_around(program, calling(item), runs, depth + 1) for item in program.flow.callers(info)])


def _together(found: list[set[ast.AST] | None]) -> set[ast.AST] | None:
    """All of them; None where one is not known, or there is none."""
    known = [nodes for nodes in found if nodes is not None]
    return {node for nodes in known for node in nodes} if known and len(known) == len(found) else None
