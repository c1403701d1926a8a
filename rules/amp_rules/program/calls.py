"""Calls: which function they run, with which arguments, and what they give."""

from __future__ import annotations

import ast

from amp_rules.program.cells import Frame, Overlay
from amp_rules.program.kinds import is_module
from amp_rules.program.libraries import Libraries
from amp_rules.program.partials import Partials
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.syntax import walk
from amp_rules.program.templates import Templates
from amp_rules.program.values import CallSite, FunctionInfo, Value

_MAX_SLICE = 8
_DECISIVE = frozenset({"class", "function", "module", "constant", "sequence", "external"})


class Calls(Libraries, Templates, Partials):
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
        for target in list(targets):
            found |= self._apply(target, node, arguments, keywords, scope, overlay)
        return found

    def _decorate(self, decorator: ast.expr, decorated: set[Value], scope: Scope) -> None:
        """Run a decorator of the project for what it does besides: many enter a class into a registry.

        The decorated name keeps its own value.
        """
        for target in list(self._eval(decorator, scope)):
            if target.kind == "function" or (target.kind == "instance" and not is_module(target)):
                call = self._applications.get(decorator)
                if call is None:
                    call = self._applications[decorator] = ast.Call(decorator, [ast.Name("<decorated>")], [])
                self._apply(target, call, [decorated], {}, scope, None)

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
            target = Value("class", self._own_class(target.ref, node, scope))
            made = Value("instance", target.ref, node)
            self._reach_class(target.ref)
            initializer = target.ref.find_method("__init__")
            if initializer is not None:
                self._apply_function(initializer, node, arguments, keywords, scope, made, is_method=True)
            elif fields := self._fields(target.ref):
                self._record(made, fields, node, arguments, keywords)
            elif self._is_container(target):
                self._fill(made, arguments, keywords)
            return {made}
        if target.kind == "instance":
            for name in ("forward", "__call__"):
                method = target.ref.find_method(name)
                if method is not None:
                    return self._apply_function(method, node, arguments, keywords, scope, target, is_method=True)
            return set()
        if target.kind == "partial":
            return self._apply_partial(target, node, arguments, keywords, scope, overlay)
        if target.kind == "external":
            if target.ref == "functools.partial" and arguments:
                return self._partial(node, arguments, keywords, scope)
            return self._apply_external(target.ref, node, arguments, keywords, scope, overlay)
        if target.kind == "attribute":
            return self._apply_attribute(target, node, arguments, keywords)
        if target.kind == "parameters":
            return {target}
        if target.kind == "object":
            names = self._named_tuple(target)
            if names is not None:
                made = Value("sequence", "named", node)
                self._record(made, names, node, arguments, keywords)
                return {made}
            return {Value("object", f"{target.ref}()#" if not target.ref.endswith("#") else "#", node)}
        return set()

    def _made_by(self, value: Value, info: FunctionInfo, call: ast.Call) -> Value:
        """A model that a factory made is another one for each call of the factory."""
        if value.site is None or not is_module(value):
            return value
        if info.owner is not None and not self._is_registered(info) and not _is_alone(info):
            return value
        inside = value.site in self._sites(info)
        return Value(value.kind, value.ref, call) if inside else value

    def _sites(self, info: FunctionInfo) -> set[ast.AST]:
        found = self._sites_of.get(info.node)
        if found is None:
            found = self._sites_of[info.node] = {node for node in walk(info.node) if isinstance(node, ast.Call)}
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
        if not self._frozen and hasattr(node, "lineno"):
            self._call_callees.setdefault(node, set()).add(info)
            site = self._call_site(node, scope)
            if not any(known.call is site.call for known in info.callers):
                info.callers.append(site)
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
                for parameter in [*parameters[position:], *info.node.args.kwonlyargs]:
                    bound.setdefault(parameter.arg, set()).update(self._element(values, parameter.arg))
                self._keyword_rest(info, "", values)
            elif keyword in names:
                bound.setdefault(keyword, set()).update(values)
            else:
                self._keyword_rest(info, keyword, values)
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

    def _call_site(self, node: ast.Call, scope: Scope) -> CallSite:
        """The call as it stands in the file: not its copy in the class of a registry."""
        original = self._original.get(node)
        if isinstance(original, ast.Call):
            return CallSite(original, self.scopes[self._original[scope.node]])
        return CallSite(node, scope)

    def _returns_for(self, info: FunctionInfo, bound: dict[str, set[Value]]) -> set[Value]:
        direct = {child.id for item in info.returns for child in walk(item) if isinstance(child, ast.Name)}
        frame = self._frame(info, direct, bound)
        if frame is None:
            return set(self._read((info.node, "<return>")))
        if info in self._inlining or len(self._inlining) >= 3:
            return set(self._read((info.node, "<return>")))
        self._inlining.append(info)
        try:
            frame = self._reassigned(info, frame, direct)
            return set().union(*(self._eval(item, info.scope, frame) for item in info.returns))
        finally:
            self._inlining.pop()

    def _frame(self, info: FunctionInfo, direct: set[str], bound: dict[str, set[Value]]) -> Overlay | None:
        """The variables in which this call may differ from others; None where what is returned does not."""
        depends = self._slice_of(info, direct)
        if depends is not None:
            decisive = any(self._is_decisive(value) for name in depends & set(bound) for value in bound[name])
            if decisive and (not info.owner or self._is_registered(info)):
                return Frame(bound)
        return bound if direct & set(bound) else None

    def _reassigned(self, info: FunctionInfo, frame: Overlay, names: set[str]) -> Overlay:
        """Parameters that the function changes before it returns them: ``net = Wrapper(net)``."""
        if isinstance(info.node, ast.Lambda) or (info.owner is not None and is_module(Value("instance", info.owner))):
            return frame
        for name in sorted(names & set(frame)):
            given = self._definitions(info.node).get(name, ())
            if len(given) == 1:
                values = self._eval(given[0], info.scope, frame)
                always = any(isinstance(item, ast.Assign) and item.value is given[0] for item in info.node.body)
                frame[name] = values if values and always else frame[name] | values
        return frame

    def _is_decisive(self, value: Value) -> bool:
        """Whether what a factory makes may depend on the argument."""
        return value.kind in _DECISIVE or (value.kind == "instance" and self._is_registry(value.ref))

    def _slice_of(self, info: FunctionInfo, direct: set[str]) -> set[str] | None:
        """The variables that what is returned is computed from; None when these are too many to look at each time."""
        if info.node not in self._slices:
            definitions = self._definitions(info.node)
            names, pending, size = set(direct), list(direct), 0
            while pending:
                for value in definitions.get(pending.pop(), ()):
                    size += 1
                    found = {child.id for child in walk(value) if isinstance(child, ast.Name)} - names
                    names |= found
                    pending.extend(found)
            self._slices[info.node] = names if 0 < size <= _MAX_SLICE else None
        return self._slices[info.node]

    def _keyword_rest(self, info: FunctionInfo, keyword: str, values: set[Value]) -> None:
        """What ``**kwargs`` of the function holds besides; all items of a mapping where there is no keyword."""
        rest = info.node.args.kwarg
        if rest is None:
            return
        holder = Value("sequence", None, rest)
        if keyword:
            self._write_element(holder, keyword, values)
        else:
            self._copy_items(holder, values)
        self._write((info.node, rest.arg), {holder})

    def _vararg(self, info: FunctionInfo, values: set[Value]) -> None:
        assert info.node.args.vararg is not None
        holder = Value("sequence", None, info.node.args.vararg)
        self._write_element(holder, "*", values)
        self._write((info.node, info.node.args.vararg.arg), {holder})


def _is_alone(info: FunctionInfo) -> bool:
    """Whether a method needs no object: a static one, or one of the class."""
    return info.is_static or "classmethod" in info.decorators
