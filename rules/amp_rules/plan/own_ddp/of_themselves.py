"""What every process says of itself: ``print(f"rank {rank}: {loss}")``."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import counts_processes, names_rank
from amp_rules.plan.ways_to_show import tells
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name, values_given, walk


def names_process(value: ast.expr) -> bool:
    """Whether a text tells which process it is from: ``f"rank {rank}: {loss}"``, ``f"{x.device}: {loss}"``."""
    named = [part for part in walk(value) if isinstance(part, (ast.Name, ast.Attribute))]
    return any(
        last_name(part) == "device" or (names_rank(ast.Name(last_name(part))) and not counts_processes(last_name(part)))
        for part in named
    )


def is_only_told_of_itself(program: Program, site: Site, path: str) -> bool:
    """Whether all that follows a statement and reads a variable is texts that tell which process they are from."""
    reads = [
        node
        for node in program.nodes_of(site.body)
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and blocks.path_of(node) == path
        and node.lineno > site.module.end(site.node)[0]
    ]
    return bool(reads) and all(any(map(_tells_process, site.module.ancestors(node))) for node in reads)


def _tells_process(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and tells(node)):
        return False
    return any(map(names_process, values_given(node)))
