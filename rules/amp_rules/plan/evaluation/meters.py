"""Objects that average: classes whose ``update`` adds to sums, and what they work out of these."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.evaluation.assignments import targets_of
from amp_rules.source.facts import FunctionFacts

_RESET = "reset"


@dataclass(frozen=True)
class Meter:
    """How a class averages.

    Attributes:
        method: what is called for each batch.
        receiver: the name that its object has in it.
        sums: the attributes that it adds to; they begin with 0.
        derived: attributes that it works out of the sums, each with the expression; ``self`` is the object.
        last: attributes that hold what the last batch gave.
        readers: methods that give back what they work out of sums alone.
    """

    method: str
    receiver: str
    sums: tuple[str, ...]
    derived: tuple[tuple[str, ast.expr], ...]
    last: frozenset[str]
    readers: frozenset[str]

    @property
    def shown(self) -> frozenset[str]:
        """What says the same of all processes when the sums do."""
        return frozenset((*self.sums, *(name for name, _ in self.derived))) | self.readers


def meter_of(cls: ClassInfo, method: str) -> Meter | None:
    """How objects of a class average when ``method`` is called; None where it does anything else."""
    if cls.bases or cls.external_bases():
        return None if cls.external_bases() - {"builtins.object"} else _own(cls, method)
    return _own(cls, method)


def _own(cls: ClassInfo, method: str) -> Meter | None:
    update = cls.find_method(method)
    if update is None or update.receiver is None or update.decorator_list:
        return None
    found = _Updating(update)
    if not found.run(update.body) or not found.sums or not _begins(cls, found.sums):
        return None
    readers = frozenset(
        name
        for info in cls.mro()
        for name, facts in info.facts.methods.items()
        if _is_reader(facts, {*found.sums, *found.derived})
    )
    return Meter(
        method, update.receiver, tuple(found.sums), tuple(found.derived.items()), frozenset(found.last), readers
    )


class _Updating:
    """What a method does to its object: nothing else than to add, to work out, and to keep the last value."""

    def __init__(self, info: FunctionFacts) -> None:
        assert info.receiver is not None
        self._me = info.receiver
        self.sums: list[str] = []
        self.derived: dict[str, ast.expr] = {}
        self.last: list[str] = []

    def run(self, statements: list[ast.stmt]) -> bool:
        return all(map(self._takes, statements)) and not (set(self.sums) & {*self.derived, *self.last})

    def _takes(self, item: ast.stmt) -> bool:
        if isinstance(item, ast.Pass) or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
            return True
        if isinstance(item, ast.If):
            # The value is made a number: ``if isinstance(v, torch.Tensor): v = v.item()``. The object has no part.
            inner = [*item.body, *item.orelse]
            return not self._mentions(item) and all(isinstance(part, ast.Assign) for part in inner)
        if isinstance(item, ast.AugAssign) and isinstance(item.op, ast.Add):
            name = self._attribute(item.target)
            return name is not None and self._adds(name, item.value)
        if not (isinstance(item, ast.Assign) and len(item.targets) == 1):
            return False
        (target,) = item.targets
        if not self._mentions(item):
            return isinstance(target, ast.Name)
        name = self._attribute(target)
        if name is None:
            return False
        value = item.value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            for one, other in ((value.left, value.right), (value.right, value.left)):
                if self._attribute(one) == name:
                    return self._adds(name, other)
        return self._works_out(name, value)

    def _adds(self, name: str, value: ast.expr) -> bool:
        if self._mentions(value):
            return False
        if name not in self.sums:
            self.sums.append(name)
        return not self.derived

    def _works_out(self, name: str, value: ast.expr) -> bool:
        if not self._mentions(value):
            self.last.append(name)
            return True
        names = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)}
        calls = any(isinstance(part, ast.Call) and not isinstance(part.func, ast.Name) for part in ast.walk(value))
        read = {part.attr for part in ast.walk(value) if isinstance(part, ast.Attribute)}
        if calls or names - {self._me, "max", "float", "int", "min"} or not read <= {*self.sums, *self.derived}:
            return False
        self.derived[name] = value
        return True

    def _attribute(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self._me:
            return node.attr
        return None

    def _mentions(self, node: ast.AST) -> bool:
        return any(isinstance(part, ast.Name) and part.id == self._me for part in ast.walk(node))


def _begins(cls: ClassInfo, sums: list[str]) -> bool:
    """Whether a new object has 0 in its sums: by ``__init__``, or by ``reset`` which it calls."""
    start = cls.find_method("__init__")
    if start is None:
        return False
    return set(sums) <= _zeros(start) or (_calls_reset(start) and is_reset(cls, sums))


def is_reset(cls: ClassInfo, sums: list[str] | tuple[str, ...]) -> bool:
    """Whether ``reset()`` sets the sums to 0."""
    reset = cls.find_method(_RESET)
    return reset is not None and set(sums) <= _zeros(reset)


def _calls_reset(info: FunctionFacts) -> bool:
    return any(
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Call)
        and isinstance(item.value.func, ast.Attribute)
        and item.value.func.attr == _RESET
        and isinstance(item.value.func.value, ast.Name)
        and item.value.func.value.id == info.receiver
        for item in info.body
    )


def _zeros(info: FunctionFacts) -> set[str]:
    return {
        part.attr
        for item in info.body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant) and item.value.value in (0, 0.0)
        if not isinstance(item.value.value, bool)
        for target in item.targets
        for part in targets_of(target)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == info.receiver
    }


def _is_reader(info: FunctionFacts, known: set[str]) -> bool:
    """Whether a method or property reads nothing but sums of its object, and changes nothing."""
    if info.receiver is None or info.name.startswith("__") or info.is_generator:
        return False
    for node in info.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == info.receiver:
            if node.attr not in known or not isinstance(node.ctx, ast.Load):
                return False
            continue
        stores = isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store)
        if stores or isinstance(node, (ast.Global, ast.Nonlocal, ast.Delete)):
            return False
    return not any(
        isinstance(node, ast.Name) and node.id == info.receiver and not _is_of_attribute(info, node)
        for node in info.nodes
    )


def _is_of_attribute(info: FunctionFacts, name: ast.Name) -> bool:
    return any(isinstance(node, ast.Attribute) and node.value is name for node in info.nodes)
