"""Averages of what one process sees, where a training loop shows them: nothing is wrong, but the reader has to know."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Literal

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.numbers_of_batches import comes_of_batch, is_of_batch
from amp_rules.plan.rank_numbers import ADDS_UP, Averaged, Told, averaged_over_ranks, is_of_all, of_the_share
from amp_rules.plan.training_loops import Counted, TrainingLoop, added_to, variable
from amp_rules.plan.ways_to_show import WaysToShow, is_shown
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_SHOWN_TOO = (
    "is also shown without the sum over the processes: there it covers only rank 0's share of the data",
    "are also shown without the sum over the processes: there they cover only rank 0's share of the data",
)


def averages(processes: Distribution) -> Iterator[Told]:
    """Yield sums of a rank's losses that are shown divided by its own batches."""
    sums = processes.sums
    summed = {(item.place.body, variable(part)) for item in sums.here for part in walk(item.node)}
    of_all = {part for item in sums.here for part in walk(item.node)}
    evaluating = {node for loop in processes.loops for node in loop.only_evaluating}
    averaged = averaged_over_ranks(processes)
    for place, reduced in sums.places:
        reads = [*place.nodes_following()]
        for item in getattr(place.node, "body", ()):
            reads += blocks.walk_own(item)
        for path in place.sums:
            adding = next((node for node in walk(place.node) if path in added_to(node)), None)
            if adding is None or path in place.counters or path in reduced:
                continue
            if not _adds_of_batch(processes, adding, place):
                continue
            if adding in evaluating or is_of_all(processes, adding, place):
                continue
            begun = _begun_again(place, path)
            means = _means_of(averaged, place, path, begun)
            shown = [
                node
                for node in [*reads, *place.nodes_after_loops(path)]
                if isinstance(node, ast.expr) and variable(node) == path and (begun is None or node.lineno < begun)
                if node not in of_all
                if is_shown(place, node)
                or sums.is_handed_on_to_show(place, node)
                or any(node in given and _shows(place, name) for name, given in means.items())
            ]
            if not shown and (place.body, path) in summed:
                continue
            site = Site(place.module, place.scope, place.body, adding)
            by_callers = _is_shown_by_callers(processes, averaged, place, path, means)
            unclear = [item for node in shown if (item := sums.divided_unclearly(place, node)) is not None]
            if unclear:
                text = (
                    f"adds up the batches of one process, and `{place.module.text(unclear[0])}` may count those of "
                    "all processes"
                )
                yield Told(site, path, text, text.replace("adds up", "add up", 1))
            elif not (shown or place.is_changed(path)) and by_callers == "alone":
                rest = "the batches of one process, about 1/N of the data"
                yield Told(site, path, f"adds up {rest}", f"add up {rest}")
            elif (place.body, path) in summed:
                yield Told(site, path, *_SHOWN_TOO)
            elif shown or by_callers is not None:
                yield Told(site, path, *ADDS_UP)
    yield from _running_means(processes)
    yield from _between_reports(processes)


def _between_reports(processes: Distribution) -> Iterator[Told]:
    """Yield sums that a loop shows and begins anew every so many rounds: ``if step % 100 == 0: ...; total = 0.0``."""
    for loop in processes.loops:
        begun = set(_begun_at_times(loop)) - loop.counters
        told: set[str] = set()
        for node in of_the_share(processes, loop):
            for path in added_to(node):
                if path not in begun or path in told or not comes_of_batch(processes, node, loop):
                    continue
                if is_of_all(processes, node, loop) or not _is_shown_inside(loop, path):
                    continue
                told.add(path)
                yield Told(Site(loop.module, loop.scope, loop.body, node), path, *ADDS_UP)


def _is_shown_inside(loop: TrainingLoop | BatchLoop, path: str) -> bool:
    """Whether a loop shows a sum, or the quotient of it that a variable gets: ``mean = total / every``."""
    shown = {variable(item) for item in loop.inner if isinstance(item, ast.expr) and is_shown(loop, item)}
    return path in shown or any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, (ast.Div, ast.FloorDiv))
        and any(variable(part) == path for part in walk(node.value.left))
        and not shown.isdisjoint(map(variable, node.targets))
        for node in loop.inner
    )


def _begun_at_times(loop: TrainingLoop | BatchLoop) -> Iterator[str]:
    """Yield what a loop gives nothing under a condition: ``total = 0.0``, ``costs = []``, ``total, n = 0.0, 0``."""
    for item in loop.inner:
        if not isinstance(item, ast.If):
            continue
        for node in blocks.walk_own(item):
            if not isinstance(node, ast.Assign):
                continue
            for target, value in (pair for part in node.targets for pair in blocks.unpacked(part, node.value)):
                if (isinstance(value, ast.Constant) and value.value == 0) or (
                    isinstance(value, ast.List) and not value.elts
                ):
                    path = variable(target)
                    if path is not None:
                        yield path


def _begun_again(place: Counted, path: str) -> int | None:
    """The line below a loop at which a sum begins anew, for an evaluation perhaps; None where it does not."""
    return min(
        (
            node.lineno
            for node in place.nodes_following()
            if isinstance(node, ast.Assign)
            and path in blocks.writes(node)
            and path not in added_to(node)
            and not blocks.touches({path}, blocks.reads(node.value))
        ),
        default=None,
    )


def _running_means(processes: Distribution) -> Iterator[Told]:
    for loop in processes.loops:
        for path, node in loop.means.items():
            place = Counted(loop.module, loop.scope, loop.body, loop.loop, ())
            reads = [*place.nodes_following(), *loop.inner]
            shown = any(
                isinstance(item, ast.expr) and variable(item) == path and is_shown(place, item) for item in reads
            )
            if shown or WaysToShow(processes).of_loop(loop, loop.inner, path) is not None:
                text = "the batches of one process: rank 0's share of the data"
                site = Site(loop.module, loop.scope, loop.body, node)
                yield Told(site, path, f"is a mean over {text}", f"are means over {text}")


def _means_of(means_of_all: Averaged, place: Counted, path: str, begun: int | None) -> dict[str, set[ast.AST]]:
    """The variables that get a quotient of a sum after its loop, each with the nodes of that: ``mean = total / n``.

    Not those that become a mean over the ranks.
    """
    found: dict[str, set[ast.AST]] = {}
    averaged, variables = means_of_all
    for node in place.nodes_following():
        if not isinstance(node, ast.Assign) or (begun is not None and node.lineno >= begun):
            continue
        if node.value in averaged:
            continue
        target = variable(node.targets[0]) if len(node.targets) == 1 else None
        inside = set(walk(node.value))
        if (
            target not in (None, path)
            and (place.body, target) not in variables
            and any(
                isinstance(item, ast.BinOp)
                and isinstance(item.op, (ast.Div, ast.FloorDiv))
                and any(variable(part) == path for part in walk(item.left))
                for item in inside
            )
        ):
            assert target is not None
            found.setdefault(target, set()).update(inside)
    return found


def _shows(place: Counted, name: str) -> bool:
    """Whether a variable is shown after a loop."""
    return any(
        isinstance(node, ast.expr) and variable(node) == name and is_shown(place, node)
        for node in place.nodes_following()
    )


def _is_shown_by_callers(
    processes: Distribution, means_of_all: Averaged, place: Site, path: str, means: Collection[str]
) -> Literal["alone", "divided"] | None:
    """Whether callers show a sum that a function gives back, and how: divided by something, here or there, or alone.

    Its means count as the sum, divided. What they make a number of all, they show as that.
    """
    program = processes.program
    reduced = {(item.place.statement, item.path) for item in processes.sums.after}
    averaged, variables = means_of_all
    info = program.function_of(place.body)
    found: Literal["alone", "divided"] | None = None
    for value in info.returns if info is not None else ():
        assert info is not None
        for index, part in enumerate(value.elts if isinstance(value, ast.Tuple) else [value]):
            if {path, *means}.isdisjoint(variable(item) for item in walk(part)):
                continue
            for caller in program.flow.callers(info):
                site = calling(caller)
                taken = _taken(site, caller.call, index, value)
                if (site.statement, taken) in reduced or caller.call in averaged or (site.body, taken) in variables:
                    continue
                for node in _reads_of_result(program, site, caller.call, index, value):
                    if is_shown(site, node):
                        if variable(part) != path or _is_divided(site, node):
                            return "divided"
                        found = "alone"
    return found


def _taken(site: Site, call: ast.Call, index: int, value: ast.expr) -> str | None:
    """The variable that takes a part of what a call gives back, if one does."""
    statement = site.statement
    if not (isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1):
        return None
    target: ast.expr = statement.targets[0]
    if isinstance(value, ast.Tuple):
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if index >= len(parts):
            return None
        target = parts[index]
    return variable(target)


def _reads_of_result(program: Program, site: Site, call: ast.Call, index: int, value: ast.expr) -> Iterator[ast.expr]:
    """Yield where a caller reads a part of what it is given back: the call itself, or a variable that takes it."""
    yield call
    name = _taken(site, call, index, value)
    for node in program.nodes_of(site.body) if name is not None else ():
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load):
            if variable(node) == name:
                yield node


def _is_divided(site: Site, node: ast.expr) -> bool:
    child: ast.AST = node
    for parent in site.module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return False
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv)) and parent.left is child:
            return True
        child = parent
    return False


def _adds_of_batch(processes: Distribution, adding: ast.AST, place: Counted) -> bool:
    """Whether what is added is made of a tensor: there, or where the variable that is added gets its value in the loop.

    The loss itself is one: ``total += loss``.
    """
    if comes_of_batch(processes, adding, place):
        return True
    losses = {variable(site.loss) for site in processes.program.backwards if site.body is place.body} - {None}
    inside = set(walk(place.node))
    return any(
        variable(part) in losses
        or any(value in inside and is_of_batch(value) for value in assigned(processes.program, part, place.scope))
        for part in walk(getattr(adding, "value", adding))
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load)
    )
