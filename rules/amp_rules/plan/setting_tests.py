"""What a test in a model's own code gives in training, by settings: attributes of the model, options, arguments.

What a test gives that asks for the shape of a tensor is not known.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property

from amp_rules.flow.values import ClassInfo
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import COMPARISONS, is_none, walk
from amp_rules.torch.varying import ASKED_OF_SHAPE

Outcomes = frozenset[bool | None]
"""What a test may give, None where that is not known; empty for what is no test of settings."""

_ANY: Outcomes = frozenset({None})


class SettingTests:
    """Answers for the tests in one method of a model.

    Args:
        program: the program.
        owner: the class of the model.
        info: the method.
        scope: its variables.
    """

    def __init__(self, program: Program, owner: ClassInfo, info: FunctionFacts, scope: Scope) -> None:
        self._program = program
        self._owner = owner
        self._info = info
        self._scope = scope

    def outcomes(self, test: ast.expr) -> Outcomes:
        """What a test may give where the model trains."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return frozenset(None if item is None else not item for item in self.outcomes(test.operand))
        if isinstance(test, ast.BoolOp):
            return self._together(test)
        if own_attribute(test, self._info) == "training":
            return frozenset({True})
        if self.asks_for_shape(test):
            return _ANY
        if isinstance(test, ast.Compare):
            return self._compared(test) if len(test.ops) == 1 else frozenset()
        found = self._given(test)
        return frozenset() if found is None else frozenset(None if item is ... else bool(item) for item in found)

    def _together(self, test: ast.BoolOp) -> Outcomes:
        """The outcome of ``a or b`` and ``a and b``, where all of them are settings."""
        parts = [self.outcomes(item) for item in test.values]
        decides = isinstance(test.op, ast.Or)
        found: set[bool | None] = set()
        for choice in itertools.product(*parts):
            found.add(decides if decides in choice else None if None in choice else not decides)
        return frozenset(found)

    def _compared(self, test: ast.Compare) -> Outcomes:
        (operation,), (other,) = test.ops, test.comparators
        found = self._given(test.left)
        if found is None:
            return frozenset()
        if isinstance(operation, (ast.Is, ast.IsNot)):
            if not is_none(other):
                return frozenset()
            # What is not known is taken for something: whether it comes and goes is asked elsewhere.
            return frozenset((item is None) is isinstance(operation, ast.Is) for item in found)
        try:
            right: object = ast.literal_eval(other)
        except ValueError:
            return _ANY if self._given(other) is not None else frozenset()
        holds = COMPARISONS[type(operation)]
        return frozenset(_tried(holds, item, right) for item in found)

    def asks_for_shape(self, test: ast.expr) -> bool:
        """Whether a test compares what a tensor's shape says: ``x.size(-1) != self.width``.

        What a loop counts or goes through may have another shape in its next round, in all steps alike.
        """
        if not isinstance(test, ast.Compare):
            return False
        module = self._scope.module
        loops = [parent for parent in blocks.enclosing(module, test) if isinstance(parent, (ast.For, ast.AsyncFor))]
        if any(blocks.reads(test) & blocks.writes_target(loop) for loop in loops):
            return False
        return any(map(self._is_of_shape, (test.left, *test.comparators)))

    def _is_of_shape(self, node: ast.expr) -> bool:
        """``x.shape[1]``, ``x.size(1) // 2``, and a variable that is given nothing else."""
        for part in walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                given = self._shapes.get(part.id, ())
                if given and all(any(map(self._asks, walk(value))) for value in given):
                    return True
            elif self._asks(part):
                return True
        return False

    @cached_property
    def _shapes(self) -> dict[str, list[ast.AST]]:
        """What each variable of the method is given, and the statement where that is no value."""
        found: defaultdict[str, list[ast.AST]] = defaultdict(list)
        for node in self._program.nodes_of(self._info.node):
            for name in blocks.writes_itself(node):
                found[name].append(node.value if isinstance(node, ast.Assign) else node)
        return found

    def _asks(self, node: ast.AST) -> bool:
        """Whether it is the shape of a tensor that the method was given or made: the model's own stay as they are."""
        if not isinstance(node, ast.Attribute) or node.attr not in ASKED_OF_SHAPE:
            return False
        asked = node.value
        while isinstance(asked, (ast.Attribute, ast.Subscript)):
            asked = asked.value
        return (
            isinstance(asked, ast.Name) and asked.id != self._info.receiver and self._scope.owner(asked.id).is_function
        )

    def _given(self, node: ast.expr) -> list[object] | None:
        """What a setting may be, ``...`` where that is not known; None of what is no setting."""
        name = own_attribute(node, self._info)
        if name is not None:
            return self._settings(name)
        if isinstance(node, ast.Name) and node.id in self._info.parameters and node.id != self._info.receiver:
            return self._argument(node.id)
        return [...] if self._is_option(node) else None

    def _argument(self, name: str) -> list[object]:
        """What the calls that train give an argument."""
        calls = [
            site.call
            for site in self._program.flow.callers(self._info)
            if not self._program.without_gradients(site.scope.module, site.call, site.scope.node)
        ]
        written = [
            part for part in self._program.nodes_of(self._info.node) if isinstance(part, ast.Name) and part.id == name
        ]
        if not all(isinstance(part.ctx, ast.Load) for part in written):
            return [...] * len(calls)
        return [literal(self._info.argument_or_default(call, name)) for call in calls]

    def _settings(self, name: str) -> list[object]:
        """What the constructor may give an attribute, as far as that is a constant."""
        found: list[object] = []
        for info, statement in assignments(self._owner, name):
            value = statement.value
            if isinstance(value, ast.Name) and info.name == "__init__" and value.id in info.parameters:
                callers = self._program.flow.callers(info)
                found.extend([literal(info.argument_or_default(site.call, value.id)) for site in callers] or [...])
            else:
                found.append(literal(value))
        return found

    def _is_option(self, node: ast.expr) -> bool:
        """``self.opt.aux``, ``args.aux``, ``CONFIG["aux"]``: what an object of settings holds, beside the model."""
        inner: list[ast.expr] = [node]
        while isinstance(inner[-1], ast.Attribute) or (
            isinstance(inner[-1], ast.Subscript) and isinstance(literal(inner[-1].slice), str)
        ):
            inner.append(inner[-1].value)
        root = inner[-1]
        if len(inner) < 2 or not isinstance(root, ast.Name) or self._program.names(node, self._scope):
            return False
        if root.id == self._info.receiver:
            inner.pop()
            if len(inner) < 2 or not isinstance(inner[-1], ast.Attribute):
                return False
        elif self._scope.owner(root.id).is_function:
            return False
        return not any(is_module(value) for part in inner for value in self._program.flow.values(part, self._scope))


def _tried(holds: Callable[..., object], item: object, other: object) -> bool | None:
    try:
        return None if item is ... else bool(holds(item, other))
    except TypeError:
        return None


def own_attribute(node: ast.AST, info: FunctionFacts) -> str | None:
    """``norm`` of ``self.norm``."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == info.receiver
    return node.attr if is_own else None  # type: ignore[attr-defined]


def assignments(owner: ClassInfo, name: str) -> Iterator[tuple[FunctionFacts, ast.Assign]]:
    """Where the methods of a class, and of those that it derives from, give an attribute its value."""
    for one in owner.mro():
        for info in one.facts.methods.values():
            for node in walk(info.node):
                if isinstance(node, ast.Assign) and any(own_attribute(item, info) == name for item in node.targets):
                    yield info, node
