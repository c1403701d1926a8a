"""What the calls in a file give to its functions: types for parameters of which a function itself says nothing.

:mod:`amp_rules.lattice.callers` drops what no call can bring about. Here a single call is enough: if one gives a half
tensor, what the function does with half tensors is done. Nothing is asked before a rule would have something to say
about half tensors; then each function that calls is run once, and the calls that it makes are remembered.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.abstract_values import ASSUMED, NUM, OTHER, TENSORS, Value
from amp_rules.lattice.frame import Frame, RunsFunctions
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.torch.idioms import NAMED_TRIAL

_MAX_CALLERS = 12
"""Functions that are asked: a helper that more functions use is given everything by one of them."""

Arguments = dict[str, Value]


class GivenTypes:
    """The calls that the functions of a file make, found when they are first asked for.

    Args:
        machine: runs the functions.
    """

    def __init__(self, machine: RunsFunctions) -> None:
        self._machine = machine
        self._heard: set[ast.AST] = set()
        self._asked: set[ast.AST] = set()
        self._given: dict[ast.AST, list[tuple[Arguments, bool]]] = {}

    def take(
        self, frame: Frame, node: ast.Call, function: FunctionFacts, args: list[Value], kwargs: Arguments | None
    ) -> None:
        """Note a call that the running function makes itself."""
        names = function.positional
        if frame.caller is not None or len(args) > len(names) or any(item.op == "starred" for item in args):
            return
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        self._given.setdefault(function.node, []).append((given, frame.autocast))

    def to(self, function: FunctionFacts) -> Arguments | None:
        """The parameters of a function as the call has them that gives the most half tensors, or None."""
        for caller in _callers(function):
            if caller.node not in self._heard:
                self._heard.add(caller.node)
                self._machine.listen(caller, self)
        if function.node not in self._given and function.cls is None and function.outer is None:
            for caller in _callers_elsewhere(function, self._machine.project.users(function)):
                if caller.node not in self._heard:
                    self._heard.add(caller.node)
                    self._machine.listen(caller, self)
        best = self._most_halves(function)
        heard = self._given.get(function.node, ())
        if best is None and any(_is_type_given_on(item) for given, _ in heard for item in given.values()):
            self._handed_on(function)
            best = self._most_halves(function)
        return _seeds(function, best) if best is not None else None

    def _handed_on(self, function: FunctionFacts) -> None:
        """Ask the functions that hand on a type that they are given themselves."""
        for caller in _callers(function):
            if caller.node in self._asked or caller.is_forward:
                continue
            self._asked.add(caller.node)
            given, handed = self.to(caller), self._machine.handed
            if given is not None:
                kept = handed.get(caller.node)
                handed[caller.node] = given
                self._machine.listen(caller, self)
                handed.pop(caller.node)
                if kept is not None:
                    handed[caller.node] = kept

    def _most_halves(self, function: FunctionFacts) -> Arguments | None:
        """The call of those that were heard that gives the most half tensors."""
        best: Arguments | None = None
        count = 0
        for given, autocast in self._given.get(function.node, ()):
            halves = sum(_is_half(item) for item in given.values())
            if halves > count and autocast is self._machine.mode.autocast:
                best, count = given, halves
        return best


def may_be_called(function: FunctionFacts) -> bool:
    """Whether the file may have a call of a function, or another file: as far as that is quick to see."""
    called = function.cls.name if function.is_forward and function.cls is not None else function.name
    if called.startswith("__"):
        return False
    if function.cls is None and not called.startswith("_"):
        return True
    return function.module.module.source.text.count(f"{called}(") > 1


def _callers(function: FunctionFacts) -> list[FunctionFacts]:
    """The functions of the file that call a function, but for those that try things out."""
    known = {item.node: item for item in function.module.all_functions()}
    found: dict[ast.AST, FunctionFacts] = {}
    index = function.module.index
    for use in _uses(function):
        around = [known[item] for item in index.ancestors(use) if item in known]
        if around and around[-1].node is not function.node and not around[-1].name.startswith(NAMED_TRIAL):
            found[around[-1].node] = around[-1]
    return list(found.values())[:_MAX_CALLERS]


def _callers_elsewhere(function: FunctionFacts, users: list[ModuleFacts]) -> list[FunctionFacts]:
    """The functions of other files that call a function."""
    found: dict[ast.AST, FunctionFacts] = {}
    for module in users:
        known = {item.node: item for item in module.all_functions()}
        for call in module.index.named.get(function.name, ()):
            around = [known[item] for item in module.index.ancestors(call) if item in known]
            if around and not around[-1].name.startswith(NAMED_TRIAL):
                found[around[-1].node] = around[-1]
    return list(found.values())[:_MAX_CALLERS]


def _uses(function: FunctionFacts) -> Iterator[ast.AST]:
    """Where a function is named; the forward pass of a module by the attributes that hold one."""
    index = function.module.index
    if not function.is_forward or function.cls is None:
        yield from index.uses(function.name)
        return
    for made in index.named.get(function.cls.name, ()):
        yield made
        for target, value, _ in index.assignments:
            if isinstance(target, (ast.Attribute, ast.Name)) and _stands_in(made, value):
                yield from index.uses(target.attr if isinstance(target, ast.Attribute) else target.id)


def _stands_in(node: ast.AST, value: ast.expr) -> bool:
    return value.lineno <= node.lineno <= (value.end_lineno or value.lineno) and (  # type: ignore[attr-defined]
        node is value or any(item is node for item in ast.walk(value))
    )


def _is_type_given_on(value: Value) -> bool:
    """Whether it is a type that the caller has from its own caller; the name saves asking of everything else."""
    return value.op == "param" and isinstance(value.data, str) and "dtype" in value.data


def _is_half(value: Value) -> bool:
    """Whether it is a half tensor for certain, or the type of one: ``x.dtype``."""
    if value.op == "dtype" and value.args:
        return _is_half(value.args[0])
    return value.low and value.tensor == 2


def _seeds(function: FunctionFacts, given: Arguments) -> Arguments:
    found = {}
    arguments = function.node.args
    for item in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        value = given.get(item.arg)
        if value is not None and value.op == "dtype" and _is_half(value):
            found[item.arg] = Value("dtype", item, value.args)
            continue
        if value is None or not value.tensor or not value.dtypes & TENSORS:
            continue
        made = Value("param", item, (), value.dtypes & ~(NUM | OTHER), value.tensor, value.bits & ~ASSUMED)
        made.data = item.arg
        made.lo, made.hi = value.lo, value.hi
        found[item.arg] = made
    return found
