"""Meters and lists that get the numbers of one process, batch by batch."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.joint_metrics import keeps_jointly
from amp_rules.plan.numbers_of_batches import bare, comes_of_batch, is_number
from amp_rules.plan.rank_numbers import GETS_NUMBERS, Told, all_loops, averaged_over_ranks, is_of_all, of_the_share
from amp_rules.plan.training_loops import TrainingLoop, added_to, variable
from amp_rules.plan.ways_to_show import asked_of, is_read
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk

_OF_ALL = ("torchmetrics.", "builtins.", "collections.")
"""Libraries whose metrics put their numbers together over the processes themselves, and containers."""


_KEEPING = frozenset({"update", "add", "append"})
"""Methods of meters and lists that take a number of each batch."""


def meters(program: Program, processes: Distribution) -> Iterator[Told]:
    """Yield where a training loop gives a number of its batch to an object that averages or keeps such numbers.

    Beside a meter that is given one, others of its class are too, with how many samples it is of:
    ``top1.update(hits[0], len(x))``. A time is given alone.
    """
    averaged = averaged_over_ranks(processes)[0]
    for loop in all_loops(processes):
        # What is emptied under a condition has held the numbers of several rounds until then.
        inside = set(loop.inner)
        made = {
            blocks.path_of(target)
            for node in loop.inner
            if isinstance(node, ast.Assign)
            if not any(isinstance(item, ast.If) and item in inside for item in blocks.enclosing(loop.module, node))
            for target in node.targets
        }
        losses = {variable(site.loss) for site in program.backwards if site.body is loop.body} - {None}
        given: list[tuple[ast.Call, str, set[object]]] = []
        classes: set[object] = set()
        for node in of_the_share(processes, loop):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            keeper = _keeper(node)
            if keeper is None or program.roles.modules(keeper, loop.scope):
                continue
            if keeps_jointly(program, keeper, loop.scope):
                continue
            values = program.flow.values(keeper, loop.scope)
            of: set[object] = {value.ref for value in values if value.kind == "instance"}
            if keeper is node.func:  # ``meter(loss.item())``
                of = {ref for ref in of if isinstance(ref, ClassInfo) and _adds_when_called(program, ref)}
                if not of:
                    continue
            elif own_name(node.func) == "update":
                of |= {value.name for value in values if value.kind == "object" and not value.name.startswith(_OF_ALL)}
            path = variable(keeper)
            if of and isinstance(keeper, ast.Subscript):
                path = loop.module.text(keeper)  # ``meters[i]``: which of them does not matter
            elif path is None and isinstance(keeper, ast.Subscript):
                path = variable(keeper.value)  # ``costs[name]``: one of the lists of a dictionary
                if path is None and is_number(node.args[0]):
                    path = blocks.path_of(keeper)  # ``log[phase][epoch]["loss"]``
            if path is not None and path not in made:
                given.append((node, path, of))
                classes |= of if comes_of_batch(processes, node.args[0], loop) else set()
        for node, path, of in given:
            if _becomes_of_all(loop, path, averaged) or not (of or is_read(loop, path)):
                continue
            # Tensors that a list keeps may be outputs or features, which are no numbers to be shown.
            is_loss = variable(bare(node.args[0])) in losses
            parts = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else node.args[:1]
            is_told = any(is_number(part) or _holds_number(processes, part, loop) for part in parts) or any(
                _gives_numbers(program, part, loop.scope) for part in parts
            )
            is_told = is_told or ((of or is_loss) and comes_of_batch(processes, node.args[0], loop))
            if is_of_all(processes, node.args[0], loop) or _exchange(processes, of):
                continue
            if is_told or (of and of <= classes and len(node.args) > 1):
                yield Told(
                    Site(loop.module, loop.scope, loop.body, node),
                    path,
                    *GETS_NUMBERS,
                )


def _keeper(call: ast.Call) -> ast.expr | None:
    """What may keep the number that a call gives it: the owner of ``update``, or what is called itself."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPING:
        return call.func.value
    return call.func if isinstance(call.func, (ast.Name, ast.Attribute, ast.Subscript)) else None


def _adds_when_called(program: Program, owner: ClassInfo) -> bool:
    """Whether objects of a class add up what they are called with, ``def __call__(self, n): self.sum += n``.

    Or average it: ``self.mean = 0.9 * self.mean + 0.1 * n``.
    """
    method = owner.find_method("__call__")
    return method is not None and any(
        path.startswith("self.")
        for node in program.nodes_of(method.node)
        for path in (*added_to(node), *_averaged_with(node, {*method.parameters} - {"self"}))
    )


def _averaged_with(node: ast.AST, given: Collection[str]) -> Iterator[str]:
    """Yield the attribute that gets another value out of its own and of what a method is given."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
        return
    path, read = variable(node.targets[0]), blocks.reads(node.value)
    if path is not None and path in read and not read.isdisjoint(given):
        yield path


def _gives_numbers(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a variable holds a dictionary of numbers that a function of a step gives: ``{"loss": loss.item()}``."""
    made = assigned(program, node, scope) if isinstance(node, ast.Name) else []
    for call in made:
        for info in program.flow.callees(call) if isinstance(call, ast.Call) and program.runs_backward(call) else ():
            inner = program.flow.scopes[info.node]
            given = [item for value in info.returns for item in (value, *assigned(program, value, inner))]
            if any(isinstance(item, ast.Dict) and any(map(is_number, item.values)) for item in given):
                return True
    return False


def _holds_number(processes: Distribution, node: ast.expr, loop: TrainingLoop | BatchLoop) -> bool:
    """Whether a variable holds a number that a loop made of a tensor: ``cost = loss.item()``."""
    inside = set(loop.inner)
    made = [item for item in processes.definitions.of(node, loop.scope)] if isinstance(node, ast.Name) else []
    return bool(made) and all(item.value in inside and is_number(item.value) for item in made)


def _becomes_of_all(loop: Site, path: str, averaged: set[ast.AST]) -> bool:
    """Whether all that a function asks a list for becomes a mean over the ranks."""
    parents = loop.module.parents
    asked = [
        node
        for node in walk(loop.body)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and variable(node) == path
        if asked_of(parents, node) not in _KEEPING
    ]
    return bool(asked) and all(not averaged.isdisjoint(loop.module.ancestors(node)) for node in asked)


def _exchange(processes: Distribution, classes: set[object]) -> bool:
    """Whether methods of some classes of the script put their numbers together over the processes."""
    return bool(processes.exchanges) and any(
        node in processes.exchanges
        for info in classes
        if isinstance(info, ClassInfo)
        for owner in info.mro()
        for node in ast.walk(owner.facts.node)
    )
