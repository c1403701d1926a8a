"""One loop, several engines: which loaders reach it through an object whose step runs a backward pass."""

from __future__ import annotations

import ast

from amp_rules.program import blocks
from amp_rules.program.loaders import LoaderUse
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.steps import Program, calling
from amp_rules.program.values import CallSite, FunctionInfo, Value

_MAX_DEPTH = 6


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

    def _given(self, info: FunctionInfo, name: str, depth: int) -> tuple[set[Value], bool]:
        """What a parameter gets from the callers that train, and whether every caller is understood."""
        found: set[Value] = set()
        if depth > _MAX_DEPTH or info.owner is None or not info.callers:
            return found, False
        for caller in info.callers:
            argument = _argument(info, caller, name)
            if argument is None or not isinstance(caller.call.func, ast.Attribute):
                return found, False
            receiver = caller.call.func.value
            if _is_self(receiver, caller.scope) and isinstance(argument, ast.Name):
                outer = self.program.function_of(calling(caller).body)
                if outer is None or argument.id not in {item.arg for item in arguments_of(outer.node)}:
                    return found, False
                more, known = self._given(outer, argument.id, depth + 1)
                found |= more
                if not known:
                    return found, False
                continue
            objects = self.program.flow.values(receiver, caller.scope)
            if not objects or any(value.kind != "instance" for value in objects):
                return found, False
            if any(self._trains(value, info, frozenset()) for value in objects):
                found |= self.program.flow.values(argument, caller.scope)
        return found, True

    def _trains(self, value: Value, info: FunctionInfo, seen: frozenset[ast.AST]) -> bool:
        """Whether the method runs a backward pass when it is called on this very object."""
        if info.node in seen:
            return False
        seen |= {info.node}
        backwards = {site.node for site in self.program.backwards}
        for node in self.program.nodes_of(info.node):
            if node in backwards:
                return True
            if not isinstance(node, ast.Call):
                continue
            if not (isinstance(node.func, ast.Attribute) and _is_self(node.func.value, info.scope)):
                if self.program.runs_backward(node):
                    return True
                continue
            method = value.ref.find_method(node.func.attr)
            if method is not None:
                if self._trains(value, method, seen):
                    return True
                continue
            functions = self._kept(value, node.func.attr)
            if functions is None:
                functions = self.program.flow.callees(node)
            if any(self.program.runs_backward(part) for item in functions for part in blocks.own_parts(item.node)):
                return True
        return False

    def _kept(self, value: Value, attribute: str) -> set[FunctionInfo] | None:
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


def _argument(info: FunctionInfo, caller: CallSite, name: str) -> ast.expr | None:
    """What a call gives for a parameter by its place or name."""
    call = caller.call
    is_named = any(item.arg == name for item in call.keywords)
    if not is_named and any(isinstance(item, ast.Starred) for item in call.args):
        return None
    return info.argument(call, name)


def _is_self(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Name) and node.id == "self" and scope.is_function
