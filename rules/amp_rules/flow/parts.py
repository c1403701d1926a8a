"""What the parts of the analysis ask of each other where they need one another: expressions hold calls, calls hold
expressions, and a class that is copied is evaluated as one that is defined."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.source.scopes import Scope

Overlay = dict[str, set[Value]]
"""What some variables of a function hold in one of its calls."""
Keywords = Mapping[str | None, set[Value]]
"""Arguments by name; None stands for ``**``."""


class CallVariables(Overlay):
    """The variables of a function in one of its calls, evaluated when they are asked for."""


@dataclass(slots=True)
class Invocation:
    """A call, what its arguments hold, and where it stands.

    Attributes:
        node: the call; one put together for the purpose where the file has none, as for a decorator.
        arguments: what the arguments given by place hold, starred ones as wholes.
        keywords: what those given by name hold.
        scope: where the call stands.
        overlay: what variables of that scope hold, where one call of its function is followed.
        owners: of ``x.method()``, what ``x`` holds.
    """

    node: ast.Call
    arguments: list[set[Value]]
    keywords: Keywords
    scope: Scope
    overlay: Overlay | None = None
    owners: set[Value] = field(default_factory=set)

    @property
    def first(self) -> set[Value]:
        """What the first argument holds; empty when there is none."""
        return self.arguments[0] if self.arguments else set()


class Expressions(Protocol):
    """Evaluates expressions."""

    def evaluate(self, node: ast.expr, scope: Scope, overlay: Overlay | None = None) -> set[Value]:
        """What an expression can hold; empty when nothing is known."""

    def attribute(self, node: ast.Attribute, owners: set[Value], scope: Scope) -> set[Value]:
        """What an attribute of what its owner holds can hold."""


class Calls(Protocol):
    """Evaluates calls."""

    def call(self, node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        """What a call can give."""

    def apply(self, target: Value, given: Invocation) -> set[Value]:
        """What calling one value can give."""


class ClassDefinitions(Protocol):
    """Evaluates the definitions of classes."""

    def fill_class(self, info: ClassInfo, scope: Scope) -> None:
        """Evaluate the bases and the body of a class."""


class Evaluation:
    """Where the parts that need each other meet; whoever makes them sets all three before any is used."""

    expressions: Expressions
    calls: Calls
    definitions: ClassDefinitions
