"""One loop, several engines: which loaders reach it through an object whose step runs a backward pass."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.flow.values import CallSite, Value
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope

_MAX_DEPTH = 6
"""Callers that a parameter is followed through; engines hand a loader on two or three times. Beyond, the use is taken
with all its loaders, as where nothing is known."""


class Receivers:
    """Tells ``trainer.run(train_loader)`` from ``evaluator.run(val_loader)`` where both run the same method."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def trained_on(self, use: LoaderUse) -> LoaderUse:
        """The use with the loaders only that a training object is given; the use itself where that is not known."""
        if len(use.values) < 2 or not isinstance(use.loader, ast.Name):
            return use
        info = self.program.function_of(use.scope.owner(use.loader.id).node)
        if info is None:
            return use
        trained, known = self._given(info, use.loader.id, 0)
        kept = use.values & trained
        if not known or not kept:
            return use
        return LoaderUse(use.module, use.scope, use.body, use.node, use.loader, kept)

    def _given(self, info: FunctionFacts, name: str, depth: int) -> tuple[set[Value], bool]:
        """What a parameter gets from the callers that train, and whether every caller is understood."""
        found: set[Value] = set()
        if depth > _MAX_DEPTH or info.cls is None or not self.program.flow.callers(info):
            return found, False
        for caller in self.program.flow.callers(info):
            argument = _argument(info, caller, name)
            if argument is None or not isinstance(caller.call.func, ast.Attribute):
                return found, False
            receiver = caller.call.func.value
            if _is_self(receiver, caller.scope) and isinstance(argument, ast.Name):
                outer = self.program.function_of(calling(caller).body)
                if outer is None or argument.id not in outer.parameters:
                    return found, False
                more, known = self._given(outer, argument.id, depth + 1)
                found |= more
                if not known:
                    return found, False
                continue
            objects = self.program.flow.values(receiver, caller.scope)
            if not objects or any(value.kind != "instance" for value in objects):
                return found, False
            if any(self._trains(value, info) for value in objects):
                found |= self.program.flow.values(argument, caller.scope)
        return found, True

    def _trains(self, value: Value, info: FunctionFacts) -> bool:
        """Whether the method runs a backward pass when it is called on this very object."""
        seen: set[ast.AST] = set()
        pending = [info]
        while pending:
            current = pending.pop()
            if current.node in seen:
                continue
            seen.add(current.node)
            for node in self.program.nodes_of(current.node):
                if node in self._backwards:
                    return True
                if not isinstance(node, ast.Call):
                    continue
                if not (
                    isinstance(node.func, ast.Attribute)
                    and _is_self(node.func.value, self.program.flow.scopes[current.node])
                ):
                    if self.program.runs_backward(node):
                        return True
                    continue
                method = value.ref.find_method(node.func.attr)
                if method is not None:
                    pending.append(method)
                elif self._runs_backward_elsewhere(value, node, node.func.attr):
                    return True
        return False

    @cached_property
    def _backwards(self) -> set[ast.AST]:
        return {site.node for site in self.program.backwards}

    def _runs_backward_elsewhere(self, value: Value, call: ast.Call, attribute: str) -> bool:
        """Whether ``self.attribute(...)``, which is no method, runs a backward pass."""
        functions = self._kept(value, attribute)
        if functions is None:
            functions = self.program.flow.callees(call)
        return any(self.program.runs_backward(part) for item in functions for part in blocks.own_parts(item.node))

    def _kept(self, value: Value, attribute: str) -> set[FunctionFacts] | None:
        """The functions that this object's constructor was given for an attribute; None when that is not plain."""
        made = value.site
        initializer = value.ref.find_method("__init__")
        located = self.program.locate(made) if isinstance(made, ast.Call) else None
        if located is None or initializer is None or not isinstance(made, ast.Call):
            return None
        for node in self.program.nodes_of(initializer.node):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                if f"self.{attribute}" in {blocks.path_of(target) for target in node.targets}:
                    argument = _argument(initializer, CallSite(made, located[1]), node.value.id)
                    if argument is None:
                        return None
                    values = self.program.flow.values(argument, located[1])
                    values = {item.ref if item.kind == "partial" else item for item in values}
                    if any(item.kind != "function" for item in values):
                        return None
                    return {item.ref for item in values}
        return None


def _argument(info: FunctionFacts, caller: CallSite, name: str) -> ast.expr | None:
    """What a call gives for a parameter by its place or name."""
    call = caller.call
    is_named = any(item.arg == name for item in call.keywords)
    if not is_named and any(isinstance(item, ast.Starred) for item in call.args):
        return None
    return info.argument(call, name)


def _is_self(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Name) and node.id == "self" and scope.is_function
