"""What calls of libraries and containers give."""

from __future__ import annotations

import ast

from amp_rules.program.expressions import Expressions
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.values import Value
from amp_rules.tables import torch_api as api


class Libraries(Expressions):
    """Calls of what is not the project's own."""

    def _apply_external(
        self,
        name: str,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
    ) -> set[Value]:
        first = arguments[0] if arguments else set()
        if name == "builtins.getattr" and len(node.args) >= 2:
            return self._getattr(first, node)
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
        made = Value("object", name, node)
        if name.endswith(".Sequential") or name.endswith("ModuleList"):
            for values in arguments:
                self._write_element(made, "*", values | self.elements(values))
        return {made}

    def _getattr(self, owners: set[Value], node: ast.Call) -> set[Value]:
        name = node.args[1]
        found: set[Value] = set()
        for owner in owners:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found |= self._attribute_of(owner, name.value)
            else:
                found |= self._members(owner)
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
        if receiver.kind == "sequence":
            return self._sequence_method(receiver, name, node, arguments)
        if name in api.RETURNS_RECEIVER:
            return {receiver}
        if name in ("parameters", "named_parameters") and receiver.kind in (
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

    def _sequence_method(self, receiver: Value, name: str, node: ast.Call, arguments: list[set[Value]]) -> set[Value]:
        if name in ("append", "add", "insert", "appendleft"):
            self._write_element(receiver, "*", arguments[-1] if arguments else set())
        elif name in ("extend", "update"):
            self._write_element(receiver, "*", self.elements(arguments[0]) if arguments else set())
        elif name in ("values", "copy"):
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
            return found | (arguments[1] if len(arguments) > 1 else set())
        return set()
