"""Which expressions may be the wrapper of a model, and which are the model itself for certain."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from amp_rules.flow.cells import CellKey, attribute_key
from amp_rules.flow.records import constructor_fields
from amp_rules.plain_torch.wrapped import Wrapped
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.text.runtime_vocabulary import RUNTIME

_GROWS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft"})


@dataclass(frozen=True)
class _Source:
    """What a variable is given, and by which statement.

    The statement is None where a caller gives it, and the value is where stars hide it.
    """

    value: ast.expr | None
    scope: Scope
    statement: ast.stmt | None


class WrappedReferences:
    """Answers for the expressions of a program.

    A variable is the model itself before the line that wraps it; a parameter is where no call gives the wrapper; a
    container is what any of its elements is. What is not known may be the wrapper.
    """

    def __init__(self, program: Program, models: list[Wrapped]) -> None:
        self._program = program
        self._wrapping = {item.place.node for item in models}
        self._values = {value for item in models for value in item.values}
        self._sources: defaultdict[CellKey, list[_Source]] = defaultdict(list)
        for node, _, scope in program.nodes():
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    self._take(target, node.value, scope, node)
            elif isinstance(node, (ast.For, ast.comprehension)):
                self._take_each(node.target, node.iter, scope)
            elif isinstance(node, ast.AugAssign):
                self._take(node.target, None, scope, None)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS:
                given = node.args[0] if node.func.attr == "append" and len(node.args) == 1 else None
                self._take(node.func.value, given, scope, None)
            elif isinstance(node, ast.Call):
                self._take_fields(node, scope)
        for item in models:
            moved = item.moved
            if moved is not None and isinstance(moved.statement, ast.Expr):
                # ``self.model.to(device)``, and the line that wraps it below
                assert isinstance(moved.node, ast.Call) and isinstance(moved.node.func, ast.Attribute)
                target = moved.node.func.value
                self._take(target, moved.node, moved.scope, moved.statement)

    def _take_fields(self, call: ast.Call, scope: Scope) -> None:
        """``State(model=model)`` of a data class."""
        for made in self._program.flow.values(call.func, scope):
            fields = constructor_fields(made) if made.kind == "class" else []
            held: dict[str, ast.expr | None] = dict(zip(fields, call.args, strict=False))
            held |= {item.arg: item.value for item in call.keywords if item.arg in fields}
            if any(isinstance(item, ast.Starred) for item in call.args) or any(not item.arg for item in call.keywords):
                held = dict.fromkeys(fields)
            for name, value in held.items():
                self._sources[cast(CellKey, attribute_key(made, name))].append(_Source(value, scope, None))

    def _take_each(self, target: ast.expr, iterated: ast.expr, scope: Scope) -> None:
        """``for net in nets``; ``for net, optimizer in zip(nets, optimizers)``."""
        if isinstance(target, ast.Tuple) and isinstance(iterated, ast.Call):
            function = ast.unparse(iterated.func)
            given: list[ast.expr | None] = [*iterated.args] if function == "zip" else []
            if function == "enumerate" and iterated.args:
                given = [ast.Constant(0), iterated.args[0]]
            if len(given) == len(target.elts):
                for element, value in zip(target.elts, given, strict=True):
                    self._take(element, value, scope, None)
                return
        self._take(target, iterated, scope, None)

    def _take(self, target: ast.expr, value: ast.expr | None, scope: Scope, statement: ast.stmt | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            given = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for index, element in enumerate(target.elts):
                self._take(element, given[index] if len(given) == len(target.elts) else value, scope, statement)
            return
        key = self._program.flow.key(blocks.reading(target), scope)
        if key is not None:
            self._sources[key].append(_Source(value, scope, statement))

    def may_be_wrapped(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression may be a wrapper."""
        pending: list[tuple[ast.expr, Scope] | None] = [(node, scope)]
        seen: set[ast.expr] = set()
        while pending:
            current = pending.pop()
            if current is None or current[0] in self._wrapping:
                return True
            if current[0] not in seen:
                seen.add(current[0])
                pending += self._origins(*current)
        return False

    def is_wrapped(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is a wrapper for certain, wherever it is a model that one is put around."""
        pending: list[tuple[ast.expr, Scope] | None] = [(node, scope)]
        seen: set[ast.expr] = set()
        while pending:
            current = pending.pop()
            if current is None:
                return False
            if current[0] in self._wrapping or current[0] in seen:
                continue
            seen.add(current[0])
            origins = [*self._origins(*current)]
            if not origins and self._program.roles.modules(*current) & self._values:
                return False
            pending += origins
        return True

    def _origins(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope] | None]:
        """Yield what an expression may have its value from; None for what is not known."""
        if isinstance(node, ast.Constant):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            yield None  # getattr(self, "net" + name)
        elif isinstance(node, ast.Call):
            yield from self._given_back(node, scope)
        elif isinstance(node, ast.IfExp):
            yield from ((node.body, scope), (node.orelse, scope))
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            yield from ((item, scope) for item in node.elts)
        elif isinstance(node, ast.Dict):
            yield from ((item, scope) for item in node.values)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            yield (node.elt, scope)
        elif isinstance(node, ast.DictComp):
            yield (node.value, scope)
        elif isinstance(node, (ast.Subscript, ast.Starred)):
            yield (node.value, scope)  # of what a container holds, any may be meant
        elif isinstance(node, ast.Attribute) and node.attr == "module" and self._is_model(node.value, scope):
            return
        elif not isinstance(node, (ast.Name, ast.Attribute)):
            yield None
        else:
            key = self._program.flow.key(node, scope)
            sources = [*self._sources.get(key, ())] if key is not None else []
            if key is not None and not any(self._wraps_before(item, node, scope) for item in sources):
                sources += self._from_callers(node, scope)
            if not sources:
                yield None
            for item in self._living(sources):
                if item.statement is None or not self._is_later(item.statement, item.scope, node, scope):
                    yield (item.value, item.scope) if item.value is not None else None

    def _living(self, sources: list[_Source]) -> list[_Source]:
        """The sources but for those that a line which wraps the model follows in the same suite."""
        wrapping = [item for item in sources if item.value in self._wrapping and item.statement is not None]
        return [item for item in sources if not any(_overwrites(one, item) for one in wrapping)]

    def _wraps_before(self, source: _Source, node: ast.expr, scope: Scope) -> bool:
        """Whether a line that wraps a parameter comes before an expression on every way through its function."""
        statement, module = source.statement, scope.module
        if statement is None or source.value not in self._wrapping or source.scope.module is not module:
            return False
        if blocks.body_of(module, statement) is not blocks.body_of(module, node) or node in set(ast.walk(statement)):
            return False
        return module.start(statement) < module.start(node) and all(map(_is_guard, blocks.enclosing(module, statement)))

    def _is_model(self, node: ast.expr, scope: Scope) -> bool:
        return bool(self._program.roles.modules(node, scope))

    def _from_callers(self, node: ast.expr, scope: Scope) -> Iterator[_Source]:
        if not isinstance(node, ast.Name):
            return
        info = self._program.function_of(scope.owner(node.id).node)
        if info is None or node.id not in info.parameters:
            return
        callers = self._program.flow.callers(info)
        for caller in callers:
            starred = any(isinstance(item, ast.Starred) for item in caller.call.args)
            starred = starred or any(item.arg is None for item in caller.call.keywords)
            given = None if starred else info.argument(caller.call, node.id)
            if given is not None:
                yield _Source(given, caller.scope, None)
            elif starred or node.id not in info.positional:
                yield _Source(None, caller.scope, None)

    def _given_back(self, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope] | None]:
        """What a call may give back: what a function of the project returns, or a model that it was given."""
        program = self._program
        if program.callee_names(call, scope) & {f"{RUNTIME}.unwrap"}:
            return
        callees = [info for info in program.flow.callees(call) if info.name != "__init__" and not info.is_forward]
        for info in callees:
            inner = program.flow.scopes.get(info.node)
            yield from ((value, inner) if inner is not None else None for value in info.returns)
        if callees or any(value.kind == "class" for value in program.flow.values(call.func, scope)):
            return
        given = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        models = [item for item in [*given, *call.args] if self._is_model(item, scope)]
        yield from ((item, scope) for item in models)
        if not models and any(value.site is not call for value in program.roles.modules(call, scope) & self._values):
            yield None  # next(iter(models)), vars(self)["net"]

    def _is_later(self, statement: ast.stmt, scope: Scope, node: ast.expr, other: Scope) -> bool:
        """Whether a statement runs only after an expression of the same body."""
        module = scope.module
        if module is not other.module or blocks.body_of(module, statement) is not blocks.body_of(module, node):
            return False
        if module.start(statement) <= module.start(node) and node not in set(ast.walk(statement)):
            return False
        around = {item for item in blocks.enclosing(module, statement) if isinstance(item, blocks.LOOPS)}
        return not around & set(blocks.enclosing(module, node))


def _overwrites(wrapping: _Source, other: _Source) -> bool:
    """Whether the line that wraps a model comes after another assignment of its variable, wherever that is run."""
    later, first = wrapping.statement, other.statement
    module = wrapping.scope.module
    if later is None or first is None or later is first or module is not other.scope.module:
        return False
    if blocks.body_of(module, later) is not blocks.body_of(module, first) or module.start(later) < module.start(first):
        return False
    if blocks.choice_between(module, first, later) is not None:
        return False  # in the other branch
    around = [item for item in blocks.enclosing(module, later) if not _is_guard(item)]
    return set(around) <= set(blocks.enclosing(module, first))


def _is_guard(node: ast.stmt) -> bool:
    """``if model is not None:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith(" is not None") and not node.orelse
