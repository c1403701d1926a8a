"""Functions that run what they find by a name in a module that they are given: ``getattr(module, name)(*args)``.

What is found is known of all their calls together. One of them finds only what its own module has, and in a library's
module nothing of the program: ``init_obj(config, torchaudio.transforms)`` makes no data set, though
``init_obj(config, datasets)`` does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import CallSite, Value
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name


class FoundByName:
    """Answers for the values of one program."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._members: dict[Value, set[Value]] = {}

    def callees(self, call: ast.Call) -> set[FunctionFacts]:
        """Functions that a call can run; what is found by a name counts where the module is given."""
        within, found = self._finders
        if call in within:
            return set()
        callees = self._flow.callees(call)
        return callees | found[call] if call in found else callees

    def callers(self, info: FunctionFacts, node: ast.AST, run: FunctionFacts | None) -> list[CallSite]:
        """The calls of a function; of those that a name decides, the ones by which one of its nodes runs another."""
        callers = self._flow.callers(info)
        return callers if run is None else [item for item in callers if self.may_find(info, node, item, run)]

    def may_find(self, info: FunctionFacts, node: ast.AST, caller: CallSite, wanted: FunctionFacts) -> bool:
        """Whether a node of a function, which runs another for some call of it, may do so for this one."""
        name = _module_asked(node)
        if name is None or name not in info.parameters:
            return True
        scope = self._flow.scopes.get(info.node)
        given = info.argument_or_default(caller.call, name)
        values = self._flow.values(given, caller.scope) if given is not None else set()
        if scope is None or not values:
            return True
        for other in _assigned(info, name, scope):
            if other is None:
                return True
            values = values | self._flow.values(other, scope)
        return any(self._may_give(value, wanted) for value in values)

    def _may_give(self, module: Value, wanted: FunctionFacts) -> bool:
        """Whether a module has a function, or the class whose method it is; nothing of a library's is the program's."""
        if module.kind != "module":
            return module.kind != "external"
        members = self._members.get(module)
        if members is None:
            members = self._members[module] = self._flow.members(module)
        owner = self._flow.class_of(wanted) if wanted.cls is not None else None
        if owner is None:
            return True
        return any(owner in item.ref.mro() for item in members if item.kind == "class")

    @cached_property
    def _finders(self) -> tuple[set[ast.Call], dict[ast.Call, set[FunctionFacts]]]:
        """The calls that run what is found, and what the calls of their functions find."""
        within: set[ast.Call] = set()
        found: dict[ast.Call, set[FunctionFacts]] = {}
        for info in self._flow.functions.values():
            callers = self._flow.callers(info)
            for node in _finding(info) if callers else ():
                within.add(node)
                callees = self._flow.callees(node)
                for caller in callers:
                    given = {item for item in callees if self.may_find(info, node, caller, item)}
                    found.setdefault(caller.call, set()).update(given)
        return within, found


def _finding(info: FunctionFacts) -> Iterator[ast.Call]:
    for node in blocks.walk_body(info.node):
        if isinstance(node, ast.Call) and _module_asked(node) in info.parameters:
            yield node


def _module_asked(node: ast.AST) -> str | None:
    """The variable in which a call finds what it runs."""
    look = node.func if isinstance(node, ast.Call) else None
    if not isinstance(look, ast.Call) or called_name(look) != "getattr" or not look.args:
        return None
    owner = look.args[0]
    return owner.id if isinstance(owner, ast.Name) else None


def _assigned(info: FunctionFacts, name: str, scope: Scope) -> Iterator[ast.expr | None]:
    """Yield what a function sets one of its parameters to; None where it is bound in another way."""
    for item in blocks.walk_body(info.node):
        if isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, ast.Store):
            statement = scope.module.parents[item]
            yield statement.value if isinstance(statement, ast.Assign) else None
