"""Tests of variables that one process alone has: ``if self.logger is not None:``, made where the rank is 0.

A variable may hold the test of the rank itself: ``Saver(model, to_disk=rank == 0)``, and ``if not self.to_disk:``. That
may be one of several things it asks for, and a function may give it: ``args.saves = wanted and is_main(args)``. It may
be an entry of a dictionary: ``run["first"]``, which ``if rank == 0:`` sets.
A client's run is held by who begins it: ``if wandb.run is not None:``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property

from amp_rules.checks.common.rank_branches import in_several, names_rank
from amp_rules.plan.own_ddp.rank_tests import is_of_first
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source.index import leaves, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none
from amp_rules.torch.writers import RUN_BEGUN

_MAX_DEPTH = 6
"""Names between a test and where its variable is made: an attribute, the parameter of a class, a variable, a global."""


class HeldByOne:
    """Answers for the tests of one program.

    Args:
        program: the program.
        is_alone: whether one of several processes gets to a place, and the others run on.
    """

    def __init__(self, program: Program, is_alone: Callable[[Module, ast.AST], bool]) -> None:
        self._program = program
        self._is_alone = is_alone
        self._known: dict[ast.AST, bool] = {}
        self._open = 0

    @property
    def is_asking(self) -> bool:
        """Whether a variable is being asked about: what is found meanwhile takes it for one that all have."""
        return self._open > 0

    def asks(self, module: Module, test: ast.expr, holds: bool) -> bool:
        """Whether one process alone goes on where a test comes out like this, by what it has."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.asks(module, test.operand, not holds)
        if isinstance(test, ast.BoolOp):
            return isinstance(test.op, ast.And) is holds and any(self.asks(module, it, holds) for it in test.values)
        held = _held(test, holds)
        if held is not None and self._is_run_of_one(held):
            return True
        if held is None or (isinstance(held, ast.Attribute) and not isinstance(held.value, ast.Name)):
            return False
        if held not in self._known:
            self._known[held] = False  # what is bound under a test of itself says nothing
            self._open += 1
            try:
                self._known[held] = self._is_of_one(module, held, held is test)
            finally:
                self._open -= 1
        return self._known[held]

    def _is_run_of_one(self, held: ast.expr) -> bool:
        """Whether a variable is the run of a client that one process alone begins, wherever the program begins one."""
        located = self._program.locate(held) if isinstance(held, ast.Attribute) else None
        names = self._program.names(held, located[1]) if located is not None else set()
        begun = self._program.calls_to(frozenset(RUN_BEGUN[name] for name in names if name in RUN_BEGUN))
        return bool(begun) and all(self._is_alone(site.module, site.node) for site in begun)

    def _is_of_one(self, module: Module, held: ast.expr, is_truth: bool) -> bool:
        located = self._program.locate(held)
        if located is None:
            return False
        body, scope = located
        made = list(self._made(held, Site(module, scope, body, held), _MAX_DEPTH))
        if is_truth:
            made = [place for place in made if place is None or literal(place.node) not in (False, 0)]
        return bool(made) and all(
            place is not None
            and (is_truth if self._is_test_of_first(place) else self._is_alone(place.module, place.node))
            for place in made
        )

    def _made(
        self, node: ast.expr, site: Site, depth: int, seen: frozenset[object] = frozenset()
    ) -> Iterator[Site | None]:
        """Yield the places that give a variable anything but None, and None for what is not known."""
        if isinstance(node, ast.Subscript):
            yield from self._entries(node, site, depth, seen)
            return
        key = self._program.flow.key(node, site.scope)
        if key is not None and key in seen:
            return  # a function that hands its parameter on to itself
        if key is None and isinstance(node, ast.Attribute) and depth and not self._may_be_given(node.attr):
            # Nothing but an assignment gives ``args.should_save`` to settings.
            stores = [store for store in self._stores[node.attr] if isinstance(store.node, ast.Attribute)]
            if not stores:
                yield None
            for store in stores if node.attr not in seen else ():
                yield from self._given(_assigned(store), store, depth, seen | {node.attr})
            return
        if key is None or not depth:
            yield None
            return
        seen |= {key}
        stores = [*self._stores_of(node, key)]
        info = self._program.flow.functions.get(key[0])  # type: ignore[call-overload]
        if isinstance(node, ast.Name) and info is not None and node.id in info.parameters:
            callers = self._program.flow.callers(info)
            if not callers:
                yield None
            for caller in callers:
                given = info.argument_or_default(caller.call, node.id)
                yield from self._given(given, calling(caller), depth, seen)
        elif not stores:
            yield None
        for store in stores:
            yield from self._given(_assigned(store), store, depth, seen)

    def _given(self, value: ast.expr | None, place: Site, depth: int, seen: frozenset[object]) -> Iterator[Site | None]:
        """Yield what a value that is given at a place comes of: the place itself, unless it is a name for another."""
        if is_none(value):
            return
        if value is not None and (literal(value) is False or self._asks_for_first(value)):
            yield Site(place.module, place.scope, place.body, value)
            return
        if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And) and depth:
            yield from self._of_first(value, place, depth, seen) or [place]
            return
        # Where one process alone comes by, it does not matter what it has.
        if isinstance(value, (ast.Name, ast.Subscript)) and not self._is_alone(place.module, place.node):
            yield from self._made(value, place, depth - 1, seen)
        elif isinstance(value, ast.Call) and (given := self._returned(value)) and depth:
            yield from [place] if self._is_alone(place.module, place.node) else given
        else:
            yield place

    def _may_be_given(self, name: str) -> bool:
        """Whether a string of the program may name an attribute: an option, a key, ``setattr(args, name, value)``."""
        return name in self._strings

    @cached_property
    def _strings(self) -> frozenset[str]:
        """The strings of the program, as names: ``--save-all`` is ``save_all``."""
        return frozenset(
            node.value.lstrip("-").replace("-", "_")
            for node, _, _ in self._program.nodes()
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )

    def _of_first(self, value: ast.BoolOp, place: Site, depth: int, seen: frozenset[object]) -> list[Site]:
        """What makes one part of ``wanted and self.first`` hold on the first process alone; empty where none does."""
        for item in value.values:
            is_name = isinstance(item, (ast.Name, ast.Attribute))
            found = [*(self._made if is_name else self._given)(item, place, depth - 1, seen)]
            made = [site for site in found if site is None or literal(site.node) is not False]
            known = [site for site in made if site is not None and self._is_test_of_first(site)]
            if known and len(known) == len(made):
                return known
        return []

    def _is_test_of_first(self, place: Site) -> bool:
        return isinstance(place.node, ast.expr) and self._asks_for_first(place.node)

    def _asks_for_first(self, value: ast.expr) -> bool:
        """Whether a value is true on the first process alone, and compares the rank by its name, here or in a function.

        ``rank == 0``, ``True if rank == 0 else False``, ``is_master(args)``.
        """
        if isinstance(value, ast.IfExp) and literal(value.body) is True and literal(value.orelse) is False:
            return self._asks_for_first(value.test)
        if isinstance(value, ast.Call):
            callees = self._program.flow.callees(value)
            return bool(callees) and all(
                len(info.returns) == 1 and _compares_with_first(info.returns[0]) and _ends_itself(info.node)
                for info in callees
            )
        if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And):
            return any(self._asks_for_first(item) for item in value.values)
        return _compares_with_first(value)

    def _entries(self, node: ast.Subscript, site: Site, depth: int, seen: frozenset[object]) -> Iterator[Site | None]:
        """Yield the places that give an entry of a dictionary anything but None, and None for what is not known."""
        name = literal(node.slice)
        values = self._program.flow.values(node.value, site.scope)
        made = {value.site for value in values}
        if not made or not depth or not isinstance(name, str) or node in seen:
            yield None
            return
        anew = self._set_anew(made, site)
        if anew is not None:
            yield from self._given(_assigned(anew), anew, depth - 1, seen | {node})
            return
        for item in (value.site for value in values):
            located = self._program.locate(item) if isinstance(item, ast.Dict) else None
            if located is None or not isinstance(item, ast.Dict) or None in item.keys:
                yield None
                continue
            body, scope = located
            for key, value in zip(item.keys, item.values, strict=True):
                if literal(key) == name:
                    yield from self._given(value, Site(scope.module, scope, body, value), depth - 1, seen | {node})
        for entry, held, store in self._stored_entries:
            written = literal(entry.slice)
            is_another = isinstance(written, (str, int)) and written != name
            if is_another or (held and held.isdisjoint(made)):
                continue
            if held and written == name:
                yield from self._given(_assigned(store), store, depth - 1, seen | {node})
            elif held or written == name:
                yield None

    def _set_anew(self, made: set[ast.AST | None], site: Site) -> Site | None:
        """The only place that writes into a dictionary, where it sets all entries, as a class or a function begins."""
        stores = [(entry, store) for entry, held, store in self._stored_entries if held & made]
        if len(stores) != 1:
            return None
        entry, store = stores[0]
        info = self._program.function_of(store.body)
        if info is None or not (info.name == "__init__" or (store.body is site.body and store.line < site.line)):
            return None
        begins = getattr(info.node, "body", ())
        return store if any(_sets_all(item, entry, store.statement) for item in begins) else None

    @cached_property
    def _stored_entries(self) -> list[tuple[ast.Subscript, set[ast.AST | None], Site]]:
        """The entries that the program writes, with where the dictionaries are made that they may be of."""
        values = self._program.flow.values
        return [
            (node, {value.site for value in values(node.value, scope)}, Site(scope.module, scope, body, node))
            for node, body, scope in self._program.nodes()
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        ]

    def _returned(self, call: ast.Call) -> list[Site]:
        """Where the functions of a call give anything but None; none where that is not known, or never None.

        ``return metrics`` under ``if rank == 0:`` gives the others None.
        """
        callees = self._program.flow.callees(call)
        found = []
        for info in callees:
            given = [item for item in info.returns if not is_none(item)]
            if len(given) == len(info.returns) and _ends_itself(info.node):
                return []
            scope = self._program.flow.scopes[info.node]
            found += [Site(info.module.module, scope, info.node, item) for item in given]
        return found

    def _stores_of(self, node: ast.expr, key: object) -> Iterator[Site]:
        """Yield the places that write a variable; an attribute of what is not known may be any of that name."""
        for site in self._stores[_name(node)]:
            assert isinstance(site.node, ast.expr)
            written = self._program.flow.key(site.node, site.scope)
            if written == key or (written is None and isinstance(node, ast.Attribute)):
                yield site

    @cached_property
    def _stores(self) -> dict[str, list[Site]]:
        found: defaultdict[str, list[Site]] = defaultdict(list)
        for node, body, scope in self._program.nodes():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                found[_name(node)].append(Site(scope.module, scope, body, node))
        return found


def _sets_all(loop: ast.stmt, entry: ast.Subscript, statement: ast.stmt) -> bool:
    """Whether a loop goes through a dictionary: ``for name, on in flags.items(): flags[name] = on and self.first``."""
    if not isinstance(loop, ast.For) or statement not in loop.body:
        return False
    asked = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    key = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    return (
        isinstance(asked, ast.Attribute)
        and asked.attr == "items"
        and ast.unparse(asked.value) == ast.unparse(entry.value)
        and isinstance(key, ast.Name)
        and isinstance(entry.slice, ast.Name)
        and key.id == entry.slice.id
    )


def _ends_itself(function: ast.AST) -> bool:
    """Whether the last statement of a function returns or raises; else its end gives None."""
    body = getattr(function, "body", [])
    return not isinstance(body, list) or leaves(body)


def _compares_with_first(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Compare)
        and names_rank(value.left)
        and in_several(value) is None
        and is_of_first(value, True)
    )


def _held(test: ast.expr, holds: bool) -> ast.expr | None:
    """The variable that is not None where a test comes out like this."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and literal(test.comparators[0]) is None:
        is_held = isinstance(test.ops[0], (ast.IsNot, ast.NotEq)) is holds
        return test.left if is_held and _is_held_in(test.left) else None
    return test if holds and _is_held_in(test) else None


def _is_held_in(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) or (
        isinstance(node, ast.Subscript) and isinstance(literal(node.slice), str)
    )


def _assigned(store: Site) -> ast.expr | None:
    """What alone a place writes; None where it is one of several names, or no assignment."""
    statement = store.module.parents[store.node]
    return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
