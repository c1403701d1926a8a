"""What a value is for: model, optimizer, scheduler, loader.

Roles rest on constructors and class bases where they are known, and on use where they are not: what is asked for
``zero_grad`` and ``step`` is an optimizer, what is asked for ``parameters`` and ``state_dict`` is a model.
"""

from __future__ import annotations

import ast
from typing import Literal

from amp_rules.program.cells import CellKey
from amp_rules.program.flow import Flow
from amp_rules.program.kinds import is_loader_value, is_module, is_optimizer, is_scheduler
from amp_rules.program.scopes import Scope
from amp_rules.program.values import Value

_MODEL_USES = frozenset({"parameters", "state_dict", "load_state_dict", "named_parameters"})

Stepper = Literal["optimizer", "other", "unknown"]


class Roles:
    """Questions about expressions, answered from values first and from use where there are none."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    def uses(self, node: ast.expr, scope: Scope) -> set[str]:
        """The attributes that the program asks of this variable."""
        keys: set[CellKey | None] = {self.flow.key(node, scope)}
        return set().union(*(self.flow.uses.get(key, set()) for key in keys if key is not None))

    def modules(self, node: ast.expr, scope: Scope) -> set[Value]:
        """The models that the expression can hold; an unknown value that is used as one counts."""
        values = self.flow.values(node, scope)
        found = {value for value in values if is_module(value)}
        if found:
            return found
        known = {value for value in values if value.kind in ("instance", "external", "class", "function", "module")}
        if known or any(is_optimizer(value) or is_scheduler(value) or is_loader_value(value) for value in values):
            return set()
        uses = self.uses(node, scope)
        if (
            len(uses & _MODEL_USES)
            and uses & {"train", "eval", "cuda", "to", "parameters"}
            and "zero_grad" not in (uses - {"zero_grad"} if "parameters" in uses else uses)
        ):
            key = self.flow.key(node, scope)
            return {Value("object", ("used as a model", key))} if key is not None else set()
        return set()

    def stepper(self, call: ast.Call, scope: Scope) -> Stepper:
        """What ``X.step()`` steps."""
        assert isinstance(call.func, ast.Attribute)
        receiver = call.func.value
        values = self.flow.values(receiver, scope)
        if any(is_optimizer(value) for value in values):
            return "optimizer"
        if any(is_scheduler(value) or value.kind == "instance" for value in values):
            return "other"
        uses = self.uses(receiver, scope)
        if "zero_grad" in uses or "param_groups" in uses:
            return "optimizer"
        if call.args or any(item.arg != "closure" for item in call.keywords):
            return "other"
        if any(value.kind == "object" and "#" not in value.ref for value in values):
            return "other"
        return "unknown"
