"""The abstract values that the names of a program can hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from amp_rules.program.modules import Module
from amp_rules.program.scopes import FunctionNode, Scope

Kind = Literal[
    "external",  # a name of a library: ref is its qualified name
    "object",  # what calling something of a library gave: ref is the qualified name called
    "attribute",  # an attribute or method of such an object: ref is (qualified name, attribute)
    "module",  # a module of the project: ref is a Module
    "class",  # a class of the project: ref is a ClassInfo
    "function",  # a function of the project: ref is a FunctionInfo
    "instance",  # an object of a class of the project: ref is its ClassInfo
    "sequence",  # a list, tuple, dict or generator: its elements are kept by site
    "batch",  # what iterating a loader gives: ref is the loader's value
    "parameters",  # some of a model's parameters: ref is the model's value
    "partial",  # what functools.partial made of a function, class or object of the project: ref is its value
    "constant",  # a literal: ref is the constant
]


@dataclass(frozen=True)
class Value:
    """One abstract value; ``site`` tells values of one kind apart by where they were made."""

    kind: Kind
    ref: Any
    site: ast.AST | None = None
    receiver: Value | None = None

    @property
    def name(self) -> str:
        """The qualified name of what a library gave, else an empty string."""
        return self.ref if self.kind in ("external", "object") else ""


class ClassInfo:
    """A class of the project."""

    def __init__(self, node: ast.ClassDef, scope: Scope, outer: Scope) -> None:
        self.node = node
        self.name = node.name
        self.scope = scope
        self.outer = outer
        self.module: Module = scope.module
        self.bases: list[Value] = []
        self.methods: dict[str, FunctionInfo] = {}
        self.reached = False

    def __repr__(self) -> str:
        return f"class {self.name}"

    def mro(self) -> list[ClassInfo]:
        """This class and its bases within the project, the nearest first."""
        found: list[ClassInfo] = []
        pending = [self]
        while pending:
            info = pending.pop(0)
            if info in found:
                continue
            found.append(info)
            pending.extend(base.ref for base in info.bases if base.kind == "class")
        return found

    def external_bases(self) -> set[str]:
        """Qualified names of the bases that come from libraries."""
        return {base.ref for info in self.mro() for base in info.bases if base.kind == "external"}

    def find_method(self, name: str) -> FunctionInfo | None:
        """The method that attribute access would find."""
        for info in self.mro():
            if name in info.methods:
                return info.methods[name]
        return None


class FunctionInfo:
    """A function, method or lambda of the project."""

    def __init__(self, node: FunctionNode, scope: Scope, owner: ClassInfo | None) -> None:
        self.node = node
        self.scope = scope
        self.owner = owner
        self.module: Module = scope.module
        self.name = getattr(node, "name", "<lambda>")
        self.returns: list[ast.expr] = []
        self.yields: list[ast.expr] = []
        self.callers: list[CallSite] = []
        self.decorators: list[str] = []
        self.reached = False

    def __repr__(self) -> str:
        return f"def {self.name}"

    @property
    def is_static(self) -> bool:
        """Whether it takes neither ``self`` nor ``cls``."""
        return self.owner is None or "staticmethod" in self.decorators

    @property
    def positional(self) -> list[str]:
        """The parameters that a call can give by their place, ``self`` included."""
        return [argument.arg for argument in [*self.node.args.posonlyargs, *self.node.args.args]]

    @property
    def offset(self) -> int:
        """How many of them no call gives: ``self`` or ``cls``."""
        return 0 if self.is_static else 1

    def argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """What a call gives for a parameter by its name or place; None where it gives nothing."""
        for item in call.keywords:
            if item.arg == name:
                return item.value
        names = self.positional
        index = names.index(name) - self.offset if name in names else -1
        return call.args[index] if 0 <= index < len(call.args) else None

    def bound(self, call: ast.Call) -> Iterator[tuple[str | None, ast.expr]]:
        """Yield what a call gives with the parameter that gets it; None for ``**``."""
        yield from zip(self.positional[self.offset :], call.args, strict=False)
        for item in call.keywords:
            yield item.arg, item.value

    @property
    def is_property(self) -> bool:
        """Whether attribute access calls it."""
        return "property" in self.decorators or "cached_property" in self.decorators


@dataclass(frozen=True)
class CallSite:
    """A call and the body it stands in."""

    call: ast.Call
    scope: Scope


@dataclass
class Cell:
    """What one variable, attribute or element can hold, and the bodies that read it."""

    values: set[Value] = field(default_factory=set)
    readers: set[ast.AST] = field(default_factory=set)
