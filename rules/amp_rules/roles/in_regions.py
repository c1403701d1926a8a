"""What runs within regions of autocast, functions that they call included."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks


def bodies_in(
    program: Program,
    runs: Iterable[StatementRun],
    apart: Collection[ast.AST] = (),
    outside: Collection[ast.AST] = (),
) -> set[ast.AST]:
    """The functions that run within some statements, methods of models with their hooks included; without ``apart``.

    What only calls ``outside`` of them run is none of these.
    """
    nodes = (node for run in runs for item in run.statements() for node in ast.walk(item))
    return program.called_from(nodes, apart, outside)


def nodes_in(
    program: Program,
    runs: Iterable[StatementRun],
    without: Iterable[StatementRun] = (),
    apart: Collection[ast.AST] = (),
) -> list[Site]:
    """Every node that runs within some statements, in the order of files and lines.

    Args:
        program: the program.
        runs: the statements.
        without: statements among them that are left out.
        apart: functions that are left out, with what they alone call.
    """
    outside = {node for run in without for item in run.statements() for node in ast.walk(item)}
    inside = {node for run in runs for item in run.statements() for node in blocks.walk_own(item)} - outside
    bodies = bodies_in(program, runs, apart, outside)
    return [
        Site(scope.module, scope, body, node)
        for node, body, scope in program.nodes()
        if node in inside or (body in bodies and node not in outside)
    ]
