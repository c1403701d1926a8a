"""Calls: which function they run, with which arguments, and what they give."""

from __future__ import annotations

import ast

from amp_rules.program.cells import Overlay
from amp_rules.program.kinds import is_module
from amp_rules.program.libraries import Libraries
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.values import CallSite, FunctionInfo, Value


class Calls(Libraries):
    """Calls of functions, classes and objects of the project; what is not is handed on."""

    def _call(self, node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and scope.is_function:
            return self._super(scope)
        targets = self._eval(node.func, scope, overlay)
        arguments = [self._eval(argument, scope, overlay) for argument in node.args]
        keywords = {item.arg: self._eval(item.value, scope, overlay) for item in node.keywords}
        for values in [*arguments, *keywords.values()]:
            for value in values:
                if value.kind == "function":
                    self._reach(value.ref)
        found: set[Value] = set()
        for target in targets:
            found |= self._apply(target, node, arguments, keywords, scope, overlay)
        return found

    def _super(self, scope: Scope) -> set[Value]:
        info = self.functions.get(scope.node)
        if info is None or info.owner is None:
            return set()
        found: set[Value] = set()
        for base in info.owner.bases:
            if base.kind == "class":
                found.add(Value("instance", base.ref))
        return found

    def _apply(
        self,
        target: Value,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
        overlay: Overlay | None,
    ) -> set[Value]:
        if target.kind == "function":
            given = self._apply_function(target.ref, node, arguments, keywords, scope, target.receiver)
            given = {self._made_by(value, target.ref, node) for value in given}
            if target.ref.name in ("parameters", "named_parameters") and target.receiver is not None:
                return {Value("parameters", target.receiver)}
            return given
        if target.kind == "class":
            made = Value("instance", target.ref, node)
            self._reach_class(target.ref)
            initializer = target.ref.find_method("__init__")
            if initializer is not None:
                self._apply_function(initializer, node, arguments, keywords, scope, made, is_method=True)
            return {made}
        if target.kind == "instance":
            for name in ("forward", "__call__"):
                method = target.ref.find_method(name)
                if method is not None:
                    return self._apply_function(method, node, arguments, keywords, scope, target, is_method=True)
            return set()
        if target.kind == "external":
            return self._apply_external(target.ref, node, arguments, keywords, scope)
        if target.kind == "attribute":
            return self._apply_attribute(target, node, arguments, keywords)
        if target.kind == "parameters":
            return {target}
        if target.kind == "object":
            return {Value("object", f"{target.ref}()#" if not target.ref.endswith("#") else "#", node)}
        return set()

    def _made_by(self, value: Value, info: FunctionInfo, call: ast.Call) -> Value:
        """A model that a factory made is another one for each call of the factory."""
        if value.site is None or not is_module(value) or info.owner is not None:
            return value
        inside = value.site in self._sites(info)
        return Value(value.kind, value.ref, call) if inside else value

    def _sites(self, info: FunctionInfo) -> set[ast.AST]:
        found = self._sites_of.get(info.node)
        if found is None:
            found = self._sites_of[info.node] = {node for node in ast.walk(info.node) if isinstance(node, ast.Call)}
        return found

    def _apply_function(
        self,
        info: FunctionInfo,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
        receiver: Value | None,
        *,
        is_method: bool = False,
    ) -> set[Value]:
        self._reach(info)
        if not self._frozen:
            self._call_callees.setdefault(node, set()).add(info)
            if not any(site.call is node for site in info.callers):
                info.callers.append(CallSite(node, scope))
        parameters = [*info.node.args.posonlyargs, *info.node.args.args]
        bound: dict[str, set[Value]] = {}
        takes_receiver = not info.is_static and (
            is_method or (receiver is not None and (receiver.kind == "instance" or "classmethod" in info.decorators))
        )
        if takes_receiver and parameters and receiver is not None:
            bound[parameters[0].arg] = {receiver}
            parameters = parameters[1:]
        position = 0
        for argument, values in zip(node.args, arguments, strict=False):
            if isinstance(argument, ast.Starred):
                spread = self.elements(values)
                for parameter in parameters[position:]:
                    bound.setdefault(parameter.arg, set()).update(spread)
                position = len(parameters)
            elif position < len(parameters):
                bound.setdefault(parameters[position].arg, set()).update(values)
                position += 1
            elif info.node.args.vararg is not None:
                self._vararg(info, values)
        names = {argument.arg for argument in arguments_of(info.node)}
        for keyword, values in keywords.items():
            if keyword is None:
                spread = self.elements(values)
                for parameter in [*parameters[position:], *info.node.args.kwonlyargs]:
                    bound.setdefault(parameter.arg, set()).update(spread)
            elif keyword in names:
                bound.setdefault(keyword, set()).update(values)
        for name, values in bound.items():
            self._write((info.node, name), values)
        yields = self._read((info.node, "<yield>"))
        if info.yields:
            made = Value("sequence", None, info.node)
            self._write_element(made, "*", yields)
            return {made}
        if len(info.returns) <= 4 and bound:
            return self._returns_for(info, bound)
        return set(self._read((info.node, "<return>")))

    def _returns_for(self, info: FunctionInfo, bound: dict[str, set[Value]]) -> set[Value]:
        direct = {child.id for item in info.returns for child in ast.walk(item) if isinstance(child, ast.Name)}
        if not direct & set(bound):
            return set(self._read((info.node, "<return>")))
        if info in self._inlining or len(self._inlining) >= 3:
            return set(self._read((info.node, "<return>")))
        self._inlining.append(info)
        try:
            return set().union(*(self._eval(item, info.scope, bound) for item in info.returns))
        finally:
            self._inlining.pop()

    def _vararg(self, info: FunctionInfo, values: set[Value]) -> None:
        assert info.node.args.vararg is not None
        holder = Value("sequence", None, info.node.args.vararg)
        self._write_element(holder, "*", values)
        self._write((info.node, info.node.args.vararg.arg), {holder})
