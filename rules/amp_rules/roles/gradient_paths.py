"""Through which names a gradient can flow: what a loss is computed from, as against what says how.

A number read off a tensor, a shape, an index, a truth value, a module or an optimizer decides how a loss is computed,
and no gradient flows through it: where it was computed needs no autocast.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_loader_value, is_module, is_optimizer, is_scheduler
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import COMPREHENSIONS, children, own_variables, walk
from amp_rules.torch.differentiability import (
    DETACHED_ATTRIBUTES,
    DETACHED_FUNCTIONS,
    DETACHED_METHODS,
    DETACHED_PACKAGES,
    NUMBERS_OF,
)

_UNDIFFERENTIABLE = (ast.Constant, ast.Compare, ast.JoinedStr, ast.FormattedValue, ast.Slice)
_MAX_CALLS = 3
"""Functions that hand a sum back to each other; trainers have one or two."""
_STEPS = (ast.FloorDiv, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)


class GradientPaths:
    """Tells which of the names that code reads can carry a gradient into what it gives.

    Args:
        program: the program.
        sums: whether sums that begin as a number carry one for certain.
    """

    def __init__(self, program: Program, *, sums: bool = False) -> None:
        self._program = program
        self._sums = sums

    def carries(self, node: ast.AST) -> bool:
        """Whether a gradient can flow out of an expression, for all that is known."""
        return any(True for _ in self._sources(node))

    def reads(self, node: ast.AST) -> set[str]:
        """The paths through which a gradient can flow into an expression, or into what a statement assigns."""
        found = set()
        for part in self._parts(node):
            own = _of_comprehensions(part)
            for source in self._sources(part):
                path = blocks.path_of(source)
                if path is not None and own.isdisjoint(walk(source)):
                    found.add(path)
        return found

    def calls(self, node: ast.AST) -> list[ast.Call]:
        """The calls out of whose results a gradient can flow into an expression, or into what a statement assigns."""
        found: list[ast.Call] = []
        for part in self._parts(node):
            for _ in self._sources(part, found):
                pass
        return found

    def assigns(self, statement: ast.stmt, wanted: set[str]) -> bool:
        """Whether running the statement gives one of the paths a value that a gradient can flow out of."""
        for node in blocks.walk_own(statement):
            if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.Expr, ast.For)):
                continue
            if not blocks.touches(_written(node), wanted) or self._is_without_gradients(node):
                continue
            if self._gives_only_objects(node):
                continue
            if any(self.carries(part) for part in self._parts(node)):
                return True
        return False

    def kept_sum(self, statement: ast.stmt, scope: Scope) -> str | None:
        """The variable of a sum, begun as a number, that a function keeps in an attribute: ``self.loss = loss``."""
        value = statement.value if isinstance(statement, ast.Assign) else None
        return value.id if isinstance(value, ast.Name) and self._is_sum(value, scope, 1) else None

    def makes_object(self, statement: ast.stmt) -> bool:
        """Whether the statement makes a module, an optimizer, a scheduler or a loader, as set-up does."""
        return (
            isinstance(statement, (ast.Assign, ast.AnnAssign))
            and isinstance(statement.value, ast.Call)
            and self._gives_only_objects(statement)
        )

    def _parts(self, node: ast.AST) -> Iterable[ast.expr]:
        """The expressions that decide what a statement gives to the names that it writes; an expression itself."""
        if isinstance(node, ast.expr):
            yield node
            return
        for item in blocks.walk_own(node):
            if isinstance(item, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and item.value is not None:
                yield item.value
            elif isinstance(item, ast.AugAssign):
                yield item.value
                yield blocks.reading(item.target)
            elif isinstance(item, (ast.For, ast.AsyncFor)):
                yield item.iter
            elif isinstance(item, (ast.Expr, ast.Return)) and item.value is not None:
                yield item.value

    # ---- expressions ---------------------------------------------------------------------------------------------

    def _sources(self, node: ast.AST, calls: list[ast.Call] | None = None) -> Iterable[ast.AST]:
        """Yield the names, attributes and calls that a gradient can flow out of, into the value of an expression.

        Every call on the way is put into ``calls``.
        """
        stack: list[ast.AST] = [node]
        while stack:
            current = stack.pop()
            if isinstance(current, _UNDIFFERENTIABLE):
                continue
            if isinstance(current, ast.IfExp):
                stack += [current.body, current.orelse]
            elif isinstance(current, ast.BinOp):
                stack += [] if isinstance(current.op, _STEPS) else [current.left, current.right]
            elif isinstance(current, ast.UnaryOp):
                stack += [] if isinstance(current.op, (ast.Not, ast.Invert)) else [current.operand]
            elif isinstance(current, (ast.Name, ast.Attribute, ast.Subscript)):
                yield from self._named(current, stack)
            elif isinstance(current, ast.Call):
                yield from self._called(current, stack, calls)
            elif isinstance(current, FunctionNode):
                stack += blocks.own_parts(current)
            else:
                stack += children(current)

    def _named(self, node: ast.expr, stack: list[ast.AST]) -> Iterable[ast.AST]:
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute) and _is_detached(node):
            return
        if blocks.path_of(node) is None:
            stack.append(node.value if isinstance(node, ast.Attribute) else node)
        elif not self._is_object(node):
            yield node

    def _called(self, node: ast.Call, stack: list[ast.AST], calls: list[ast.Call] | None) -> Iterable[ast.AST]:
        located = self._program.locate(node)
        names = self._program.callee_names(node, located[1]) if located is not None else set()
        if names and all(map(_gives_nothing_differentiable, names)):
            return
        if isinstance(node.func, ast.Attribute):
            if not names and node.func.attr in DETACHED_METHODS:
                return
            stack.append(node.func.value)
        elif not isinstance(node.func, ast.Name):
            stack.append(node.func)
        if calls is not None:
            calls.append(node)
        stack += node.args
        stack += [item.value for item in node.keywords]
        if located is not None and self._program.called_models(node, located[1]):
            yield node  # parameters carry gradients, whatever the model is given

    # ---- values --------------------------------------------------------------------------------------------------

    def _is_object(self, node: ast.expr) -> bool:
        """Whether a name holds something that computes or hands out data, and no tensor."""
        located = self._program.locate(node)
        return located is not None and self._are_objects(node, located[1])

    def _gives_only_objects(self, node: ast.AST) -> bool:
        """Whether what is assigned is a module, an optimizer, a loader or a function."""
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        located = self._program.locate(value) if value is not None else None
        return value is not None and located is not None and self._are_objects(value, located[1])

    def _are_objects(self, node: ast.expr, scope: Scope) -> bool:
        values = self._program.flow.values(node, scope)
        # What calling a library's module gave is a tensor, as far as is known.
        if any(value.is_result and is_module(value) for value in values):
            return False
        if any(value.kind == "constant" for value in values) and (self._sums or self._is_sum(node, scope)):
            return False
        return bool(values) and all(map(_is_object, values))

    def _is_sum(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether a variable begins as a number and grows by what carries a gradient, here or where it is given back.

        ``loss = 0``, ``loss += criterion(...)`` in a function that returns it among others.
        """
        if not isinstance(node, ast.Name) or depth > _MAX_CALLS:
            return False
        for item in self._program.nodes_of(scope.owner(node.id).node):
            if isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name) and item.target.id == node.id:
                if depth and self.carries(item.value):
                    return True
            elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Call):
                for info in self._program.flow.callees(item.value):
                    inner = self._program.flow.scopes[info.node]
                    if any(self._is_sum(part, inner, depth + 1) for part in _given_back(item, node.id, info.returns)):
                        return True
        return False

    def _is_without_gradients(self, node: ast.AST) -> bool:
        located = self._program.locate(node)
        if located is None:
            return False
        body, scope = located
        return self._program.without_gradients(scope.module, node, body)


def _given_back(statement: ast.Assign, name: str, returns: Iterable[ast.expr]) -> Iterable[ast.expr]:
    """What a variable takes of what a function returns, which a statement calls."""
    for target in statement.targets:
        if isinstance(target, ast.Name) and target.id == name:
            yield from returns
        elif isinstance(target, ast.Tuple):
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Name) and item.id == name:
                    tuples = [value for value in returns if isinstance(value, ast.Tuple)]
                    yield from (value.elts[index] for value in tuples if len(value.elts) == len(target.elts))


def _of_comprehensions(node: ast.AST) -> set[ast.AST]:
    """The names in comprehensions that stand for their own variables: those around them may have the same names."""
    found: set[ast.AST] = set()
    for item in walk(node):
        if isinstance(item, COMPREHENSIONS):
            own, given = own_variables(item), set(walk(item.generators[0].iter))
            found |= {part for part in walk(item) if isinstance(part, ast.Name) and part.id in own} - given
    return found


def _is_object(value: Value) -> bool:
    if value.kind in ("external", "module", "class", "function", "partial", "constant"):
        return True
    return is_module(value) or is_optimizer(value) or is_scheduler(value) or is_loader_value(value)


def _gives_nothing_differentiable(name: str) -> bool:
    return name in NUMBERS_OF or name in DETACHED_FUNCTIONS or name.startswith(DETACHED_PACKAGES)


def _is_detached(node: ast.Attribute) -> bool:
    """``x.shape``, ``x.data``, and what is read off them."""
    current: ast.expr = node
    while isinstance(current, (ast.Attribute, ast.Subscript)):
        if isinstance(current, ast.Attribute) and current.attr in DETACHED_ATTRIBUTES:
            return True
        current = current.value
    return False


def _written(node: ast.AST) -> set[str]:
    """What the statement itself writes, not those inside of it."""
    return blocks.writes_target(node) if isinstance(node, (ast.For, ast.AsyncFor)) else blocks.writes(node)
