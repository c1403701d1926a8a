"""Lists and meters in which the method of a training step keeps its numbers: ``self.losses.append(loss.item())``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.numbers_of_batches import is_number
from amp_rules.plan.rank_numbers import GETS_NUMBERS, Told, all_loops, of_the_share
from amp_rules.plan.training_loops import variable
from amp_rules.plan.ways_to_show import WaysToShow
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site

_KEEPING = frozenset({"append", "update"})

_MAX_CALLS = 3
"""Methods between a loop and the step."""


def meters_of_steps(program: Program, processes: Distribution) -> Iterator[Told]:
    """Yield where methods that a loop calls, and that train, give numbers to attributes that other methods show."""
    ways = WaysToShow(processes)
    bodies: dict[ast.AST, None] = {}
    for loop in all_loops(processes):
        bodies.update(dict.fromkeys(_steps(program, of_the_share(processes, loop))))
    for body in bodies:
        scope = program.flow.scopes[body]
        for node in program.nodes_of(body):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            path = variable(node.func.value) if node.func.attr in _KEEPING else None
            if path is None or not path.startswith("self.") or not is_number(node.args[0]):
                continue
            site = Site(scope.module, scope, body, node)
            values = program.flow.values(node.func.value, scope)
            if any(value.kind == "instance" for value in values) or ways.by_methods(site, path) is not None:
                yield Told(
                    site,
                    path,
                    *GETS_NUMBERS,
                )


def _steps(program: Program, nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Yield the functions that run a backward pass for a loop."""
    for _ in range(_MAX_CALLS):
        found = [
            info.node
            for node in nodes
            if isinstance(node, ast.Call) and program.runs_backward(node)
            for info in program.flow.callees(node)
        ]
        yield from found
        nodes = [node for body in found for node in program.nodes_of(body)]
