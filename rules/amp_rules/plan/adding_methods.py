"""Numbers of its batch that a training loop hands to a method that adds them up: ``self.count(hits, total)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.clock_times import times
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.joint_metrics import keeps_jointly
from amp_rules.plan.kept_numbers import exchanges_of, is_made_of, loops_of_batches, made_of_batch
from amp_rules.plan.rank_numbers import ADDS_UP, GETS_NUMBERS, Told, of_the_share
from amp_rules.plan.training_loops import TrainingLoop, added_to, variable
from amp_rules.plan.ways_to_show import WaysToShow
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import arguments_of

_OWN = "self"


def adding_methods(processes: Distribution, named: frozenset[tuple[ast.AST, str]]) -> Iterator[Told]:
    """Yield the sums that methods make of numbers of the batch, and that are shown, but for what is ``named`` already.

    Of the loop's own object its attributes are told, of another one the object itself.
    """
    program = processes.program
    ways: WaysToShow | None = None
    for loop in loops_of_batches(processes):
        calls = [node for node in of_the_share(processes, loop) if isinstance(node, ast.Call)]
        adding = {call: sums for call in calls if (sums := _sums(program, call))}
        if not adding:
            continue
        ways = ways or WaysToShow(processes, scores=True)
        made = made_of_batch(processes, loop)
        left_out = times(program, loop)
        meets = exchanges_of(processes, loop)[0]
        for call, sums in adding.items():
            assert isinstance(call.func, ast.Attribute)
            given = [*call.args, *(item.value for item in call.keywords)]
            if meets(call) or not any(is_made_of(value, made) for value in given):
                continue
            if keeps_jointly(program, call.func.value, loop.scope):
                continue
            keeper = variable(call.func.value)
            site = Site(loop.module, loop.scope, loop.body, call)
            for path in sums if keeper == _OWN else [keeper]:
                if path is None or path in left_out or (loop.body, path) in named:
                    continue
                if _shown(ways, loop, site, path) is not None:
                    yield Told(site, path, *(ADDS_UP if keeper == _OWN else GETS_NUMBERS))


def _shown(ways: WaysToShow, loop: TrainingLoop | BatchLoop, site: Site, path: str) -> str | None:
    if path.startswith(f"{_OWN}."):
        return ways.by_methods(site, path, returned=True)
    return ways.of_loop(loop, loop.inner, path)


def _sums(program: Program, call: ast.Call) -> list[str]:
    """The attributes to which a method of the project adds what it is given."""
    if not isinstance(call.func, ast.Attribute) or program.runs_backward(call):
        return []
    infos = sorted(program.flow.callees(call), key=lambda info: (info.name, info.node.lineno))
    found = [_sums_of_method(program, info) for info in infos]
    return list(dict.fromkeys(path for item in found for path in item)) if infos and all(found) else []


def _sums_of_method(program: Program, info: FunctionFacts) -> list[str]:
    given = {item.arg for item in arguments_of(info.node)} - {_OWN}
    nodes = program.nodes_of(info.node)
    for _ in range(2):  # what a method first makes a variable of
        for node in nodes:
            source = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For)) and source is not None:
                if not given.isdisjoint(blocks.reads(source)):
                    written = blocks.writes_target(node) if isinstance(node, ast.For) else blocks.writes(node)
                    given |= {path for path in written if path.isidentifier()}
    return [
        path
        for node in nodes
        for path in added_to(node)
        if path.startswith(f"{_OWN}.") and not given.isdisjoint(blocks.reads(getattr(node, "value", node)))
    ]
