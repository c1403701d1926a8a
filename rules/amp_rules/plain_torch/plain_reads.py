"""Attributes and methods of a model that compute nothing: the model itself is asked, in a training step, too."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.torch.devices import DEVICE

_COMPUTES_NOTHING = frozenset(
    {
        "state_dict", "load_state_dict", "named_parameters", "named_modules", "named_buffers", "named_children",
        "modules", "children", "buffers", "apply", "get_submodule", "get_parameter", "get_buffer", "add_module",
        "register_buffer", "register_parameter", "register_forward_hook", "register_forward_pre_hook", "extra_repr",
        "half", "double", "bfloat16", "type", "save_pretrained", "__class__", "append", "extend", "items", "keys",
    }
)  # fmt: skip
"""Methods of every model that run none of its layers."""

_NUMBERS = frozenset(f"builtins.{name}" for name in ("len", "int", "float", "str", "bool", "round", "abs"))


class PlainReads:
    """Answers for what a program asks its models for."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def computes_nothing(self, node: ast.Attribute, site: Site) -> bool:
        """``model.state_dict``, ``model[0].reset_parameters``; parameters themselves, which forward passes use, too."""
        if node.attr in _COMPUTES_NOTHING or node.attr.startswith("reset_"):
            return True
        values = self._program.flow.values(node.value, site.scope)
        return any(value.kind == "parameters" or value.name.startswith("torch.nn.Parameter") for value in values)

    def is_number(self, node: ast.Attribute, site: Site) -> bool:
        """Whether an attribute is a number, a string or a device: ``decoder.output_size``.

        What is unknown of it is taken for one where the class sets it, and nobody calls it or asks it for anything.
        """
        values = self._program.flow.values(node, site.scope)
        unknown = {value for value in values if value.kind == "attribute"}
        if not all(map(_is_number, values - unknown)):
            return False
        if values and not unknown:
            return True
        owners = {value for value in self._program.flow.values(node.value, site.scope) if value.kind == "instance"}
        is_set = bool(owners) and all(self._is_set(value, node.attr) for value in owners)
        return is_set and not any(
            self._program.flow.values(asked.value, scope) & owners for asked, scope in self._asked.get(node.attr, ())
        )

    def _is_set(self, owner: Value, name: str) -> bool:
        """Whether a class sets an attribute that is no method of it."""
        methods = [method for info in owner.ref.mro() for method in info.facts.methods.values()]
        return name not in {method.name for method in methods} and any(
            f"{method.receiver}.{name}" in blocks.writes(node)
            for method in methods
            for node in blocks.walk_body(method.node)
            if isinstance(node, ast.stmt)
        )

    @cached_property
    def _asked(self) -> dict[str, list[tuple[ast.Attribute, Scope]]]:
        """Attributes that are called, gone over, or asked for something of their own, by name."""
        found: defaultdict[str, list[tuple[ast.Attribute, Scope]]] = defaultdict(list)
        for node, _, scope in self._program.nodes():
            asked: ast.AST | None = None
            if isinstance(node, ast.Call):
                asked = node.func
            elif isinstance(node, (ast.For, ast.comprehension)):
                asked = node.iter
            elif isinstance(node, (ast.Attribute, ast.Subscript)):
                asked = node.value
            if isinstance(asked, ast.Attribute):
                found[asked.attr].append((asked, scope))
        return found


def _is_number(value: Value) -> bool:
    if value.kind == "constant":
        return True
    return value.kind == "object" and (value.ref in _NUMBERS or value.ref == DEVICE or value.ref.startswith("math."))
