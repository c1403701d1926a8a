"""Checkpoints that hold an optimizer's state, and where it is taken out again: there the loss scale belongs, too.

Nothing is found unless both sides are understood: the dictionary is made in the program and given to ``torch.save``,
what ``torch.load`` gives is asked for the same key, and everything that may hold either is asked for single keys. Who
goes over all keys, or hands the dictionary to what is not known, may not expect one more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_rules.flow.values import Value
from amp_rules.plan.checkpoint_keys import is_key, items_of, key_of, keys_of, stepped_optimizers, written_values
from amp_rules.plan.definitions import Definition, Definitions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import spelling, walk
from amp_rules.torch.checkpoints import LOADS, SCALER_KEYS

_MAX_FUNCTIONS = 3
"""Functions that hand a state on to each other: ``resume``, ``load_checkpoint``, ``read``."""

_STATE, _LOAD = "state_dict", "load_state_dict"


@dataclass(frozen=True)
class Saved:
    """A dictionary that is saved with the state of an optimizer.

    Attributes:
        site: what makes it, or the statement that puts the optimizer's state into it.
        value: what the flow knows of it.
        key: what the optimizer's state is stored under.
        optimizers: whose state that may be.
        variable: the source of the dictionary, where it is filled by keys.
        quote: what strings are written in there.
    """

    site: Site
    value: Value
    key: str
    optimizers: frozenset[Value]
    variable: str = ""
    quote: str = '"'


@dataclass(frozen=True)
class Loaded:
    """A statement that gives an optimizer its state back.

    Attributes:
        site: the statement, or the loop around it that does it for several optimizers.
        values: what the dictionary may be.
        key: what the state is stored under.
        optimizers: which that may be.
        variable: the source of the dictionary.
        quote: what strings are written in there.
    """

    site: Site
    values: frozenset[Value]
    key: str
    optimizers: frozenset[Value]
    variable: str
    quote: str


@dataclass
class SavedScale:
    """Where the state of the scale goes into checkpoints and comes out of them, and under which key."""

    key: str
    saved: list[Saved] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)


def saved_scale(program: Program) -> SavedScale | None:
    """The places for the state of the scale; None where not both sides are understood."""
    checkpoints = _Checkpoints(program)
    loaded = checkpoints.loaded()
    saved = checkpoints.saved() if loaded else []
    saved = [one for one in saved if any(_fits(one, other) for other in loaded)]
    loaded = [one for one in loaded if any(_fits(other, one) for other in saved)]
    if not loaded:
        return None
    values = {one.value for one in saved}.union(*(one.values for one in loaded))
    taken = keys_of(program, values)
    key = next((name for name in SCALER_KEYS if taken is not None and name not in taken), None)
    if key is None:
        return None
    return SavedScale(key, _first_of_each(saved), _last_of_each(loaded))


def _fits(saved: Saved, loaded: Loaded) -> bool:
    return saved.key == loaded.key and bool(saved.optimizers & loaded.optimizers)


def _first_of_each(saved: list[Saved]) -> list[Saved]:
    """One place for each dictionary: where it is made, if that is known, else where it is filled first."""
    found: dict[Value, Saved] = {}
    for one in sorted(saved, key=lambda item: bool(item.variable)):
        found.setdefault(one.value, one)
    return [*{one.site.node: one for one in found.values()}.values()]


def _last_of_each(loaded: list[Loaded]) -> list[Loaded]:
    """One place for each dictionary of a suite: after the last optimizer."""
    found: dict[object, Loaded] = {}
    for one in loaded:
        suite = blocks.place(one.site.module, one.site.statement)
        found[suite.suite[0], one.variable] = one
    chosen = [*found.values()]
    return [one for one in chosen if not any(_is_restored_above(one, other) for other in chosen)]


def _is_restored_above(one: Loaded, other: Loaded) -> bool:
    """Whether a place stands under a condition below another that restores the scale from the same dictionary."""
    if one is other or one.variable != other.variable or one.values != other.values:
        return False
    where = blocks.place(other.site.module, other.site.statement)
    below = where.suite[where.index + 1 :]
    return any(item in below for item in blocks.enclosing(one.site.module, one.site.statement))


class _Checkpoints:
    """What a program saves and loads of its optimizers."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._optimizers = stepped_optimizers(program)
        self._definitions = Definitions(program)

    def loaded(self) -> list[Loaded]:
        """``optimizer.load_state_dict(checkpoint["optimizer"])``."""
        found = []
        for call, body, scope in self._program.calls():
            optimizers = self._asked(call, _LOAD, scope)
            item = argument_at(call, "state_dict", 0)
            is_alone = len(call.args) + len(call.keywords) == 1 and isinstance(scope.module.parents[call], ast.Expr)
            if not optimizers or item is None or not is_alone:
                continue
            while isinstance(item, ast.Subscript) and not is_key(item.slice):
                item = item.value  # of the states of several optimizers
            while isinstance(item, ast.Subscript) and isinstance(item.value, ast.Subscript):
                item = item.value
            for taken, site in self._taken(item, Site(scope.module, scope, body, call)):
                one = self._of(taken, site, optimizers)
                if one is not None:
                    found.append(one)
        return found

    def _taken(self, item: ast.expr, site: Site, depth: int = 0) -> Iterator[tuple[ast.Subscript, Site]]:
        """Yield where a state is taken out of a dictionary, by a function that gives it back among others too."""
        if isinstance(item, ast.Subscript) and is_key(item.slice):
            yield item, site
        if not isinstance(item, ast.Name) or depth > _MAX_FUNCTIONS:
            return
        for given in self._definitions.of(item, site.scope):
            body = blocks.body_of(given.scope.module, given.statement)
            here = Site(given.scope.module, given.scope, body, given.statement)
            if isinstance(given.value, ast.Subscript) and given.whole:
                yield from self._taken(given.value, here, depth)
            index = _index_in(given, item.id)
            for info in self._program.flow.callees(given.value) if isinstance(given.value, ast.Call) else ():
                for value in info.returns:
                    part = value.elts[index] if isinstance(value, ast.Tuple) and 0 <= index < len(value.elts) else value
                    if (part is value) == given.whole:
                        scope = self._program.flow.scopes[info.node]
                        yield from self._taken(part, Site(scope.module, scope, info.node, part), depth + 1)

    def _of(self, item: ast.Subscript, site: Site, optimizers: frozenset[Value]) -> Loaded | None:
        """What an optimizer is given of a dictionary; None where that is not one out of a file."""
        variable = spelling(item.value)
        values = self._held(site, item.value, variable)
        if variable is None or not values or not all(_is_loaded(value) for value in values):
            return None
        place = self._place(site, variable)
        if place is None:
            return None
        return Loaded(place, frozenset(values), key_of(item.slice), optimizers, variable, _quote(place, item.slice))

    def _held(self, site: Site, node: ast.expr, variable: str | None) -> set[Value]:
        """What a variable holds at a place: what the suite gave it above, or else what it may hold anywhere.

        A flat script mostly has one name for what it loads and for what it saves.
        """
        where = blocks.place(site.module, site.statement)
        for previous in reversed(where.suite[: where.index] if variable else ()):
            if variable in blocks.writes(previous):
                if isinstance(previous, ast.Assign) and len(previous.targets) == 1:
                    if spelling(previous.targets[0]) == variable:
                        return self._program.flow.values(previous.value, site.scope)
                break
        given = self._given_above(site, variable) if isinstance(node, ast.Name) and variable else []
        if given:
            return set().union(*(self._program.flow.values(value, site.scope) for value in given))
        return self._program.flow.values(node, site.scope)

    @staticmethod
    def _given_above(site: Site, variable: str) -> list[ast.expr]:
        """What a variable of a function may be given by when a place is reached; empty where that is not known."""
        writes = [
            item for item in blocks.walk_body(site.body) if isinstance(item, ast.stmt) and _writes(item, variable)
        ]
        loops = [item for item in blocks.enclosing(site.module, site.statement) if isinstance(item, blocks.LOOPS)]
        reaching = [item for item in writes if item.lineno < site.line or any(item in walk(loop) for loop in loops)]
        plain = [item for item in reaching if isinstance(item, ast.Assign) and len(item.targets) == 1]
        is_known = len(plain) == len(reaching) and all(spelling(item.targets[0]) == variable for item in plain)
        return [item.value for item in plain] if is_known else []

    def _place(self, site: Site, variable: str) -> Site | None:
        """The statement, or the outermost loop that does it for several optimizers; None where that loop trains."""
        found: ast.stmt = site.statement
        for parent in blocks.enclosing(site.module, site.statement):
            if not isinstance(parent, blocks.LOOPS):
                continue
            if blocks.touches(blocks.writes(parent), {variable}):
                break
            if self._program.runs_backward(parent):
                return None
            found = parent
        return Site(site.module, site.scope, site.body, found)

    def saved(self) -> list[Saved]:
        """``{"optimizer": optimizer.state_dict()}``, and what is filled so, where it is saved."""
        written = {value for value in written_values(self._program) if value.kind == "sequence"}
        found: list[Saved] = []
        for node, body, scope in self._program.nodes() if written else ():
            site = Site(scope.module, scope, body, node)
            if isinstance(node, ast.Assign):
                for target in node.targets if len(node.targets) == 1 else ():
                    if isinstance(target, ast.Subscript) and is_key(target.slice):
                        variable = spelling(target.value)
                        for value in self._program.flow.values(target.value, scope) & written if variable else ():
                            found += self._entry(site, value, target.slice, node.value, variable or "")
            elif isinstance(node, (ast.Dict, ast.Call)):
                for value in self._program.flow.values(node, scope) & written:
                    if value.site is node:
                        for key, item in items_of(node):
                            found += self._entry(site, value, key, item)
        return found

    def _entry(self, site: Site, value: Value, key: ast.expr, item: ast.expr, variable: str = "") -> list[Saved]:
        optimizers: frozenset[Value] = frozenset().union(
            *(self._asked(part, _STATE, site.scope) for part in walk(item) if isinstance(part, ast.Call))
        )
        return [Saved(site, value, key_of(key), optimizers, variable, _quote(site, key))] if optimizers else []

    def _asked(self, call: ast.Call, method: str, scope: Scope) -> frozenset[Value]:
        """The optimizers of which a call asks the method."""
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == method):
            return frozenset()
        return frozenset(self._program.flow.values(call.func.value, scope) & self._optimizers)


def _index_in(given: Definition, name: str) -> int:
    """Which of several values a variable gets; -1 where it gets all of one."""
    targets = given.statement.targets if isinstance(given.statement, ast.Assign) else []
    names = [item for target in targets if isinstance(target, ast.Tuple) for item in target.elts]
    return next((index for index, item in enumerate(names) if spelling(item) == name), -1)


def _writes(statement: ast.stmt, variable: str) -> bool:
    """Whether a statement, and nothing within it, writes a variable."""
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return any(
            item.optional_vars is not None and spelling(item.optional_vars) == variable for item in statement.items
        )
    return variable in blocks.writes_itself(statement)


def _is_loaded(value: Value) -> bool:
    return value.kind == "object" and value.ref in LOADS and not value.is_result


def _quote(site: Site, key: ast.expr) -> str:
    """The quotes of a string; double ones for the keyword of ``dict(optimizer=...)``."""
    text = site.module.text(key)
    return text[0] if text[:1] in ("'", '"') else '"'
