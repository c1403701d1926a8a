"""Meters that a loop fills with numbers of one process's batches, and that the script shows as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.clock_times import is_time
from amp_rules.plan.own_ddp.exchanges import Exchanges
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.own_ddp.told_by_callers import is_told_by_callers
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import SHOWING, TrainingLoop
from amp_rules.plan.ways_to_show import is_shown
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk

AVERAGES = frozenset({"avg", "average", "global_avg"})
"""What the average of a meter is called."""


def shown_meters(own: OwnDdp, shares: Shares, loop: TrainingLoop) -> Iterator[str]:
    """Yield the variables of such meters, in the order in which the loop fills them."""
    nodes = [node for node in blocks.walk_body(loop.body) if getattr(node, "lineno", 0) >= loop.line]
    fillings = [item for item in _fillings(own, loop) if _is_of_batch(own, shares, loop, item.given)]
    if not fillings:
        return
    exchanges = shares.metrics.exchanges
    together = [node for node in blocks.walk_body(loop.body) if isinstance(node, ast.Call)]
    together = [call for call in together if exchanges.puts_together(call)]
    reduced = {item.path for item in fillings if may_be_reduced(own, item, exchanges)}
    for path in dict.fromkeys(item.path for item in fillings):
        if path in reduced:
            continue
        displays = _displays(own, loop, path)
        if any(blocks.touches({path, *displays}, blocks.reads(call)) for call in together):
            continue  # which may be given the meter, and reduce what it keeps
        if (
            _is_told(loop, nodes, path)
            or is_told_by_callers(own, loop, [path])
            or any(_shows(own, node, displays) for node in nodes)
        ):
            yield path


@dataclass(frozen=True)
class Filling:
    """One ``update`` of a meter.

    Attributes:
        path: the variable of the meter at the loop.
        given: what it is told.
        scope: where that stands: in the loop, or in a function that it calls with the meter.
        nodes: the loop, or that function.
    """

    path: str
    given: ast.expr
    scope: Scope
    nodes: tuple[ast.AST, ...]


def may_be_reduced(own: OwnDdp, filling: Filling, exchanges: Exchanges) -> bool:
    """Whether something puts what a meter is told together with the numbers of the others, under a test too.

    What a loss exchanges before the gradients are computed makes no number of all processes of it.
    """
    names = blocks.reads(filling.given)
    # What no round sets, as a model or settings, is no number of a batch: an evaluation is given it, too.
    set_here = {path for node in filling.nodes for path in blocks.writes_itself(node)}
    made_of = {
        path for path in behind(filling.nodes, names) if path.startswith("self.") or blocks.touches(set_here, {path})
    }
    inside = set(filling.nodes)
    backwards = [site for site in own.program.backwards if site.node in inside]
    for call in filling.nodes:
        if not isinstance(call, ast.Call) or not exchanges.puts_together(call):
            continue
        if own.program.roles.modules(call.func, filling.scope):
            continue
        read = {path for item in (*call.args, *call.keywords) for path in blocks.reads(item)}
        is_later = not backwards or call.lineno > min(site.line for site in backwards)
        if blocks.touches(made_of if is_later else names, read) and not exchanges.leaves_its_own(call):
            return True
        # What it gives may be what the meter is told, where no loss is made of it.
        written = blocks.writes(blocks.statement_of(filling.scope.module, call))
        below = [node for node in filling.nodes if getattr(node, "lineno", 0) > call.lineno]
        losses = {path for site in backwards if site.line > call.lineno for path in blocks.reads(site.loss)}
        if blocks.touches(written, behind(below, names)) and not blocks.touches(written, behind(below, losses)):
            return True
    return False


def behind(nodes: Sequence[ast.AST], names: set[str]) -> set[str]:
    """What variables are computed from, through what their methods are given too."""
    found = set(names)
    rows = [row for node in nodes if (row := _written_and_read(node)) is not None]
    while True:
        more = {path for written, read in rows if blocks.touches(written, found) for path in read} - found
        if not more:
            return found
        found |= more


def behind_loops(nodes: Sequence[ast.AST], names: set[str]) -> set[str]:
    """The same through what loops go over as well: ``for key, value in losses.items():``."""
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.AsyncFor))]
    found: set[str] = set()
    more = names
    while more - found:
        found = behind(nodes, found | more)
        through = [node.iter for node in loops if blocks.touches(blocks.writes_target(node), found)]
        more = {path for value in through for path in blocks.reads(value)}
    return found


def _written_and_read(node: ast.AST) -> tuple[set[str], set[str]] | None:
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return blocks.writes(node), blocks.reads(node.value) if node.value is not None else set()
    path = _updated(node) if isinstance(node, ast.Call) else None
    return ({path}, blocks.reads(node)) if path is not None else None


def _fillings(own: OwnDdp, loop: TrainingLoop) -> Iterator[Filling]:
    """Yield what a loop tells meters, there or in a function that is given the meter."""
    inner = tuple(loop.inner)
    for node in inner:
        if not isinstance(node, ast.Call):
            continue
        path = _updated(node)
        if path is not None:
            assert isinstance(node.func, ast.Attribute)
            values = own.program.flow.values(node.func.value, loop.scope)
            if values and all(value.kind == "instance" and _averages(value.ref) for value in values):
                yield Filling(path, node.args[0], loop.scope, inner)
            continue
        for info in own.program.flow.callees(node):
            yield from _of_holder(own, node, info)
            for name in info.parameters:
                given = info.argument(node, name)
                held = blocks.path_of(given) if isinstance(given, ast.Name) else None
                if held is None or given is None:
                    continue
                values = own.program.flow.values(given, loop.scope)
                if not values or not all(value.kind == "instance" and _averages(value.ref) for value in values):
                    continue
                nodes = tuple(blocks.walk_body(info.node))
                for part in nodes:
                    if isinstance(part, ast.Call) and _updated(part) == name:
                        yield Filling(held, part.args[0], own.program.flow.scopes[info.node], nodes)


def _of_holder(own: OwnDdp, call: ast.Call, info: FunctionFacts) -> Iterator[Filling]:
    """Yield what a method tells the meters of its object: ``tracker.step(loss)``, with ``self.losses.update(loss)``."""
    held = blocks.path_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if held is None or info.receiver is None or info.cls is None:
        return
    scope, nodes = own.program.flow.scopes[info.node], tuple(blocks.walk_body(info.node))
    for part in nodes:
        path = _updated(part) if isinstance(part, ast.Call) else None
        if path is None or not path.startswith(f"{info.receiver}.") or not isinstance(part, ast.Call):
            continue
        assert isinstance(part.func, ast.Attribute)
        values = own.program.flow.values(part.func.value, scope)
        if values and all(value.kind == "instance" and _averages(value.ref) for value in values):
            yield Filling(f"{held}.{path.partition('.')[2]}", part.args[0], scope, nodes)


def _updated(call: ast.Call) -> str | None:
    """The variable of ``meter.update(value, n)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "update" and call.args:
        return blocks.path_of(call.func.value)
    return None


def _averages(info: ClassInfo) -> bool:
    """Whether a class keeps an average of what its ``update`` is told, or gives the share of what that counts."""
    update = info.find_method("update")
    if update is None or len(update.parameters) < 2:
        return False
    value = update.parameters[1]
    kept = {
        node.attr
        for method in info.facts.methods.values()
        for node in walk(method.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    takes = any(isinstance(node, ast.Name) and node.id == value for node in blocks.walk_body(update.node))
    return takes and (bool(AVERAGES & (kept | info.facts.methods.keys())) or _gives_share(info, update))


def _gives_share(info: ClassInfo, update: FunctionFacts) -> bool:
    """Whether a method or property divides what ``update`` adds up: ``return self.right / self.seen``."""
    summed = {
        node.target.attr
        for node in blocks.walk_body(update.node)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Attribute)
    }
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div)
        and isinstance(part.left, ast.Attribute)
        and isinstance(part.right, ast.Attribute)
        and {part.left.attr, part.right.attr} <= summed
        for method in info.facts.methods.values()
        if len(method.parameters) == 1
        for value in method.returns
        for part in walk(value)
    )


def _is_of_batch(own: OwnDdp, shares: Shares, loop: TrainingLoop, given: ast.expr) -> bool:
    if is_time(own.program, loop, given):
        return False
    return is_of_batch(given, shares.ranks)


def _displays(own: OwnDdp, loop: TrainingLoop, meter: str) -> set[str]:
    """The variables of objects of the project that are made of a meter: ``progress = ProgressMeter(n, [losses])``."""
    found = set()
    for node in blocks.walk_body(loop.body):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        given = {path for item in (*node.value.args, *node.value.keywords) for path in blocks.reads(item)}
        if meter in given:
            values = own.program.flow.values(node.value, loop.scope)
            if values and all(value.kind == "instance" for value in values):
                found |= blocks.writes(node)
    return found | _displays_of_holder(own, loop, meter)


def _displays_of_holder(own: OwnDdp, loop: TrainingLoop, meter: str) -> set[str]:
    """The same of objects that a holder of meters makes itself: ``self.line = Line([self.losses])``."""
    held, _, attribute = meter.rpartition(".")
    if not held or held == "self":
        return set()
    found = set()
    for value in own.program.flow.values(ast.parse(held, mode="eval").body, loop.scope):
        for method in value.ref.facts.methods.values() if value.kind == "instance" else ():
            scope = own.program.flow.scopes[method.node]
            for node in blocks.walk_body(method.node):
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                    continue
                if f"{method.receiver}.{attribute}" in blocks.reads(node.value):
                    made = own.program.flow.values(node.value, scope)
                    if made and all(item.kind == "instance" for item in made):
                        own_paths = (path for path in blocks.writes(node) if path.startswith(f"{method.receiver}."))
                        found |= {f"{held}.{path.partition('.')[2]}" for path in own_paths}
    return found


def _shows(own: OwnDdp, node: ast.AST, displays: set[str]) -> bool:
    """Whether a call is a method of such an object that shows something."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not displays:
        return False
    if blocks.path_of(node.func.value) not in displays:
        return False
    return any(
        isinstance(part, ast.Call) and last_name(part.func) in SHOWING
        for info in own.program.flow.callees(node)
        for part in blocks.walk_body(info.node)
    )


def _is_told(loop: TrainingLoop, nodes: list[ast.AST], path: str) -> bool:
    """Whether the function shows a meter or its average, which may have a name of its own."""
    averages = [node for node in nodes if _is_average(node, path)]
    names = {
        name
        for node in nodes
        if isinstance(node, ast.Assign) and any(part in averages for part in walk(node.value))
        for name in blocks.writes(node)
    }
    shown = [*averages, *(node for node in nodes if _reads(node, names | {path}))]
    return any(is_shown(loop, node) for node in shown if isinstance(node, ast.expr))


def _reads(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names


def _is_average(node: ast.AST, path: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in AVERAGES and blocks.path_of(node.value) == path
