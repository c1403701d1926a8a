"""Which variables hold the parsed arguments of the command line at a place, and which calls parsed them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.worker_functions import given_to
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.command_lines import PARSERS, PARSING

_MAX_DEPTH = 8
"""Variables, helper functions and callers between a variable and the call that parses; beyond, nothing is known."""


@dataclass(frozen=True)
class Place:
    """Where new code goes: before a statement or after it."""

    module: Module
    statement: ast.stmt
    after: bool


@dataclass(frozen=True)
class Parsed:
    """A call that parses the command line: ``parser.parse_args()``."""

    call: ast.Call
    scope: Scope

    @property
    def parser(self) -> ast.expr:
        """The expression of the parser."""
        assert isinstance(self.call.func, ast.Attribute)
        return self.call.func.value


@dataclass(frozen=True)
class _Binding:
    """A statement that gives a variable its value, or an element of it by its index; None for any other statement."""

    statement: ast.stmt
    scope: Scope
    value: ast.expr | None
    index: int | None = None


class ArgumentsInReach:
    """The variables that hold nothing but parsed arguments, by place."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def at(self, place: Place) -> Iterator[tuple[str, frozenset[Parsed]]]:
        """Yield the variables at a place, the function's own first, with the calls that parsed what they hold."""
        body = blocks.body_of(place.module, place.statement)
        scope = self._program.flow.scopes.get(body)
        if scope is None:
            return
        for name in self._names(place, body, scope):
            found = self._held(name, scope, 0)
            if found and self._is_bound(name, scope, place):
                yield name, frozenset(found)

    def _names(self, place: Place, body: ast.AST, scope: Scope) -> list[str]:
        """The names that may hold them: parameters, what the body assigns, and globals that it reads."""
        info = self._program.function_of(body)
        names = dict.fromkeys(info.parameters if info is not None else ())
        for node in blocks.walk_body(body):
            if isinstance(node, ast.Name):
                names[node.id] = None
        return [name for name in names if self._may_hold(name, scope)]

    def _may_hold(self, name: str, scope: Scope) -> bool:
        """Whether it is a variable of the file that something is bound to; the rest is asked in :meth:`_held`."""
        owner = scope.owner(name)
        return name in owner.bound

    # ---- what a variable holds -------------------------------------------------------------------------------------

    def _held(self, name: str, scope: Scope, depth: int) -> set[Parsed] | None:
        """The calls that parsed what a variable holds; None where it may hold something else."""
        if depth > _MAX_DEPTH:
            return None
        owner = scope.owner(name)
        bindings = list(self._bindings(name, owner))
        found: set[Parsed] = set()
        info = self._program.function_of(owner.node)
        if info is not None and name in info.parameters:
            callers = self._program.flow.callers(info)
            given_by = [(info.argument(caller.call, name), caller.scope) for caller in callers]
            given_by += given_to(self._program, info, name)
            for given, where in given_by:
                parsed = None if given is None else self._given(given, where, depth + 1)
                if parsed is None:
                    return None
                found |= parsed
        for binding in bindings:
            if binding.value is None:
                return None
            parsed = self._given(binding.value, binding.scope, depth + 1, binding.index)
            if parsed is None:
                return None
            found |= parsed
        return found or None

    def _given(self, node: ast.expr, scope: Scope, depth: int, index: int | None = None) -> set[Parsed] | None:
        """The calls that parsed what an expression gives, or its element by an index."""
        if depth > _MAX_DEPTH:
            return None
        if isinstance(node, ast.Tuple) and index is not None and index < len(node.elts):
            return self._given(node.elts[index], scope, depth + 1)
        if isinstance(node, ast.Subscript) and index is None and isinstance(node.slice, ast.Constant):
            if type(node.slice.value) is int and node.slice.value >= 0:
                return self._given(node.value, scope, depth + 1, node.slice.value)
        if isinstance(node, ast.Call):
            return self._called(node, scope, depth, index)
        if isinstance(node, ast.Name) and index is None:
            return self._held(node.id, scope, depth + 1)
        if isinstance(node, ast.Attribute) and index is None:
            return self._attribute(node, scope, depth)
        return None

    def _called(self, call: ast.Call, scope: Scope, depth: int, index: int | None) -> set[Parsed] | None:
        parsed = self._parsing(call, scope, index)
        if parsed is not None:
            return {parsed}
        callees = self._program.flow.callees(call)
        found: set[Parsed] = set()
        for info in callees:
            inner = self._program.flow.scopes.get(info.node)
            if inner is None or not info.returns:
                return None
            for returned in info.returns:
                given = self._given(returned, inner, depth + 1, index)
                if given is None:
                    return None
                found |= given
        return found or None

    def _parsing(self, call: ast.Call, scope: Scope, index: int | None) -> Parsed | None:
        """The call itself, if it parses: ``parser.parse_args()``, or the first of ``parser.parse_known_args()``."""
        if not isinstance(call.func, ast.Attribute) or PARSING.get(call.func.attr, ()) != (index,):
            return None
        values = self._program.flow.values(call.func.value, scope)
        return Parsed(call, scope) if any(value.name in PARSERS for value in values) else None

    def _attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> set[Parsed] | None:
        """What ``self.args`` holds, by all that is assigned to it."""
        key = self._program.flow.key(node, scope)
        if key is None:
            return None
        found: set[Parsed] = set()
        for other, _, where in self._program.nodes():
            if not isinstance(other, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                continue
            for target in other.targets if isinstance(other, ast.Assign) else [other.target]:
                for part, index in _elements(target):
                    if not (isinstance(part, ast.Attribute) and part.attr == node.attr):
                        continue
                    if self._program.flow.key(blocks.reading(part), where) != key:
                        continue
                    value = None if isinstance(other, ast.AugAssign) else other.value
                    given = None if value is None else self._given(value, where, depth + 1, index)
                    if given is None:
                        return None
                    found |= given
        return found or None

    # ---- where a variable is bound ---------------------------------------------------------------------------------

    def _bindings(self, name: str, owner: Scope) -> Iterator[_Binding]:
        """Yield what binds a variable of a scope, wherever that stands."""
        for node in owner.module.nodes:
            scope = self._scope_of(owner.module, node) if _may_bind(node) else None
            if scope is None or name not in _bound_names(node) or scope.owner(name) is not owner:
                continue
            statement = blocks.statement_of(owner.module, node)
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for part, index in _elements(target):
                        if isinstance(part, ast.Name) and part.id == name:
                            yield _Binding(statement, scope, node.value, index)
            elif isinstance(node, ast.AnnAssign):
                if node.value is not None:
                    yield _Binding(statement, scope, node.value)
            else:
                yield _Binding(statement, scope, None)

    def _scope_of(self, module: Module, node: ast.AST) -> Scope | None:
        return self._program.flow.scopes.get(blocks.body_of(module, node))

    def _is_bound(self, name: str, scope: Scope, place: Place) -> bool:
        """Whether the variable has its value whenever the place is reached."""
        owner = scope.owner(name)
        info = self._program.function_of(owner.node)
        if info is not None and name in info.parameters:
            return True
        for binding in self._bindings(name, owner):
            if binding.scope is scope:
                if _comes_before(place, binding.statement):
                    return True
            elif owner.node is place.module.tree and _is_on_main_path(place.module, binding.statement):
                return True
        return False


def _elements(target: ast.expr) -> Iterator[tuple[ast.expr, int | None]]:
    """Yield the parts of a target with their indices: ``args, rest = ...``."""
    if isinstance(target, (ast.Tuple, ast.List)):
        yield from ((part, index) for index, part in enumerate(target.elts))
    else:
        yield target, None


def _may_bind(node: ast.AST) -> bool:
    return isinstance(node, (ast.stmt, ast.NamedExpr))


def _bound_names(node: ast.AST) -> set[str]:
    """The names that a node itself binds, without what the statements within it do."""
    targets: list[ast.expr | None] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        targets = [node.target]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items]
    elif isinstance(node, ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(item.asname or item.name).partition(".")[0] for item in node.names}
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    found = [part for target in targets if target is not None for part in ast.walk(target)]
    return {part.id for part in found if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}


def _comes_before(place: Place, statement: ast.stmt) -> bool:
    """Whether a statement has run whenever the place is reached, both in one body."""
    where = blocks.place(place.module, statement)
    for around in (place.statement, *blocks.enclosing(place.module, place.statement)):
        if around is statement:
            return around is place.statement and place.after
        if around in where.suite:
            return where.suite.index(around) > where.index
    return False


def _is_on_main_path(module: Module, statement: ast.stmt) -> bool:
    """Whether a statement runs with the file when it is started, under no condition but the main guard."""
    if statement in module.tree.body:
        return True
    parent = module.parents.get(statement)
    return isinstance(parent, ast.If) and is_main_guard(parent) and parent in module.tree.body
