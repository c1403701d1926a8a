"""What a loop runs on every process, by what its calls give: ``if noise is None:`` is no way where noise is given."""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterable, Iterator, Mapping

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import Loop
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_none, last_name
from amp_rules.torch.functions import TENSOR_GIVING

_MAX_STATES = 3000
"""Functions, each with what it is given, beyond which no more is told apart."""

_MAX_HELPERS = 3
"""Helpers that ask one another: ``exists(value)`` within ``is_given(value)``."""

_UNKNOWN = object()
_SOMETHING = object()
"""What is not None, and else not known."""

_OF_BATCH = object()
"""A batch, or a part of one: loaders put no None together."""

_MADE = (ast.BinOp, ast.Dict, ast.JoinedStr, ast.List, ast.Set, ast.Tuple, ast.ListComp, ast.DictComp)
_CONSTRUCTORS = frozenset({"__init__", "forward", "__call__"})
_Known = Mapping[str, object]
_Run = Generator[ast.AST, None, bool]
"""The nodes that run; it gives back whether nothing below is come to."""


def run_by_all(own: OwnDdp, loops: Iterable[Loop]) -> set[ast.AST] | None:
    """The nodes that every process runs in loops and in what these call; None where those are too many to follow."""
    walk = _Walk(own)
    for loop in loops:
        located = own.program.locate(loop)
        if located is not None and not walk.go(loop, located[1]):
            return None
    return walk.nodes


class _Walk:
    """What is run, function by function, each with what its callers give."""

    def __init__(self, own: OwnDdp) -> None:
        self.nodes: set[ast.AST] = set()
        self._own = own
        self._seen: set[tuple[ast.AST, frozenset[tuple[str, object]]]] = set()
        self._read: dict[ast.AST, frozenset[str]] = {}

    def go(self, loop: Loop, scope: Scope) -> bool:
        batch = blocks.writes_target(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
        inside = {node for part in loop.body for node in blocks.walk_own(part)}
        bound = {*self._parameters(scope), *_bound(node for node in blocks.walk_body(scope.node) if node not in inside)}
        pending: list[tuple[list[ast.AST], _Ways]] = [
            ([*loop.body], _Ways(self._own, scope, dict.fromkeys(batch, _OF_BATCH), bound))
        ]
        while pending:
            parts, ways = pending.pop()
            for node in ways.run(parts):
                self.nodes.add(node)
                for info, given in self._called(node, ways) if isinstance(node, ast.Call) else ():
                    state = (info.node, frozenset(given.items()))
                    if state in self._seen:
                        continue
                    if len(self._seen) >= _MAX_STATES:
                        return False
                    self._seen.add(state)
                    where = self._own.program.flow.scopes[info.node]
                    pending.append((blocks.own_parts(info.node), _Ways(self._own, where, given, info.parameters)))
        return True

    def _parameters(self, scope: Scope) -> Iterable[str]:
        info = self._own.program.function_of(scope.node)
        return info.parameters if info is not None else ()

    def _called(self, call: ast.Call, ways: _Ways) -> Iterator[tuple[FunctionFacts, dict[str, object]]]:
        module = ways.scope.module
        callees = self._own.program.flow.callees(call)
        if not callees or self._own.reach(module, call) is Reach.ONE or self._own.is_of_first_alone(module, call):
            return
        held = ways.value(call.func)
        for info in callees:
            is_held = not isinstance(held, ast.Lambda) or info.node is held
            if is_held and not (_is_by_name(info, call) and _lacks(info, call)):
                yield info, self._given(info, call, ways)

    def _given(self, info: FunctionFacts, call: ast.Call, ways: _Ways) -> dict[str, object]:
        """What is known of the parameters that a function reads; nothing where it is called by another name."""
        if not _is_by_name(info, call):
            return {}
        if info.node not in self._read:
            names = {node.id for node in ast.walk(info.node) if isinstance(node, ast.Name)}
            self._read[info.node] = frozenset(name for name in info.parameters if name in names - {info.receiver})
        return ways.given(info, call, self._read[info.node])


class _Ways:
    """Which ways a function takes with what it is given, and what its variables are there.

    Args:
        own: the program.
        scope: the function's names.
        known: what is known of its variables.
        bound: its variables that have a value.
        depth: how many helpers may be asked.
    """

    def __init__(
        self, own: OwnDdp, scope: Scope, known: _Known, bound: Iterable[str], depth: int = _MAX_HELPERS
    ) -> None:
        self.scope = scope
        self._own = own
        self._known = dict(known)
        self._bound = {*bound, *known}
        self._depth = depth

    # ---- the ways --------------------------------------------------------------------------------------------------

    def run(self, parts: Iterable[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes that run, each while the variables are what they are there."""
        yield from self._suite(parts)

    def _suite(self, parts: Iterable[ast.AST]) -> _Run:
        for part in parts:
            if (yield from self._part(part)):
                return True
        return False

    def _part(self, node: ast.AST) -> _Run:
        yield node
        if isinstance(node, FunctionNode):
            return False
        if isinstance(node, (ast.If, ast.IfExp)):
            return (yield from self._choice(node))
        if isinstance(node, blocks.LOOPS):
            self._forget(node)  # a further round finds what the one before left
            if isinstance(node, (ast.For, ast.AsyncFor)) and any(node is site.node for site in self._own.data.loops):
                self._known.update(dict.fromkeys(blocks.writes_target(node), _OF_BATCH))
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                leaves = yield from self._suite(value)
                if leaves and isinstance(node, (ast.With, ast.AsyncWith)):
                    return True
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        yield from self._part(item)
            elif isinstance(value, ast.AST) and field != "ctx":
                yield from self._part(value)
        if isinstance(node, ast.Assign):
            self._assign(node)
        elif isinstance(node, (ast.stmt, ast.NamedExpr)) and not isinstance(node, (ast.With, ast.AsyncWith)):
            self._forget(node)
        return isinstance(node, (ast.Return, ast.Raise))

    def _choice(self, node: ast.If | ast.IfExp) -> _Run:
        yield from self._part(node.test)
        holds = self._holds(node.test)
        before, bound = dict(self._known), set(self._bound)
        after: list[tuple[dict[str, object], set[str]]] = []
        leave: list[bool] = []
        for side, way in ((True, node.body), (False, node.orelse)):
            if holds is not None and holds is not side:
                continue
            self._known, self._bound = dict(before), set(bound)
            self._learn(node.test, side)
            leave.append((yield from self._suite(way if isinstance(way, list) else [way])))
            if not leave[-1]:
                after.append((self._known, self._bound))
        self._join(after or [(before, bound)])
        return all(leave)

    def _join(self, ends: list[tuple[dict[str, object], set[str]]]) -> None:
        """Go on with what is known on all ways that meet; on one that gives a variable no value, none reads it.

        One that none of them gives a value is from outside the function, and has one on each.
        """
        self._bound = set().union(*(bound for _, bound in ends))
        values = {
            name: [known.get(name, _UNKNOWN) for known, bound in ends if name in bound or name not in self._bound]
            for name in set().union(*(known for known, _ in ends))
        }
        self._known = {name: value for name, found in values.items() if (value := _common(found)) is not _UNKNOWN}

    def _learn(self, test: ast.expr, holds: bool) -> None:
        """``noise`` is something where ``noise is None`` does not hold."""
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and is_none(test.comparators[0])):
            return
        is_given = isinstance(test.ops[0], ast.IsNot if holds else ast.Is)
        if isinstance(test.left, ast.Name) and is_given:
            self._known.setdefault(test.left.id, _SOMETHING)

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        self._forget(node)
        for target in node.targets:
            if isinstance(target, ast.Name) and value is not _UNKNOWN:
                self._known[target.id] = value
            elif isinstance(target, (ast.Tuple, ast.List)) and value is _OF_BATCH:
                self._known.update({item.id: _OF_BATCH for item in target.elts if isinstance(item, ast.Name)})

    def _forget(self, node: ast.AST) -> None:
        for name in _bound(blocks.walk_own(node)):
            self._known.pop(name, None)
            self._bound.add(name)

    # ---- the values ------------------------------------------------------------------------------------------------

    def given(self, info: FunctionFacts, call: ast.Call, names: Iterable[str]) -> dict[str, object]:
        """What is known of parameters in a call."""
        found = {}
        for name in names:
            given = info.argument_or_default(call, name)
            of_default = given is not None and given is info.defaults.get(name)
            if given is not None and (not of_default or isinstance(given, ast.Constant)):
                value = self.value(given)
                if value is not _UNKNOWN:
                    found[name] = value
        return found

    def value(self, node: ast.expr) -> object:
        """What an expression is: a constant's value, a lambda, something that is not None, or not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Lambda):
            return node
        if isinstance(node, ast.Name):
            return self._known.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Subscript):
            return _OF_BATCH if self.value(node.value) is _OF_BATCH else _UNKNOWN
        if isinstance(node, ast.Call):
            return self._value_of_call(node)
        if isinstance(node, ast.IfExp):
            return _common([self.value(node.body), self.value(node.orelse)])
        holds = self._holds(node)
        if holds is not None:
            return holds
        return _SOMETHING if isinstance(node, _MADE) else _UNKNOWN

    def _value_of_call(self, call: ast.Call) -> object:
        if isinstance(call.func, ast.Attribute) and call.func.attr in TENSOR_GIVING:
            return _SOMETHING
        if any(name.startswith("torch.") for name in self._own.program.callee_names(call, self.scope)):
            return _SOMETHING
        callees = self._own.program.flow.callees(call)
        if len(callees) != 1 or not self._depth:
            return _UNKNOWN
        [info] = callees
        returned = info.body[-1] if len(info.body) == 1 else None
        if not isinstance(returned, ast.Return) or returned.value is None or last_name(call.func) != info.name:
            return _UNKNOWN
        given = self.given(info, call, info.parameters)
        where = self._own.program.flow.scopes[info.node]
        inner = _Ways(self._own, where, given, info.parameters, self._depth - 1)
        return inner.value(returned.value)

    def _holds(self, test: ast.expr) -> bool | None:
        """Whether a test holds; None where that is not known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            holds = self._holds(test.operand)
            return None if holds is None else not holds
        if isinstance(test, ast.BoolOp):
            known = [self._holds(item) for item in test.values]
            decides = isinstance(test.op, ast.Or)
            return decides if decides in known else (None if None in known else not decides)
        if isinstance(test, ast.Compare):
            return self._compares(test)
        if isinstance(test, (ast.Constant, ast.Name, ast.Call)):
            value = self.value(test)
            is_open = value is _UNKNOWN or value is _SOMETHING or value is _OF_BATCH
            return None if is_open else bool(value)
        return None

    def _compares(self, test: ast.Compare) -> bool | None:
        if len(test.ops) != 1:
            return None
        operator, left = test.ops[0], self.value(test.left)
        if is_none(test.comparators[0]) and isinstance(operator, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
            is_equal = isinstance(operator, (ast.Is, ast.Eq))
            return None if left is _UNKNOWN else (left is None) is is_equal
        right = self.value(test.comparators[0])
        if isinstance(operator, (ast.Eq, ast.NotEq)) and all(isinstance(item, (str, int)) for item in (left, right)):
            return (left == right) is isinstance(operator, ast.Eq)
        return None


def _common(values: list[object]) -> object:
    """What all of some values are."""
    first, *others = values
    if all(item is first for item in others):
        return first
    return _UNKNOWN if any(item is _UNKNOWN or item is None for item in values) else _SOMETHING


def _is_by_name(info: FunctionFacts, call: ast.Call) -> bool:
    return info.name in _CONSTRUCTORS or last_name(call.func) == info.name


def _lacks(info: FunctionFacts, call: ast.Call) -> bool:
    """Whether a call gives a function less or more than it takes: it runs another that its name may hold."""
    arguments = info.node.args
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return False
    own = [item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None]
    needed = [name for name in info.parameters if name not in info.defaults and name not in (info.receiver, *own)]
    if arguments.vararg is None and len(call.args) > len(info.positional):
        return True
    return any(info.argument(call, name) is None for name in needed)


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """The variables that nodes give a value, or take it from."""
    return {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
