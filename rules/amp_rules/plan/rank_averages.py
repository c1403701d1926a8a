"""Averages of what one process sees, where a training loop shows them: nothing is wrong, but the reader has to know."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.training_loops import SHOWING, Counted, TrainingLoop, added_to, variable
from amp_rules.plan.ways_to_show import asked_of, is_read
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk

_OF_ALL = ("torchmetrics.", "builtins.", "collections.")
"""Libraries whose metrics put their numbers together over the processes themselves, and containers."""

_MAX_CALLS = 3
"""Functions through which a number is followed to the loss that it is; trainers have two."""

ADDS_UP = (
    "adds up the batches of one process: its average covers only rank 0's share of the data",
    "add up the batches of one process: their averages cover only rank 0's share of the data",
)
"""What is to be known of a sum, and of several."""

GETS_NUMBERS = (
    "gets the numbers of one process: what it shows covers only rank 0's share of the data",
    "get the numbers of one process: what they show covers only rank 0's share of the data",
)
"""What is to be known of a meter or a list, and of several."""

_KEEPING = frozenset({"update", "add", "append"})
"""Methods of meters and lists that take a number of each batch."""


@dataclass(frozen=True)
class Told:
    """Something that is shown and that counts what one process sees.

    Attributes:
        site: where.
        name: its text in the script.
        one: what is to be known of it.
        several: the same of several.
    """

    site: Site
    name: str
    one: str
    several: str


def averages(processes: Distribution) -> Iterator[Told]:
    """Yield sums of a rank's losses that are shown divided by its own batches."""
    sums = processes.sums
    summed = {(item.place.body, variable(part)) for item in sums.here for part in walk(item.node)}
    evaluating = {node for loop in processes.loops for node in loop.only_evaluating}
    averaged = _averaged(processes)
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
            if adding in evaluating or (place.body, path) in summed or _is_of_all(processes, adding, place):
                continue
            begun = _begun_again(place, path)
            means = _means_of(averaged, place, path, begun)
            shown = [
                node
                for node in [*reads, *place.nodes_after_loops(path)]
                if isinstance(node, ast.expr) and variable(node) == path and (begun is None or node.lineno < begun)
                if is_shown(place, node)
                or sums.is_handed_on_to_show(place, node)
                or any(node in given and _shows(place, name) for name, given in means.items())
            ]
            site = Site(place.module, place.scope, place.body, adding)
            by_callers = _is_shown_by_callers(processes, averaged, place, path, means)
            unclear = [item for node in shown if (item := sums.divided_unclearly(place, node)) is not None]
            if unclear:
                text = (
                    f"adds up the batches of one process, and `{place.module.text(unclear[0])}` may count those of "
                    "all processes"
                )
                yield Told(site, path, text, text)
            elif not (shown or place.is_changed(path)) and by_callers == "alone":
                rest = "the batches of one process, about 1/N of the data"
                yield Told(site, path, f"adds up {rest}", f"add up {rest}")
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
                if _is_of_all(processes, node, loop) or not _is_shown_inside(loop, path):
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
            if any(isinstance(item, ast.expr) and variable(item) == path and is_shown(place, item) for item in reads):
                text = "the batches of one process: rank 0's share of the data"
                site = Site(loop.module, loop.scope, loop.body, node)
                yield Told(site, path, f"is a mean over {text}", f"are means over {text}")


def meters(program: Program, processes: Distribution) -> Iterator[Told]:
    """Yield where a training loop gives a number of its batch to an object that averages or keeps such numbers.

    Beside a meter that is given one, others of its class are too, with how many samples it is of:
    ``top1.update(hits[0], len(x))``. A time is given alone.
    """
    averaged = _averaged(processes)[0]
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
            is_loss = variable(_bare(node.args[0])) in losses
            parts = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else node.args[:1]
            is_told = any(is_number(part) or _holds_number(processes, part, loop) for part in parts) or any(
                _gives_numbers(program, part, loop.scope) for part in parts
            )
            is_told = is_told or ((of or is_loss) and comes_of_batch(processes, node.args[0], loop))
            if _is_of_all(processes, node.args[0], loop) or _exchange(processes, of):
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
    """Whether objects of a class add up what they are called with: ``def __call__(self, n): self.sum += n``."""
    method = owner.find_method("__call__")
    return method is not None and any(
        path.startswith("self.") for node in program.nodes_of(method.node) for path in added_to(node)
    )


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


def all_loops(processes: Distribution) -> Iterator[TrainingLoop | BatchLoop]:
    """Yield the loops over shared loaders, and those that take their batches from one by hand."""
    yield from processes.loops
    told: set[ast.AST] = {loop.loop for loop in processes.loops}
    for site in processes.data.loops:
        if site.node not in told and isinstance(site.node, (ast.For, ast.While)):
            told.add(site.node)
            yield BatchLoop(site.module, site.scope, site.body, site.node, site.node)


def of_the_share(processes: Distribution, loop: TrainingLoop | BatchLoop) -> list[ast.AST]:
    """The nodes that run in each round, without what evaluates data that each process sees in full."""
    heads = {use.loader for use in processes.data.evaluated}
    whole = {
        node
        for item in loop.inner
        if isinstance(item, (ast.For, ast.AsyncFor)) and not heads.isdisjoint(walk(item.iter))
        for node in walk(item)
    }
    whole |= loop.only_evaluating if isinstance(loop, TrainingLoop) else set()
    return [node for node in loop.inner if node not in whole]


def _is_of_all(processes: Distribution, node: ast.AST, place: Site) -> bool:
    """Whether a number is made of what the script itself averages over the processes."""
    if not processes.exchanges:
        return False
    meets = processes.program.closure(lambda item: item in processes.exchanges)
    made = [
        value
        for item in walk(node)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)
        for value in assigned(processes.program, item, place.scope)
    ]
    return any(map(meets, [node, *made]))


def _exchange(processes: Distribution, classes: set[object]) -> bool:
    """Whether methods of some classes of the script put their numbers together over the processes."""
    return bool(processes.exchanges) and any(
        node in processes.exchanges
        for info in classes
        if isinstance(info, ClassInfo)
        for owner in info.mro()
        for node in ast.walk(owner.facts.node)
    )


_Averaged = tuple[set[ast.AST], set[tuple[ast.AST, str | None]]]


def _averaged(processes: Distribution) -> _Averaged:
    """What becomes a mean over the ranks: expressions, and variables with the functions where they do."""
    reductions = [item for item in processes.agreed.reductions if not item.is_taken]
    return (
        {item.node for item in reductions if item.variable is None},
        {(blocks.body_of(item.module, item.node), item.variable) for item in reductions if item.variable is not None},
    )


def _means_of(means_of_all: _Averaged, place: Counted, path: str, begun: int | None) -> dict[str, set[ast.AST]]:
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
    processes: Distribution, means_of_all: _Averaged, place: Site, path: str, means: Collection[str]
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


def is_shown(loop: Site, node: ast.expr) -> bool:
    """Whether a number is printed, or made a part of a text."""
    child: ast.AST = node
    for parent in loop.module.ancestors(node):
        divides = isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv))
        if isinstance(parent, ast.stmt) or (divides and child is getattr(parent, "right", None)):
            return False
        child = parent
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod)):
            return True
        if isinstance(parent, ast.Call):
            name = parent.func.attr if isinstance(parent.func, ast.Attribute) else blocks.path_of(parent.func)
            if name in SHOWING:
                return True
    return False


_OF_TENSORS = frozenset({"detach", "data", "sum", "item", "cpu"})
"""Methods and attributes that give a number of a tensor, or the tensor of one number without what made it."""


def _is_of_batch(node: ast.AST) -> bool:
    """Whether something is made of a tensor: ``loss.item()``, ``loss.detach()``, ``(predicted == y).sum()``."""
    return is_number(node) or any(isinstance(part, ast.Attribute) and part.attr in _OF_TENSORS for part in walk(node))


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
        or any(value in inside and _is_of_batch(value) for value in assigned(processes.program, part, place.scope))
        for part in walk(getattr(adding, "value", adding))
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load)
    )


def comes_of_batch(processes: Distribution, node: ast.AST, place: Site, depth: int = 0) -> bool:
    """Whether something is made of a tensor here, or by a function that gives it back: ``loss = self.step(x)``."""
    if _is_of_batch(node):
        return True
    program = processes.program
    value = node.value if isinstance(node, (ast.AugAssign, ast.Assign)) else node
    if depth >= _MAX_CALLS:
        return False
    parts: list[tuple[ast.AST, int | None]] = [(part, None) for part in walk(value) if isinstance(part, ast.Call)]
    for name in walk(value):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load):
            given = processes.definitions.of(name, place.scope)
            parts += [(item.value, _index_of(item.statement, name.id)) for item in given]
    for call, index in parts:
        for info in program.flow.callees(call) if isinstance(call, ast.Call) else ():
            scope = program.flow.scopes[info.node]
            inner = Site(scope.module, scope, info.node, info.node)
            for back in info.returns:
                part = back.elts[index] if isinstance(back, ast.Tuple) and index is not None else back
                if comes_of_batch(processes, part, inner, depth + 1) or _is_made_of_batch(processes, part, inner):
                    return True
    return False


def _is_made_of_batch(processes: Distribution, node: ast.expr, place: Site) -> bool:
    """Whether a variable is assigned what is made of a tensor: ``loss_D = loss.item()``."""
    if not isinstance(node, ast.Name):
        return False
    return any(_is_of_batch(item.value) for item in processes.definitions.of(node, place.scope))


def _index_of(statement: ast.stmt, name: str) -> int | None:
    """Which part of what is assigned a variable takes, if it takes a part."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    for target in targets:
        if isinstance(target, ast.Tuple):
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Name) and item.id == name:
                    return index
    return None


def _bare(node: ast.expr) -> ast.expr:
    """The tensor that a chain of such methods begins with: ``loss`` of ``loss.detach().cpu()``."""
    while True:
        inner = node.func if isinstance(node, ast.Call) else node
        if not (isinstance(inner, ast.Attribute) and inner.attr in _OF_TENSORS):
            return node
        node = inner.value


def is_number(node: ast.AST) -> bool:
    """Whether a tensor is made a number here: ``loss.item()``, ``float(loss)``, ``loss.data[0]`` of old torch."""
    calls = [part.func for part in walk(node) if isinstance(part, ast.Call)]
    return any(blocks.path_of(func) == "float" or getattr(func, "attr", "") == "item" for func in calls) or any(
        isinstance(part, ast.Subscript)
        and isinstance(part.value, ast.Attribute)
        and part.value.attr == "data"
        and isinstance(part.slice, ast.Constant)
        and part.slice.value == 0
        for part in walk(node)
    )
