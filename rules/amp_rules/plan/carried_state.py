"""Batches that go on where the last one ended, so that only one process can read them in a row."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.ending_iterators import counted_range
from amp_rules.plan.entries_written_anew import is_filled_anew, takes_entries_alone
from amp_rules.roles.batches import DataFlow, TrainingData
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import leaves
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.data import COUNTERS, RANDOM_SAMPLERS


def reasons(program: Program, flow: DataFlow, data: TrainingData) -> Iterator[Declined]:
    """Yield training loops whose model is given what it computed for the last batch, where batches come in order."""
    in_order = {use.node: use for use in data.uses if not is_shuffled(program, use)}
    if not in_order:
        return
    told: set[ast.AST] = set()
    models = _Models(program)
    for site in program.backwards:
        for loop in flow.loops_of(site):
            if not _iterates(loop, data.uses, in_order):
                continue
            uses = [*data.uses, *data.evaluated]
            within = _turns_over_one_batch(program, loop, uses)
            for where, path in (*_carried_by_loop(program, loop, uses), *_carried_by_model(models, loop)):
                if where.node not in told and not (within and _is_local(loop, path)):
                    told.add(where.node)
                    yield _decline(where, path, _order(program, in_order.values()))
            if not within:
                break


def _decline(where: Site, path: str, order: str) -> Declined:
    return declining.decline(
        declining.BATCHES_IN_A_ROW,
        where.module,
        where.node,
        f"`{path}` comes from the last batch, and {order}: a process that gets only some of the batches would "
        "continue from the wrong state",
        f"use `--no-ddp`; or give each rank its own part of every sequence, and reset `{path}` at each batch",
    )


def _order(program: Program, uses: Iterable[LoaderUse]) -> str:
    """What is said of the order of batches, which may be slices; a shuffle may be asked for by an expression."""
    uses = list(uses)
    if all(use.slices is not None for use in uses):
        return "the batches are slices of the data, cut one after another"
    calls = [value.site for use in uses for value in use.values if isinstance(value.site, ast.Call)]
    asked = [given for call in calls if (given := given_to_loader(call, "shuffle")) is not None]
    if any(not isinstance(given, ast.Constant) for given in asked):
        return "it is not known whether the loader shuffles"
    return "the loader gives its batches in order"


def is_shuffled(program: Program, use: LoaderUse) -> bool:
    """Whether the order of the loader's batches says nothing."""
    return bool(use.values) and all(_draws(program, value) for value in use.values)


def _draws(program: Program, loader: Value) -> bool:
    """Whether a loader draws its samples: it is told to, or its sampler is one of torch that does."""
    call = loader.site
    located = program.locate(call) if isinstance(call, ast.Call) else None
    if located is None or not isinstance(call, ast.Call):
        return False
    shuffle = given_to_loader(call, "shuffle")
    if isinstance(shuffle, ast.Constant) and shuffle.value:
        return True
    sampler = given_to_loader(call, "sampler")
    drawn = program.flow.values(sampler, located[1]) if sampler is not None else set()
    return bool(drawn) and all(value.kind == "object" and value.ref in RANDOM_SAMPLERS for value in drawn)


def _iterates(loop: Site, uses: Iterable[LoaderUse], in_order: Mapping[ast.AST, LoaderUse]) -> bool:
    """Whether the loop takes its batches from one of the loaders in order, by its head or in its body."""
    inside = {*walk(loop.node)}
    own = [use for use in uses if use.node in inside]
    if own:
        return any(use.node in in_order for use in own)
    return any(use.module is not loop.module or use.body is not loop.body for use in in_order.values())


def _turns_over_one_batch(program: Program, loop: Site, uses: Iterable[LoaderUse]) -> bool:
    """Whether a loop counts its rounds and takes no batch in them, neither itself nor by what it calls."""
    if not isinstance(loop.node, ast.For) or not isinstance(loop.body, FunctionNode):
        return False
    iterated = counted_range(program, loop.node.iter, loop)
    if isinstance(iterated, ast.Call):
        names = program.callee_names(iterated, loop.scope)
    else:
        names = {value.name for value in program.flow.values(iterated, loop.scope) if value.kind == "object"}
    if not names & COUNTERS or any(_takes_next(node) for item in loop.node.body for node in blocks.walk_own(item)):
        return False
    taking = {use.body for use in uses}
    return loop.body not in taking and program.called_from(walk(loop.node)).isdisjoint(taking)


def _takes_next(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("next", "__next__", "get")


def _is_local(loop: Site, path: str) -> bool:
    """Whether a variable begins anew with each call of the function around a loop."""
    return "." not in path and loop.scope.owner(path).node is loop.body


@dataclass
class Round:
    """What one round of a loop, or one call of a function, reads and writes, in the order of its statements.

    Attributes:
        carried: paths that are read before they are certain to be written.
        written: paths that are written in every case.
        settled: for a condition that decides the same in each round, the paths that one of its sides alone makes.
    """

    carried: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    settled: Callable[[ast.If], set[str]] = lambda _: set()

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Go through statements."""
        for statement in statements:
            self._run(statement)

    def _run(self, statement: ast.stmt) -> None:
        if isinstance(statement, FunctionNode):
            return
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                self._read(item.context_expr)
            self.run(statement.body)
        elif isinstance(statement, ast.If):
            self._read(statement.test)
            branches = [Round(written={*self.written}, settled=self.settled) for _ in range(2)]
            suites = (statement.body, statement.orelse)
            for branch, suite in zip(branches, suites, strict=True):
                branch.run(suite)
                self.carried |= branch.carried
            # What goes on behind it comes from a side that does not leave the round.
            staying = [item for item, suite in zip(branches, suites, strict=True) if not (suite and leaves(suite))]
            self.written |= set.intersection(*(item.written for item in staying or branches))
            self.written |= (branches[0].written | branches[1].written) & self.settled(statement)
        elif isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            self._read(statement.test if isinstance(statement, ast.While) else statement.iter)
            heads = set() if isinstance(statement, ast.While) else blocks.writes_target(statement)
            branch = Round(written=self.written | heads, settled=self.settled)  # of its first turn, which may be none
            branch.run(statement.body)
            self.carried |= branch.carried
            self.run(statement.orelse)
        elif isinstance(statement, ast.Try):
            self._try(statement)
        else:
            self._read(statement)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                self.written |= blocks.writes(statement)

    def _try(self, statement: ast.Try) -> None:
        """What a suite writes holds behind it where each handler writes it too, or leaves the round."""
        before = set(self.written)
        self.run([*statement.body, *statement.orelse])
        for handler in statement.handlers:
            branch = Round(written=set(before), settled=self.settled)
            branch.run(handler.body)
            self.carried |= branch.carried
            if not leaves(handler.body):
                self.written &= branch.written
        self.run(statement.finalbody)

    def _read(self, node: ast.AST) -> None:
        self.carried |= blocks.reads(node) - self.written


def _carried_by_loop(program: Program, loop: Site, uses: Iterable[LoaderUse]) -> Iterator[tuple[Site, str]]:
    """Calls of the model in the loop that are given a variable which its last call gave."""
    body: list[ast.stmt] = getattr(loop.node, "body", [])
    calls = [
        node
        for item in body
        for node in blocks.walk_own(item)
        if isinstance(node, ast.Call) and _runs_model(program, node, loop.scope)
        if not _goes_through(program, node, uses) and not _is_of_weights(loop, node)
    ]
    each = Site(loop.module, loop.scope, loop.body, loop.node)
    for where, path in _carried(body, calls, each, _heads(loop.node)):
        assert isinstance(where.node, ast.Call)
        if not is_filled_anew(body, path, loop) and not takes_entries_alone(program, where.node, path):
            yield where, path


def _is_of_weights(loop: Site, call: ast.Call) -> bool:
    """Whether a call is made for each weight of a model, as of averages: all processes have the same weights."""
    return any(
        isinstance(item, ast.For)
        and isinstance(item.iter, ast.Call)
        and isinstance(item.iter.func, ast.Attribute)
        and item.iter.func.attr in ("parameters", "named_parameters")
        for item in blocks.enclosing(loop.module, call)
    )


def _carried(
    body: list[ast.stmt], calls: list[ast.Call], site: Site, head: set[str] | None = None
) -> Iterator[tuple[Site, str]]:
    """Calls of a body that are given what an earlier round of it computed; ``head`` is what each round begins with."""
    if not calls:
        return
    entry = Round(written=set(head or ()), settled=lambda branch: settled_or_sized(branch, body, site))
    entry.run(body)
    given = _derived(body, calls, set())
    # What the last round's call gave, and is read in this one before it is written.
    carried = {path for path in entry.carried & given if not _is_called(path, calls)}
    arguments = [(call, [*call.args, *(item.value for item in call.keywords)]) for call in calls]
    reads = [(call, {path for item in given for path in blocks.reads(item)}) for call, given in arguments]
    for path in sorted(carried):
        # A call that is given the state itself tells more than one that is given what is made of it.
        for reached in ({path}, _derived(body, [], {path})):
            call = next((call for call, read in reads if read & reached), None)
            if call is not None:
                yield Site(site.module, site.scope, site.body, call), path
                break


def settled_or_sized(branch: ast.If, body: list[ast.stmt], site: Site) -> set[str]:
    """The variables that a condition makes in each round that can go on without a value of the last one."""
    return settled_by(branch, body, site) | sized_by(branch, body, site)


def settled_by(branch: ast.If, body: list[ast.stmt], site: Site) -> set[str]:
    """The variables that only this condition makes, where it decides the same in each round.

    Where it decides for the side that does not make one, nothing else would: there is no value of the last round.
    """
    changed = {path for item in body for path in blocks.writes(item)} | _heads(site.node)
    inside = [node for node in blocks.walk_own(branch) if isinstance(node, ast.stmt)]
    for node in inside:
        if isinstance(node, blocks.LOOPS):
            return set()
        if isinstance(node, ast.If) and (_asks(node.test) or blocks.touches(blocks.reads(node.test), changed)):
            return set()
    given = {item.arg for item in arguments_of(site.body)} if isinstance(site.body, FunctionNode) else set()
    found = {path for path in blocks.writes(branch) if "." not in path} - given - _heads(site.node)
    for current in blocks.walk_body(site.body):
        if isinstance(current, ast.stmt) and current not in inside and not hasattr(current, "body"):
            found -= blocks.writes(current) - blocks.reads(current)
        elif isinstance(current, (ast.For, ast.AsyncFor)):
            found -= blocks.writes_target(current)
        elif isinstance(current, (ast.With, ast.AsyncWith)):
            found -= {path for item in current.items for path in _names(item.optional_vars)}
    return found


def sized_by(branch: ast.If, body: list[ast.stmt], site: Site) -> set[str]:
    """The variables that only conditions on the size of a batch make: ``if x.shape[1] > width: part = x[:, :width]``.

    Nothing gives them a first value, so a first batch of another size would raise: no state of them is meant to go on.
    """
    changed = {path for item in body for path in blocks.writes(item)} | _heads(site.node)
    if not _asks_size(branch.test, changed):
        return set()
    given = {item.arg for item in arguments_of(site.body)} if isinstance(site.body, FunctionNode) else set()
    found = {path for path in blocks.writes(branch) if "." not in path} - given - _heads(site.node)
    found -= blocks.reads(branch.test)
    return found - _written_elsewhere(blocks.own_parts(site.body), changed)


def _asks_size(test: ast.expr, changed: set[str]) -> bool:
    """Whether a test compares sizes of this round with what stays: ``x.shape[1] > width``, ``len(batch) == 8``."""
    if not isinstance(test, ast.Compare):
        return False
    asks = False
    parts: list[ast.AST] = [test]
    while parts:
        part = parts.pop()
        if isinstance(part, ast.Attribute) and part.attr == "shape":
            asks |= blocks.path_of(part.value) in changed
        elif isinstance(part, ast.Call):
            asked = part.args[0] if last_name(part.func) == "len" and part.args else part.func
            if last_name(part.func) not in ("len", "size"):
                return False
            asks |= blocks.touches(blocks.reads(asked), changed)
        elif blocks.path_of(part) in changed:
            return False
        else:
            parts += ast.iter_child_nodes(part)
    return asks


def _written_elsewhere(suite: Iterable[ast.AST], changed: set[str]) -> set[str]:
    """What is written outside of conditions on sizes."""
    found: set[str] = set()
    for node in suite:
        if isinstance(node, ast.If) and not node.orelse and _asks_size(node.test, changed):
            continue
        inner = [item for item in ast.iter_child_nodes(node) if isinstance(item, (ast.stmt, ast.ExceptHandler))]
        found |= _written_elsewhere(inner, changed) | (_written_by_head(node) if inner else blocks.writes(node))
    return found


def _written_by_head(node: ast.AST) -> set[str]:
    """What a statement with suites writes besides them."""
    found = {path for item in getattr(node, "items", ()) for path in _names(item.optional_vars)} | _heads(node)
    heads = (item for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr))
    return found | {path for item in heads for path in blocks.writes(item)}


def _asks(node: ast.expr) -> bool:
    """Whether an expression calls something, which may answer otherwise the next time."""
    return any(isinstance(part, ast.Call) for part in walk(node))


def _heads(node: ast.AST) -> set[str]:
    return blocks.writes_target(node) if isinstance(node, (ast.For, ast.AsyncFor)) else set()


def _names(node: ast.expr | None) -> set[str]:
    return {item.id for item in walk(node) if isinstance(item, ast.Name)} if node is not None else set()


def _is_called(path: str, calls: list[ast.Call]) -> bool:
    return any(blocks.path_of(call.func) == path for call in calls)


def _derived(body: list[ast.stmt], calls: list[ast.Call], start: set[str]) -> set[str]:
    """Paths that are assigned from the calls, or from the paths to start with."""
    derived = {*start}
    statements = [
        node for item in body for node in blocks.walk_own(item) if isinstance(node, (ast.Assign, ast.AnnAssign))
    ]
    while True:
        before = len(derived)
        for statement in statements:
            value = statement.value
            if value is None:
                continue
            if blocks.reads(value) & derived or any(node in calls for node in walk(value)):
                derived |= blocks.writes(statement)
        if len(derived) == before:
            return derived


def _runs_model(program: Program, call: ast.Call, scope: Scope) -> bool:
    if program.called_models(call, scope):
        return True
    return any(
        isinstance(node, ast.Call) and (located := program.locate(node)) and program.called_models(node, located[1])
        for info in program.flow.callees(call)
        if not program.is_model_code(info.node)
        for node in program.nodes_of(info.node)
    )


def _goes_through(program: Program, call: ast.Call, uses: Iterable[LoaderUse]) -> bool:
    """Whether a function goes through the batches of a loader itself: what it gives is not of the last one."""
    nodes = {use.node for use in uses}
    return any(node in nodes for info in program.flow.callees(call) for node in program.nodes_of(info.node))


class _Models:
    """What the functions of models are given of their last round; each is looked at once, whatever loops run it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[ast.AST, list[tuple[Site, str]]] = {}

    def carried(self, body: ast.AST) -> list[tuple[Site, str]]:
        """Calls within a function of a model, with the path that comes from its last round."""
        if body not in self._known:
            self._known[body] = list(self._carried(body))
        return self._known[body]

    def _carried(self, body: ast.AST) -> Iterator[tuple[Site, str]]:
        program = self.program
        if not program.is_model_code(body) or not isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        scope = program.flow.scopes[body]
        calls = [
            node for node in program.nodes_of(body) if isinstance(node, ast.Call) and program.called_models(node, scope)
        ]
        yield from _carried(body.body, calls, Site(scope.module, scope, body, body))


def _carried_by_model(models: _Models, loop: Site) -> Iterator[tuple[Site, str]]:
    """Calls within a model that are given an attribute of it which they set in the last forward pass."""
    inside = {*models.program.called_from(walk(loop.node))}
    for body in inside:
        for call, path in models.carried(body):
            owner, _, name = path.rpartition(".")
            if owner == "self" and not _set_elsewhere(models.program, inside - {body}, loop, name):
                yield call, path


def _set_elsewhere(program: Program, bodies: set[ast.AST], loop: Site, name: str) -> bool:
    """Whether a round sets the attribute anew: ``model.hidden = model.init_hidden()``, ``model.reset()``."""
    parts = [*getattr(loop.node, "body", []), *(item for body in bodies for item in blocks.own_parts(body))]
    return any(path.rpartition(".")[2] == name for item in parts for path in blocks.writes(item))
