"""Losses that are shown where a script draws its batches itself: no loader says whose they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.arrays import assigned_above
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.lookups import may_run_anything
from amp_rules.plan.own_ddp.meters import are_meters, reduction_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.own_ddp.shown_within import are_of_batches, shown_parameters
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.plan.ways_to_show import tells, tells_failure
from amp_rules.roles.sites import Backward, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk


def shown_losses(
    own: OwnDdp, shares: Shares, loops: list[TrainingLoop], told: Named
) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first place of each function that shows the loss of its process, or what is made of it.

    Then it is ``told``.
    """
    known = {loop.body for loop in loops}
    for backward in _backwards(own) if own.wraps else ():
        if backward.body in known or backward.module not in own.modules or backward.body in own.uncalled:
            continue
        if own.reach(backward.module, backward.node) is not Reach.EVERY:
            continue
        known.add(backward.body)
        shown = list(_shown(own, shares, backward, is_alone=not loops))
        if shown:
            names = dict.fromkeys(name for _, read in shown for name in read)
            told.update((backward.body, name) for name in names)
            others = more_places(own.program, [(backward.module, item) for item, _ in shown])
            yield backward.module, shown[0][0], f"AMP233: {are_of_batches(names)}{others}"


def _backwards(own: OwnDdp) -> Iterator[Backward]:
    """Yield the backward passes, and the calls of a function that is given the loss: ``scaler(loss, optimizer)``."""
    for backward in own.program.backwards:
        yield backward
        info = own.program.function_of(backward.body)
        name = blocks.path_of(backward.loss)
        if info is None or name not in info.parameters:
            continue
        for caller in own.program.flow.callers(info):
            site, given = calling(caller), info.argument(caller.call, name)
            if given is not None:
                yield Backward(site.module, site.scope, site.body, caller.call, caller.call, given)


def _shown(own: OwnDdp, shares: Shares, backward: Backward, *, is_alone: bool) -> Iterator[tuple[ast.Call, list[str]]]:
    """Yield the calls around a backward pass that show numbers made of its loss or its terms, with their variables."""
    around = [item for item in blocks.enclosing(backward.module, backward.node) if isinstance(item, blocks.LOOPS)]
    if around:
        nodes = list(blocks.walk_own(around[-1]))
    elif is_alone and _is_a_round(own, backward):
        nodes = list(blocks.walk_body(backward.body))
    else:
        return
    names_of_loss = {path for path in blocks.reads(backward.loss) if path.isidentifier()}
    names_of_loss |= _scaled(backward, names_of_loss)
    names_of_loss |= _terms(nodes, names_of_loss)
    others = list(_other_passes(nodes, backward, names_of_loss))
    rounds = [node for node in nodes if not _is_within(backward.module, node, others)]
    losses = _made_of(own, backward, rounds, names_of_loss) | _meters(own, backward, rounds)
    apart = _in_loops_of_their_own(backward, names_of_loss)
    told = {path for path in losses if not shares.metrics.may_tell_of(backward.body, path, apart)}
    for node in rounds:
        if not isinstance(node, ast.Call) or told.isdisjoint(_roots(node)):
            continue
        if tells_failure(backward.module, node):
            continue
        given = _given_to_be_shown(own, shares, node)
        if any(map(names_rank, given)):
            continue  # what every process says of itself
        read = {path for item in given for path in _roots(item)} & told
        names = sorted(read - _set_anew(given, losses, backward, names_of_loss))
        if names and _is_outermost(backward.module, node):
            yield node, names


def _roots(node: ast.AST) -> set[str]:
    """The variables that a node reads, or parts of which it does: ``losses`` of ``losses.avg``."""
    return {path.partition(".")[0] for path in blocks.reads(node)}


def _given_to_be_shown(own: OwnDdp, shares: Shares, call: ast.Call) -> list[ast.expr]:
    """What a call shows of what it is given: all of it, or what a function of the project shows of its parameters."""
    callees = own.program.flow.callees(call)
    if not callees:
        return values_given(call) if tells(call) else []
    if may_run_anything(own.program, call) or shares.metrics.exchanges.puts_together(call):
        return []
    found = []
    for info in callees:
        shown = shown_parameters(own, info.node)
        found += [value for name, value in info.bound(call) if name in shown]
    return found


def _is_a_round(own: OwnDdp, backward: Backward) -> bool:
    """Whether a function takes one step, and loops call it: ``for step in range(steps): train(step)``."""
    info = own.program.function_of(backward.body)
    callers = own.program.flow.callers(info) if info is not None else []
    return any(blocks.loop_around(item.scope.module, item.call) is not None for item in callers)


def _other_passes(nodes: list[ast.AST], backward: Backward, names: set[str]) -> Iterator[ast.AST]:
    """Yield loops of a round that work a loss of their own out and train on nothing: evaluations."""
    above = [item for item in blocks.enclosing(backward.module, backward.node) if isinstance(item, blocks.LOOPS)]
    for node in nodes:
        if not isinstance(node, blocks.LOOPS) or node in above or not blocks.touches(names, blocks.writes(node)):
            continue
        # One before the backward pass, in its loop, may make its loss.
        if node.lineno > backward.statement.lineno or (
            above and above[0] not in blocks.enclosing(backward.module, node)
        ):
            yield node


def _scaled(backward: Backward, names: set[str]) -> set[str]:
    """The loss that the ``with`` around a backward pass is given: ``with scale_loss(loss, optimizer) as scaled:``."""
    return {
        item.context_expr.args[0].id
        for node in blocks.enclosing(backward.module, backward.node)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id in names
        if isinstance(item.context_expr, ast.Call) and item.context_expr.args
        if isinstance(item.context_expr.args[0], ast.Name)
    }


def _in_loops_of_their_own(backward: Backward, names: set[str]) -> set[ast.AST]:
    """The calls of evaluations in the function that work a loss out by the same name: what they reduce is that one."""
    above = {item for item in blocks.enclosing(backward.module, backward.node) if isinstance(item, blocks.LOOPS)}
    loops = [
        node
        for node in blocks.walk_body(backward.body)
        if isinstance(node, blocks.LOOPS) and node not in above and any(_begins(item, names) for item in node.body)
    ]
    return {part for loop in loops for part in walk(loop) if isinstance(part, ast.Call)}


def _begins(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement makes a loss of other things than one by its name."""
    return (
        isinstance(statement, ast.Assign)
        and not names.isdisjoint(blocks.writes(statement))
        and not blocks.touches(names, blocks.reads(statement.value))
    )


def _is_within(module: Module, node: ast.AST, loops: list[ast.AST]) -> bool:
    return bool(loops) and any(above in loops for above in module.ancestors(node))


def _set_anew(given: list[ast.expr], losses: set[str], backward: Backward, names: set[str]) -> set[str]:
    """Variables that the assignment above what is shown makes of something else, ``shown = [total, count]``.

    The loss itself is made of other things, too: only below its backward pass it is another number,
    ``loss = total / count``.
    """
    read = [node for item in given for node in walk(item) if isinstance(node, ast.Name) and node.id in losses]
    made = {node.id: assigned_above(node, backward.scope) for node in read}
    return {
        name
        for name, value in made.items()
        if value is not None
        and not blocks.reads(value) & losses
        and (name not in names or value.lineno > backward.statement.lineno)
    }


def _terms(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """What a round computes by calls and adds up to a loss: ``loss = class_loss + weight * shape_loss``."""
    made = [node for node in nodes if isinstance(node, ast.Assign)]
    added = {
        part.id
        for node in made
        if blocks.touches(names, blocks.writes(node))
        for part in _operands(node.value)
        if isinstance(part, ast.Name)
    }
    computed = {path for node in made if isinstance(node.value, ast.Call) for path in blocks.writes(node)}
    return added & computed


def _operands(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp):
        yield from _operands(value.left)
        yield from _operands(value.right)
    elif isinstance(value, ast.Name):
        yield value


def _made_of(own: OwnDdp, backward: Backward, nodes: list[ast.AST], names: set[str]) -> set[str]:
    """Variables that a round makes of others, in one statement or by way of others; dictionaries and meters of them."""
    found = set(names)
    for _ in range(_MAX_HOPS):
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign)) and blocks.reads(node.value) & found:
                found |= {path for path in blocks.writes(node) if path.isidentifier()}
                found |= set(_filled(node))
            elif isinstance(node, ast.Call) and node.args and blocks.reads(node.args[0]) & found:
                held = node.func.value if isinstance(node.func, ast.Attribute) else None
                if isinstance(held, ast.Name) and _keeps(own, backward, node, held):
                    found.add(held.id)
    return found


def _keeps(own: OwnDdp, backward: Backward, call: ast.Call, held: ast.Name) -> bool:
    """Whether a call puts a number into a list, or into a meter of the project: ``losses.update(loss.item(), len(x))``.

    One of a library may put together what all processes have.
    """
    values = own.program.flow.values(held, backward.scope)
    if last_name(call.func) == "append":
        return bool(values) and not any(value.kind == "instance" for value in values)
    return (
        last_name(call.func) == "update"
        and are_meters(own.program, values)
        and all(reduction_of(own.program, value.ref) is None for value in values)
    )


def _meters(own: OwnDdp, backward: Backward, nodes: list[ast.AST]) -> set[str]:
    """Meters that a round fills with anything made of its batch: scores beside the loss."""
    loop = next((item for item in blocks.enclosing(backward.module, backward.node) if isinstance(item, ast.For)), None)
    made = blocks.writes_target(loop) if loop is not None else set()
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    while more := {
        path
        for node in assigned
        if blocks.reads(node.value) & made
        for path in blocks.writes(node)
        if path.isidentifier() and path not in made
    }:
        made |= more
    return {
        node.func.value.id
        for node in nodes
        if isinstance(node, ast.Call) and node.args and blocks.reads(node.args[0]) & made
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if last_name(node.func) == "update" and _keeps(own, backward, node, node.func.value)
    }


def _filled(node: ast.Assign | ast.AugAssign) -> Iterator[str]:
    """Yield the variables of which a statement assigns an item: ``losses["all"] = loss``."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            yield target.value.id


_MAX_HOPS = 2
"""Names behind that of a loss: ``total``, ``average``."""


def _is_outermost(module: Module, call: ast.Call) -> bool:
    """Whether a call is no part of another one that shows it: ``print("{}".format(loss))``."""
    for parent in module.ancestors(call):
        if isinstance(parent, ast.stmt):
            return True
        if isinstance(parent, ast.Call) and tells(parent):
            return False
    return True
