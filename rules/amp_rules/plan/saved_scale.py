"""Checkpoints that hold an optimizer's state, and where it is taken out again: there the loss scale belongs, too.

Nothing is found unless both sides are understood: the dictionary is made in the program and given to ``torch.save``,
what ``torch.load`` gives is asked for the same key, and everything that may hold either is asked for single keys. Who
goes over all keys, or hands the dictionary to what is not known, may not expect one more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_rules.flow.values import Value
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import spelling, walk
from amp_rules.torch.checkpoints import KEY_METHODS, LOADS, SAVES, SCALER_KEYS

_STATE, _LOAD = "state_dict", "load_state_dict"
_HARMLESS = frozenset({"builtins.isinstance", "builtins.type", "builtins.id", "builtins.bool"})


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
    taken = _keys(program, values)
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
    return [*found.values()]


class _Checkpoints:
    """What a program saves and loads of its optimizers."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._optimizers = {
            value for step in program.steps for value in program.flow.values(step.optimizer, step.scope)
        }

    def loaded(self) -> list[Loaded]:
        """``optimizer.load_state_dict(checkpoint["optimizer"])``."""
        found = []
        for call, body, scope in self._program.calls():
            optimizers = self._asked(call, _LOAD, scope)
            if not optimizers or len(call.args) != 1 or not isinstance(scope.module.parents[call], ast.Expr):
                continue
            item = call.args[0]
            while isinstance(item, ast.Subscript) and not _is_key(item.slice):
                item = item.value  # of the states of several optimizers
            while isinstance(item, ast.Subscript) and isinstance(item.value, ast.Subscript):
                item = item.value
            if not isinstance(item, ast.Subscript) or not _is_key(item.slice):
                continue
            variable = spelling(item.value)
            values = self._program.flow.values(item.value, scope)
            if variable is None or not values or not all(_is_loaded(value) for value in values):
                continue
            place = self._place(Site(scope.module, scope, body, call), variable)
            if place is not None:
                key, quote = _key(item.slice), _quote(place, item.slice)
                found.append(Loaded(place, frozenset(values), key, optimizers, variable, quote))
        return found

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
        written = self._written()
        found: list[Saved] = []
        for node, body, scope in self._program.nodes() if written else ():
            site = Site(scope.module, scope, body, node)
            if isinstance(node, ast.Assign):
                for target in node.targets if len(node.targets) == 1 else ():
                    if isinstance(target, ast.Subscript) and _is_key(target.slice):
                        variable = spelling(target.value)
                        for value in self._program.flow.values(target.value, scope) & written if variable else ():
                            found += self._entry(site, value, target.slice, node.value, variable or "")
            elif isinstance(node, (ast.Dict, ast.Call)):
                for value in self._program.flow.values(node, scope) & written:
                    if value.site is node:
                        for key, item in _items(node):
                            found += self._entry(site, value, key, item)
        return found

    def _entry(self, site: Site, value: Value, key: ast.expr, item: ast.expr, variable: str = "") -> list[Saved]:
        optimizers: frozenset[Value] = frozenset().union(
            *(self._asked(part, _STATE, site.scope) for part in walk(item) if isinstance(part, ast.Call))
        )
        return [Saved(site, value, _key(key), optimizers, variable, _quote(site, key))] if optimizers else []

    def _written(self) -> set[Value]:
        """The dictionaries that are saved."""
        found: set[Value] = set()
        for site in self._program.calls_to(SAVES):
            assert isinstance(site.node, ast.Call)
            given = site.node.args[:1] or [item.value for item in site.node.keywords if item.arg == "obj"]
            for item in given:
                found |= {value for value in self._program.flow.values(item, site.scope) if value.kind == "sequence"}
        return found

    def _asked(self, call: ast.Call, method: str, scope: Scope) -> frozenset[Value]:
        """The optimizers of which a call asks the method."""
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == method):
            return frozenset()
        return frozenset(self._program.flow.values(call.func.value, scope) & self._optimizers)


def _is_loaded(value: Value) -> bool:
    return value.kind == "object" and value.ref in LOADS and not value.is_result


def _is_key(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _key(node: ast.expr) -> str:
    assert isinstance(node, (ast.Constant, ast.keyword))
    return str(node.value)


def _quote(site: Site, key: ast.expr) -> str:
    """The quotes of a string; double ones for the keyword of ``dict(optimizer=...)``."""
    text = site.module.text(key)
    return text[0] if text[:1] in ("'", '"') else '"'


def _items(node: ast.Dict | ast.Call) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The keys and values of a dictionary, none where not all keys stand there."""
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None and _is_key(key)]
        if len(keys) == len(node.values):
            yield from zip(keys, node.values, strict=True)
    elif not node.args and all(item.arg is not None for item in node.keywords):
        for item in node.keywords:
            yield ast.copy_location(ast.Constant(item.arg), item), item.value


# ---- who reads them ------------------------------------------------------------------------------------------------


def _keys(program: Program, values: set[Value]) -> set[str] | None:
    """The keys that a program has in checkpoints or asks of them; None where it does anything else with one."""
    found: set[str] = set()
    for value in values:
        if isinstance(value.site, (ast.Dict, ast.Call)) and value.kind == "sequence":
            keys = [_key(key) for key, _ in _items(value.site)]
            if len(keys) != len(getattr(value.site, "values", getattr(value.site, "keywords", ()))):
                return None
            found.update(keys)
    for node, _, scope in program.nodes():
        if not isinstance(node, ast.expr) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            continue
        if program.flow.values(node, scope) & values:
            asked = _asked_keys(program, node, scope)
            if asked is None:
                return None
            found |= asked
    return found


def _asked_keys(program: Program, node: ast.expr, scope: Scope) -> set[str] | None:
    """The keys that an expression around a checkpoint asks for; None where it may ask for all."""
    parents = scope.module.parents
    parent = parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return {_key(parent.slice)} if _is_key(parent.slice) else None
    if isinstance(parent, ast.Attribute):
        call = parents[parent]
        is_asked = isinstance(call, ast.Call) and call.func is parent and parent.attr in KEY_METHODS
        return {_key(call.args[0])} if is_asked and call.args and _is_key(call.args[0]) else None  # type: ignore[attr-defined]
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1:
        if isinstance(parent.ops[0], (ast.Is, ast.IsNot)):
            return set()
        is_looked_for = isinstance(parent.ops[0], (ast.In, ast.NotIn)) and _is_key(parent.left)
        return {_key(parent.left)} if is_looked_for and parent.left is not node else None
    return set() if _goes_on(program, node, parent, scope) else None


def _goes_on(program: Program, node: ast.expr, parent: ast.AST, scope: Scope) -> bool:
    """Whether what an expression gives is only kept, tested or handed to what the flow follows."""
    if isinstance(parent, ast.Tuple):  # `return model, checkpoint`
        parent = scope.module.parents[parent]
        return isinstance(parent, (ast.Return, ast.Assign))
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return not any(isinstance(target, (ast.Tuple, ast.List)) for target in targets)
    if isinstance(parent, ast.keyword):
        call = scope.module.parents[parent]
        is_named = parent.arg is not None
        return is_named and isinstance(call, ast.Call) and (_is_followed(program, call) or _saves(program, call, scope))
    if isinstance(parent, ast.Call):
        if parent.func is node:
            return False
        # A model that loads all of it would not take the state of an optimizer, either.
        loads = isinstance(parent.func, ast.Attribute) and parent.func.attr == _LOAD
        return (
            loads
            or _is_followed(program, parent)
            or _saves(program, parent, scope)
            or bool(program.callee_names(parent, scope) & _HARMLESS)
        )
    kept = (ast.Return, ast.Expr, ast.NamedExpr, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.If, ast.While, ast.Assert)
    return isinstance(parent, kept)


def _is_followed(program: Program, call: ast.Call) -> bool:
    return bool(program.flow.callees(call))


def _saves(program: Program, call: ast.Call, scope: Scope) -> bool:
    return bool(program.callee_names(call, scope) & SAVES)
