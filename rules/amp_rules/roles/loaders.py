"""Which loaders are behind what a loop iterates or ``next`` is given: through variables, generators and wrappers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Form, Value
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loader_ways import AllWays, Nearest, Way
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import COMPREHENSIONS, walk
from amp_rules.torch.data import LOADERS_OF_TORCH
from amp_rules.torch.wrappers import PROGRESS_BARS

_LIBRARY_ITERATORS = ("Iterator", "Loader")
_MAX_DEPTH = 6
"""Variables, wrappers and generators between a loop and its loader; people stack two or three. A loader further in is
not found, and the step is declined for want of one."""
_WITH_STEP = 3
"""Arguments of a range with a step."""
_MAX_TUPLES = 3
"""Tuples within tuples in which a batch is looked for: ``enumerate(zip(one, two))`` has two."""
_OF_NUMBERS = frozenset({"builtins.len", "builtins.range"})
# Who looks into a call or a function, and for what.
_RUNNING, _FETCHING, _TAKING, _MAKING = "runs it", "keeps its next batch", "takes from it", "is made by it"


@dataclass(frozen=True)
class Slices:
    """Slices of the data that a script cuts by itself.

    Attributes:
        range: the range over the places where they begin, or over their numbers; None where there is none.
        scope: the names that it sees.
        data: what they are cut out of.
    """

    range: ast.Call | None
    scope: Scope
    data: tuple[Site, ...]

    @property
    def stop(self) -> ast.expr | None:
        """Where the data ends, in a range over places: one with a step."""
        return self.range.args[1] if self.range is not None and len(self.range.args) == _WITH_STEP else None

    @property
    def size(self) -> ast.expr | None:
        """How many samples a batch has, where the step of the range says it."""
        return self.range.args[2] if self.range is not None and len(self.range.args) == _WITH_STEP else None


@dataclass(frozen=True)
class LoaderUse(Site):
    """An expression that holds a loader, where it is iterated.

    Attributes:
        loader: the expression.
        values: the loaders that it may hold.
        slices: what is known of it where it gives slices of the data, or their places, and is no loader.
    """

    loader: ast.expr
    values: frozenset[Value]
    slices: Slices | None = None

    @property
    def loop_around(self) -> ast.AST | None:
        """The loop or comprehension nearest around it."""
        around = self.module.ancestors(self.loader)
        return next((item for item in around if isinstance(item, (*blocks.LOOPS, *COMPREHENSIONS))), None)

    @property
    def is_of_one_phase(self) -> bool:
        """Whether a loop around has one phase alone, whose loader it is: ``for phase in ["train"]:``."""
        key = blocks.path_of(self.loader.slice) if isinstance(self.loader, ast.Subscript) else None
        return key is not None and any(
            isinstance(loop, ast.For)
            and blocks.path_of(loop.target) == key
            and isinstance(loop.iter, (ast.List, ast.Tuple))
            and len(loop.iter.elts) == 1
            and isinstance(loop.iter.elts[0], ast.Constant)
            for loop in blocks.enclosing(self.module, self.loader)
        )


def is_loader(value: Value) -> bool:
    """Whether iterating the value gives batches."""
    if is_loader_value(value):
        return True
    if value.kind != "object" or value.is_result:
        return False
    last = value.ref.rpartition(".")[2]
    return bool(last.endswith(_LIBRARY_ITERATORS) and last[:1].isupper())


class Loaders:
    """Finds the expressions that hold the loaders, as far out as batches are only handed on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # The same variables and containers lie behind many loops.
        self._with_batch: dict[tuple[Value, int], bool] = {}
        self._giving: dict[tuple[ast.expr, Scope], bool] = {}
        self._taking: dict[FunctionFacts, set[str]] = {}
        self._empty: Nearest = {}
        self._iterated: dict[tuple[ast.expr, ast.AST], list[LoaderUse]] = {}

    # ---- questions -----------------------------------------------------------------------------------------

    def iterated(self, node: ast.expr, site: Site) -> list[LoaderUse]:
        """The loaders behind ``for batch in node``."""
        known = self._iterated.get((node, site.body))
        if known is None:
            known = list(self.direct(node, site))
            ways = AllWays(self._empty)
            if not known and self._behind(node, site, ways):
                known = self._behind(node, site, Way())
            elif not known:
                ways.found_nothing()
            self._iterated[node, site.body] = known
        return list(known)

    def taken(self, node: ast.AST, site: Site, way: Way | None = None) -> Iterator[LoaderUse]:
        """The loaders that a call takes a batch from: ``next(batches)``, ``batches.next()``."""
        way = way or Way()
        if not isinstance(node, ast.Call) or way.has(node, _TAKING) or way.depth > _MAX_DEPTH:
            return
        if "builtins.next" in self.program.callee_names(node, site.scope) and node.args:
            yield from self._sources(node.args[0], site, way)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("next", "__next__") and not node.args:
            inside = list(self._in_object(node.func.value, site, self._inside(node, way), way))
            yield from inside or self._sources(node.func.value, site, way)

    def fetched(self, node: ast.AST, site: Site) -> Iterator[LoaderUse]:
        """The loaders behind a call of a function of the project that gives back a batch: ``self.get_batch()``."""
        if isinstance(node, ast.Call) and self.program.flow.callees(node):
            given = list(self._given_and_taken(node, site))
            if given:
                yield from _distinct(given)
            elif self._has_batch(self.program.flow.values(node, site.scope)):
                ways = AllWays(self._empty)
                if not list(self._inside(node, ways)):
                    ways.found_nothing()
                    return
                inside = self._inside(node, Way())
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                yield from inside if owner is None else self._in_object(owner, site, inside, Way())

    def _given_and_taken(self, call: ast.Call, site: Site) -> Iterator[LoaderUse]:
        """Loaders that a function is given here, of which it takes a batch and gives what it makes of that."""
        for info in sorted(self.program.flow.callees(call), key=lambda item: item.place):
            for name in sorted(self._taken_and_returned(info)):
                given = info.argument(call, name)
                if given is not None:
                    yield from self._sources(given, site, Way())

    def _taken_and_returned(self, info: FunctionFacts) -> set[str]:
        """The parameters from which a function takes a batch that goes into what it gives."""
        known = self._taking.get(info)
        if known is None:
            known = self._taking[info] = set() if info.yields else self._find_taken(info)
        return known

    def _find_taken(self, info: FunctionFacts) -> set[str]:
        scope = self.program.flow.scopes[info.node]
        assigned = [item for item in self.program.nodes_of(info.node) if isinstance(item, ast.Assign)]
        found = set()
        for name in info.parameters:
            values = [*(item.value for item in assigned), *info.returns]
            taking = {value for value in values if self._takes(value, name, scope)}
            made = _made(assigned, taking) if taking else set()
            if any(item in taking or blocks.reads(item) & made for item in info.returns):
                found.add(name)
        return found

    def _takes(self, node: ast.expr, name: str, scope: Scope) -> bool:
        """Whether ``next`` of a variable is in an expression."""
        for call in walk(node):
            if not isinstance(call, ast.Call):
                continue
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in ("next", "__next__")
            taken = call.func.value if is_method else next(iter(call.args), None)  # type: ignore[attr-defined]
            if isinstance(taken, ast.Name) and taken.id == name:
                if is_method or "builtins.next" in self.program.callee_names(call, scope):
                    return True
        return False

    def direct(self, node: ast.expr, site: Site) -> Iterator[LoaderUse]:
        """The innermost expressions of ``node`` that hold a loader.

        What asks for the length of one takes no batches from it: ``[0.0 for _ in range(len(loader))]``. What
        ``range`` is given is a number, whatever else an attribute set by a name may hold.
        """
        if isinstance(node, ast.Call) and self.program.callee_names(node, site.scope) & _OF_NUMBERS:
            return
        values = self.program.flow.values(node, site.scope)
        held = {value for value in values if is_loader(value)}
        opened = blocks.opened_around(site.module, node, node.id) if held and isinstance(node, ast.Name) else None
        if opened is not None and not self._is_written(node, site):
            # Another ``with`` may open something else under the name: ``with tqdm(lines) as bar``.
            held &= {value for use in self.direct(opened, site) for value in use.values}
        bar = self.bar(node, site) if held else None
        if bar is not None:
            held = {value for use in self.direct(bar, site) for value in use.values} & held or held
        if isinstance(node, ast.Call):
            inner = [*node.args, *(item.value for item in node.keywords)]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "__iter__":
                inner.append(node.func.value)
            if not any(value.site is node for value in held):
                found = [
                    use
                    for argument in inner
                    for use in self.direct(argument.value if isinstance(argument, ast.Starred) else argument, site)
                ]
                if found and not self._is_made_of_dataset(held, found):
                    yield from found
                    return
        if held:
            yield LoaderUse(site.module, site.scope, site.body, node, node, frozenset(held))

    def _is_written(self, name: ast.expr, site: Site) -> bool:
        """Whether a statement gives a variable a value by itself, and no ``with`` does."""
        assert isinstance(name, ast.Name)
        return any(name.id in blocks.writes_itself(node) for node in self.program.nodes_of(site.body))

    def _is_made_of_dataset(self, held: set[Value], given: list[LoaderUse]) -> bool:
        """Whether a function makes a loader of torch's anew: of what it is given, which then is a dataset.

        ``make_loader(get_data(name, as_dataset=True))``, where ``get_data`` may give a loader, too.
        """
        if not held or any(not held.isdisjoint(use.values) for use in given):
            return False
        return all(isinstance(value.site, ast.Call) and self._makes_loader(value.site) for value in held)

    def _makes_loader(self, call: ast.Call) -> bool:
        located = self.program.locate(call)
        return located is not None and bool(self.program.callee_names(call, located[1]) & LOADERS_OF_TORCH)

    def bar(self, node: ast.expr, site: Site) -> ast.Call | None:
        """The progress bar that a variable holds where a loop iterates it: ``bar`` after ``bar = tqdm(loader)``.

        Another loop may give the same variable a bar over another loader, so only the last assignment counts.
        """
        if not isinstance(node, ast.Name):
            return None
        for suite, index in blocks.suites_around(site.module, blocks.statement_of(site.module, node)):
            for item in reversed(suite[:index]):
                if node.id not in blocks.writes(item):
                    continue
                pairs = [
                    pair
                    for target in (item.targets if isinstance(item, ast.Assign) else ())
                    for pair in blocks.unpacked(target, item.value)  # type: ignore[attr-defined]
                ]
                given = [value for target, value in pairs if blocks.path_of(target) == node.id]
                value = given[0] if given else None
                is_bar = isinstance(value, ast.Call) and self.program.callee_names(value, site.scope) & PROGRESS_BARS
                return value if is_bar and isinstance(value, ast.Call) else None
        return None

    def hands_on(self, node: ast.expr, site: Site) -> bool:
        """Whether a generator of the project only passes on what it is given here: its callers say what for.

        So does one that is an object's own iteration: whoever iterates the object does.
        """
        info = self.program.function_of(site.body)
        if info is None or not info.yields:
            return False
        if info.cls is not None and info.name == "__iter__":
            return True
        return not blocks.reads(node).isdisjoint(info.parameters)

    def iterates_itself(self, use: LoaderUse) -> bool:
        """Whether a loader's own ``__iter__`` iterates it: whoever iterates the loader stands elsewhere."""
        info = self.program.function_of(use.body)
        if info is None or info.name != "__iter__" or not isinstance(use.loader, ast.Name):
            return False
        return use.loader.id == info.receiver

    # ---- behind variables ----------------------------------------------------------------------------------

    def _sources(self, node: ast.expr, site: Site, way: Way) -> Iterator[LoaderUse]:
        """The loaders behind an iterator: ``batches`` of ``batches = iter(loader)``."""
        if isinstance(node, ast.Call):
            yield from self._from(node, site, way)
            return
        path = blocks.path_of(node)
        made: list[tuple[ast.expr, Site]] = []
        if path is not None and any(is_loader_value(value) for value in self.program.flow.values(node, site.scope)):
            for value, where in self._assigned.get(path.rpartition(".")[2], ()):
                if where.module is site.module and isinstance(value, ast.Call):
                    pairs = blocks.pairs_of(where.statement)
                    if path in {blocks.path_of(target) for target, given in pairs if given is value}:
                        if "builtins.iter" in self.program.callee_names(value, where.scope):
                            made.append((value, where))
        # A variable of the same name in another function is another one, unless it was given from there.
        own = [(value, where) for value, where in made if self._is_same(node, site, where, value)]
        here = _given_at(node, site)
        own = [(value, where) for value, where in own if value in here] or own
        for value, where in own or made:
            yield from self.direct(value, where)
        if not made:
            yield from self._from(node, site, way)

    def _from(self, node: ast.expr, site: Site, way: Way) -> list[LoaderUse]:
        """The loaders behind what a search has come to: it goes on, for a new one could come back here without end."""
        return self._at(node, site, way) if way.depth else self.iterated(node, site)

    def _is_same(self, node: ast.expr, site: Site, where: Site, value: ast.expr) -> bool:
        """Whether the assignment of a value is one of the variable itself."""
        key = self.program.flow.key(node, site.scope)
        statement = where.statement
        targets = [target for target, given in blocks.pairs_of(statement) if given is value]
        if isinstance(statement, ast.With):
            targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
        return key is not None and any(
            self.program.flow.key(blocks.reading(target), where.scope) == key for target in targets
        )

    def _behind(self, node: ast.expr, site: Site, way: Way) -> list[LoaderUse]:
        """Loaders behind what is no loader itself but gives batches."""
        values = self.program.flow.values(node, site.scope)
        if way.has(node, site.body) or way.depth > _MAX_DEPTH or self._iterated.get((node, site.body)) == []:
            return []
        gives = self._giving.get((node, site.scope))
        if gives is None:
            gives = self._giving[node, site.scope] = _hands_through(values) or self._gives_batches(values)
        if not gives:
            return []
        way = way.to(node, site.body)
        if isinstance(node, ast.Call):
            inner = [*node.args, *(item.value for item in node.keywords)]
            found = [use for argument in inner for use in self._at(argument, site, way)]
            found = found or list(self._inside(node, way))
        elif isinstance(node, ast.IfExp):
            found = [use for side in (node.body, node.orelse) for use in self._at(side, site, way)]
        elif isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            found = [use for item in node.generators for use in self._at(item.iter, site, way)]
        else:
            found = [use for value, where in self._origins(node, site) for use in self._at(value, where, way)]
        return _distinct(found or [use for value in values for use in self._in_wrapper(value, way)])

    def _at(self, node: ast.expr, site: Site, way: Way) -> list[LoaderUse]:
        return list(self.direct(node, site)) or self._behind(node, site, way)

    def _origins(self, node: ast.expr, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """The expressions that a variable is assigned, or given as a parameter."""
        if isinstance(node, ast.Subscript):
            yield from self._entries(node, site)
        key = self.program.flow.key(node, site.scope)
        path = blocks.path_of(node)
        if key is None or path is None:
            return
        here = _given_at(node, site)
        for value, where in self._assigned.get(path.rpartition(".")[2], ()):
            if self._is_same(node, site, where, value) and (not here or value in here):
                yield value, where
        yield from self._taken_apart.get(key, ())
        info = self.program.function_of(key[0]) if isinstance(key[0], ast.AST) else None
        if info is not None:
            yield from self._given(info, key[1])

    def _entries(self, node: ast.Subscript, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """What a dictionary has under a key that a function of the project gives: ``parts["train"]``."""
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if key is None:
            return
        for value, _ in self._origins(node.value, site):
            for returned, inside in self._returned(value):
                given = self._made_once(returned, inside)
                if not isinstance(given, ast.Dict):
                    continue
                for name, entry in zip(given.keys, given.values, strict=True):
                    if isinstance(name, ast.Constant) and name.value == key:
                        yield entry, inside

    def _made_once(self, node: ast.expr, site: Site) -> ast.expr:
        given = blocks.given_once(self.program.nodes_of(site.body), node.id) if isinstance(node, ast.Name) else None
        return given or node

    def _returned(self, call: ast.expr) -> Iterator[tuple[ast.expr, Site]]:
        """What the functions give that a call runs."""
        if not isinstance(call, ast.Call):
            return
        for info in sorted(self.program.flow.callees(call), key=lambda item: item.place):
            for value in info.returns:
                yield value, Site(info.module.module, self.program.flow.scopes[info.node], info.node, value)

    def _given(self, info: FunctionFacts, name: str) -> Iterator[tuple[ast.expr, Site]]:
        """What callers give for a parameter."""
        for caller in self.program.flow.callers(info):
            value = info.argument(caller.call, name)
            if value is not None:
                yield value, calling(caller)

    @cached_property
    def _assigned(self) -> dict[str, list[tuple[ast.expr, Site]]]:
        """Assigned values by the last part of the target."""
        found: defaultdict[str, list[tuple[ast.expr, Site]]] = defaultdict(list)
        for node, body, scope in self.program.nodes():
            if isinstance(node, ast.Assign):
                for target, value in blocks.pairs_of(node):
                    path = blocks.path_of(target)
                    if path is not None:
                        found[path.rpartition(".")[2]].append((value, Site(scope.module, scope, body, node)))
            # ``with tqdm(enumerate(loader)) as bar``: what such a manager gives is what it was given.
            for item in node.items if isinstance(node, ast.With) else ():
                path = blocks.path_of(item.optional_vars) if item.optional_vars is not None else None
                if path is not None:
                    found[path.rpartition(".")[2]].append((item.context_expr, Site(scope.module, scope, body, node)))
        return found

    @cached_property
    def _taken_apart(self) -> dict[CellKey, list[tuple[ast.expr, Site]]]:
        """What variables get out of a tuple that a function gives: ``train, count = load()``."""
        found: defaultdict[CellKey, list[tuple[ast.expr, Site]]] = defaultdict(list)
        for node, _, scope in self.program.nodes():
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            target = node.targets[0]
            if not isinstance(target, ast.Tuple):
                continue
            for value, inside in self._returned(node.value):
                if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                    for item, given in zip(target.elts, value.elts, strict=True):
                        key = self.program.flow.key(blocks.reading(item), scope)
                        if key is not None:
                            found[key].append((given, inside))
        return found

    # ---- inside functions and wrappers ---------------------------------------------------------------------

    def _inside(self, call: ast.Call, way: Way) -> Iterator[LoaderUse]:
        """Loaders that the functions which a call runs take batches from."""
        for info in sorted(self.program.flow.callees(call), key=lambda item: item.place):
            if not way.has(info.node, _RUNNING):
                yield from self._in_function(info, way.to(info.node, _RUNNING))

    def _in_function(self, info: FunctionFacts, way: Way) -> Iterator[LoaderUse]:
        scope = self.program.flow.scopes[info.node]
        for node in self.program.nodes_of(info.node):
            site = Site(info.module.module, scope, info.node, node)
            if isinstance(node, (ast.For, ast.AsyncFor)) and info.yields:
                yield from self._at(node.iter, site, way)
            elif isinstance(node, ast.YieldFrom) or (isinstance(node, ast.Return) and node.value is not None):
                assert node.value is not None
                yield from self._at(node.value, site, way)
            else:
                yield from self.taken(node, site, way)
                yield from self._fetched_ahead(node, way)

    def _fetched_ahead(self, node: ast.AST, way: Way) -> Iterator[LoaderUse]:
        """Loaders of which a method keeps the next batch: ``self.preload()`` before ``return batch``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return
        for info in sorted(self.program.flow.callees(node), key=lambda item: item.place):
            if info.cls is None or way.has(info.node, _FETCHING) or way.depth > _MAX_DEPTH:
                continue
            scope = self.program.flow.scopes[info.node]
            further = way.to(info.node, _FETCHING)
            assigned = [item for item in self.program.nodes_of(info.node) if isinstance(item, ast.Assign)]
            for item in assigned:
                site = Site(info.module.module, scope, info.node, item.value)
                uses = list(self.taken(item.value, site, further))
                if uses and self._keeps(item, assigned):
                    yield from uses

    def _keeps(self, statement: ast.Assign, assigned: list[ast.Assign]) -> bool:
        """Whether a method keeps what it assigns here, or a part of it: ``self.x, self.y = batch``.

        What the model makes of a batch is no part of it.
        """
        held: set[str] = set()
        added = set(blocks.writes(statement))
        while not added <= held:
            held |= added
            parts = [item for item in assigned if held & blocks.reads(item.value)]
            added = {path for item in parts if not self.program.runs_model(item.value) for path in blocks.writes(item)}
        return any("." in path for path in held)

    def _in_wrapper(self, value: Value, way: Way) -> Iterator[LoaderUse]:
        """Loaders that an object of the project iterates when it is iterated itself."""
        for name in ("__iter__", "__next__") if value.kind == "instance" else ():
            method = value.ref.find_method(name)
            if method is not None and not way.has(method.node, _RUNNING):
                inside = list(self._in_function(method, way.to(method.node, _RUNNING)))
                yield from list(self._given_to(value, inside, way)) or inside

    def _in_object(self, owner: ast.expr, site: Site, inside: Iterable[LoaderUse], way: Way) -> Iterator[LoaderUse]:
        """Loaders that a method takes batches from: those of the very objects, where each says which it was given."""
        uses = list(inside)
        if not uses:
            return
        objects = {
            value for item in _given_at(owner, site) or [owner] for value in self.program.flow.values(item, site.scope)
        }
        given = [list(self._given_to(value, uses, way)) for value in objects]
        yield from _distinct(use for found in given for use in found) if given and all(given) else uses

    def _given_to(self, value: Value, inside: list[LoaderUse], way: Way) -> Iterator[LoaderUse]:
        """Those of the loaders within that an object's constructor was given: other objects hold others."""
        call = value.site
        if not inside:
            return
        located = self.program.locate(call) if value.kind == "instance" and isinstance(call, ast.Call) else None
        if located is None or not isinstance(call, ast.Call) or way.has(call, _MAKING):
            return
        body, scope = located
        held = {one for use in inside for one in use.values}
        site = Site(scope.module, scope, body, call)
        further = way.to(call, _MAKING)
        for argument in [*call.args, *(item.value for item in call.keywords)]:
            for use in self._at(argument, site, further):
                if use.values and use.values <= held:
                    yield use

    # ---- values --------------------------------------------------------------------------------------------

    def _gives_batches(self, values: Iterable[Value]) -> bool:
        values = set(values)
        for value in values:
            # ``next(batches)`` asks for no more than the second.
            if value.kind == "instance" and any(map(value.ref.find_method, ("__iter__", "__next__"))):
                return True
        return self._has_batch(self.program.flow.elements(values))

    def _has_batch(self, values: Iterable[Value], depth: int = 0) -> bool:
        """Whether some value is a batch, or a tuple with a part of one."""
        return depth < _MAX_TUPLES and any(
            value.kind == "batch" or (value.kind == "sequence" and self._holds_batch(value, depth + 1))
            for value in values
        )

    def _holds_batch(self, value: Value, depth: int) -> bool:
        known = self._with_batch.get((value, depth))
        if known is None:
            known = self._has_batch(self.program.flow.elements({value}), depth)
            self._with_batch[value, depth] = known
        return known


def _given_at(node: ast.expr, site: Site) -> list[ast.expr]:
    """What a variable holds at a place, where one name stands for the batches of training and of evaluation in turn."""
    return blocks.given_at(site.module, node) if isinstance(node, ast.Name) and node in site.module.parents else []


def _hands_through(values: Iterable[Value]) -> bool:
    """Whether some value may hand on batches in another form: rows of a counter, a generator that moves or names them.

    What it gives need not be known as a batch any more.
    """
    return any(
        value.kind == "sequence"
        and (
            value.ref in (Form.ROWS, Form.MAPPED)
            or isinstance(value.site, (ast.FunctionDef, ast.GeneratorExp, ast.ListComp))
        )
        for value in values
    )


def _made(assigned: list[ast.Assign], taking: set[ast.expr]) -> set[str]:
    """The variables that assignments make of some expressions, one of another."""
    made: set[str] = set()
    while True:
        holding = [item for item in assigned if item.value in taking or blocks.reads(item.value) & made]
        parts = (part for item in holding for target in item.targets for part in walk(target))
        more = {part.id for part in parts if isinstance(part, ast.Name)}
        if more <= made:
            return made
        made |= more


def _distinct(uses: Iterable[LoaderUse]) -> list[LoaderUse]:
    return list({use.node: use for use in uses}.values())
