"""What calls of libraries and containers give."""

from __future__ import annotations

import ast

from amp_rules.program.cells import Overlay
from amp_rules.program.records import Records
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.values import Value
from amp_rules.tables import torch_api as api

# Of the parts of a model no more is asked than whose parameters they hold.
_PARTS = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children", "named_children"})
_CONTAINER_METHODS = frozenset(
    """
    append add insert appendleft extend update values copy items get pop setdefault popleft __getitem__
    """.split()
)


class Libraries(Records):
    """Calls of what is not the project's own."""

    def _apply_external(
        self,
        name: str,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
        overlay: Overlay | None,
    ) -> set[Value]:
        first = arguments[0] if arguments else set()
        reflected = self._reflected(name, node, arguments, scope, overlay)
        if reflected is not None:
            return reflected
        if name == "builtins.getattr" and len(node.args) >= 2:
            return self._getattr(first, node, scope, overlay)
        if name == "builtins.next":
            return self.elements(first)
        if name == "builtins.enumerate":
            pair = Value("sequence", "pair", node)
            self._write_element(pair, 1, self.elements(first))
            return self._rows(pair, node)
        if name == "builtins.zip":
            pair = Value("sequence", "pair", node)
            for index, values in enumerate(arguments):
                self._write_element(pair, index, self.elements(values))
            return self._rows(pair, node)
        if name in api.RETURNS_FIRST_ARGUMENT:
            values = first or keywords.get("module", set()) or keywords.get("iterable", set())
            if name == "builtins.filter":
                return arguments[1] if len(arguments) > 1 else set()
            return values
        if name in api.COPIES_FIRST_ARGUMENT:
            return {
                Value(value.kind, value.ref, node) if value.kind in ("object", "instance") else value for value in first
            }
        if name == "builtins.map":
            made = Value("sequence", "map", node)
            results: set[Value] = set()
            for value in first:
                if value.kind == "function":
                    parameters = [argument.arg for argument in arguments_of(value.ref.node)]
                    for parameter, values in zip(parameters, arguments[1:], strict=False):
                        self._write((value.ref.node, parameter), self.elements(values))
                    results |= self._read((value.ref.node, "<return>"))
            self._write_element(made, "*", results)
            return {made}
        if name in ("itertools.chain", "itertools.chain.from_iterable"):
            made = Value("sequence", None, node)
            for values in arguments:
                self._write_element(made, "*", self.elements(values) | {v for v in values if v.kind == "parameters"})
            return {made}
        if name == "builtins.dict":
            if first:
                return first
            made = Value("sequence", None, node)
            for keyword, values in keywords.items():
                if keyword is not None:
                    self._write_element(made, keyword, values)
            return {made}
        if name in api.CONFIG_LOADERS:
            return {Value("sequence", "loaded", node)}
        made = Value("object", name, node)
        if name == "collections.defaultdict":
            self._write_element(made, "*", self._made_by_default(first, node, scope, overlay))
        if name in api.NAMESPACES or (name in api.CONTAINERS and name != "torch.nn.ModuleList"):
            self._fill(made, arguments, keywords)
        if name.endswith(".Sequential") or name.endswith("ModuleList"):
            for values in arguments:
                self._write_element(made, "*", values | self.elements(values))
        return {made}

    def _made_by_default(
        self, factories: set[Value], node: ast.Call, scope: Scope, overlay: Overlay | None
    ) -> set[Value]:
        """What a ``defaultdict`` holds where nothing was put."""
        found: set[Value] = set()
        for factory in factories:
            if factory.kind == "external":
                found.add(Value("sequence", "default", node))
            elif node.args:
                call = self._applications.setdefault(node.args[0], ast.Call(node.args[0], [], []))
                found |= self._apply(factory, call, [], {}, scope, overlay)
        return found

    def _getattr(self, owners: set[Value], node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        texts = self._texts(node.args[1], scope, overlay)
        pattern = self._pattern(node.args[1], scope, overlay)
        found: set[Value] = set()
        for owner in owners:
            # Only a module has more under a name from a table than the table tells: defaults are overridden.
            if texts and (isinstance(node.args[1], ast.Constant) or owner.kind == "instance"):
                for text in sorted(texts):
                    found |= self._attribute_of(owner, text)
            else:
                found |= self._members(owner) | self._attributes_like(owner, pattern)
        return found

    def _apply_attribute(
        self,
        target: Value,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
    ) -> set[Value]:
        owner, name = target.ref
        receiver = target.receiver
        assert receiver is not None
        if receiver.kind == "sequence" or (name in _CONTAINER_METHODS and self._is_container(receiver)):
            if name == "update":
                self._fill(receiver, arguments, keywords)
            return self._sequence_method(receiver, name, node, arguments)
        if owner == "__dict__":
            return self._dictionary_method(receiver, name, node, arguments)
        if name == "add_argument":
            self._declare_option(node)
        if name in api.RETURNS_RECEIVER:
            return {receiver}
        if name in _PARTS and receiver.kind in (
            "object",
            "instance",
            "attribute",
        ):
            return {Value("parameters", receiver)}
        if receiver.kind == "object" and name in ("__next__", "next"):
            return self.elements({receiver})
        # Chains of methods on what methods gave (tensors, mostly) end in one value, or they would never stop growing.
        if owner.endswith("#"):
            return {Value("object", "#")}
        return {Value("object", f"{owner or receiver.ref}.{name}#", node)}

    def _is_container(self, value: Value) -> bool:
        if value.kind == "object":
            return value.ref in api.CONTAINERS
        return value.kind in ("instance", "class") and bool(api.CONTAINERS & value.ref.external_bases())

    def _sequence_method(self, receiver: Value, name: str, node: ast.Call, arguments: list[set[Value]]) -> set[Value]:
        if name in ("append", "add", "insert", "appendleft"):
            self._write_element(receiver, "*", arguments[-1] if arguments else set())
        elif name == "extend":
            self._write_element(receiver, "*", self.elements(arguments[0]) if arguments else set())
        elif name == "copy":
            made = Value("sequence", "loaded" if receiver.ref == "loaded" else name, node)
            self._copy_items(made, {receiver})
            return {made}
        elif name == "values":
            made = Value("sequence", name, node)
            self._write_element(made, "*", self.elements({receiver}))
            return {made}
        elif name == "items":
            pair = Value("sequence", "pair", node)
            self._write_element(pair, 1, self.elements({receiver}))
            return self._rows(pair, node)
        elif name in ("get", "pop", "setdefault", "popleft", "__getitem__"):
            first = node.args[0] if node.args else None
            found = (
                self._element({receiver}, first.value) if isinstance(first, ast.Constant) else self.elements({receiver})
            )
            if name == "setdefault" and len(arguments) > 1:
                self._write_element(receiver, first.value if isinstance(first, ast.Constant) else "*", arguments[1])
            return found | (arguments[1] if len(arguments) > 1 else set())
        return set()
