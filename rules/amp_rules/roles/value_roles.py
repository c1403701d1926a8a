"""What a value is for: model, optimizer, scheduler, loader.

Roles rest on constructors and class bases where they are known, and on use where they are not: what is asked for
``zero_grad`` and ``step`` is an optimizer, what is asked for ``parameters`` and ``state_dict`` is a model.
"""

from __future__ import annotations

import ast
from typing import Literal

from amp_rules.flow.cells import CellKey
from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_loader_value, is_module, is_optimizer, is_scheduler
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, own_name
from amp_rules.torch.optimizers import HOLDS_OPTIMIZER, is_optimizer_name, is_scheduler_name
from amp_rules.torch.replication import USES_OF_ENVIRONMENTS

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
            return "optimizer" if all(map(self._can_be_stepped, values)) else "unknown"
        if any(is_scheduler(value) for value in values):
            return "other"
        uses = self.uses(receiver, scope)
        is_used_as_one = "zero_grad" in uses or "param_groups" in uses
        if any(value.kind == "instance" for value in values):
            is_open = not self.flow.callees(call) and (is_used_as_one or any(map(_hands_on, values)))
            return "unknown" if is_open else "other"
        if any(value.kind == "external" and is_optimizer_name(value.ref) for value in values):
            return "unknown"  # ``SGD.step(optimizer)``
        if is_used_as_one:
            return "unknown" if not values and self._looks_like_one(scope) else "optimizer"
        if call.args or any(item.arg != "closure" for item in call.keywords):
            return "other"
        if any(value.kind == "object" and not value.is_result for value in values) or uses & USES_OF_ENVIRONMENTS:
            return "other"
        return "other" if self._tested_as_scheduler(call, scope) else "unknown"

    def _tested_as_scheduler(self, call: ast.Call, scope: Scope) -> bool:
        """Whether it only runs where the receiver is a schedule: ``if isinstance(scheduler, OneCycleLR):``."""
        assert isinstance(call.func, ast.Attribute)
        inner: ast.AST = call
        for parent in scope.module.ancestors(call):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                break
            if isinstance(parent, ast.If) and inner in parent.body:
                tests = conjuncts(parent.test)
                if any(self._asks_for_scheduler(item, call.func.value, scope) for item in tests):
                    return True
            inner = parent
        return False

    def _asks_for_scheduler(self, test: ast.expr, receiver: ast.expr, scope: Scope) -> bool:
        if not (isinstance(test, ast.Call) and own_name(test.func) == "isinstance" and len(test.args) == 2):
            return False
        kinds = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
        return ast.dump(test.args[0]) == ast.dump(receiver) and all(
            any(value.kind == "external" and is_scheduler_name(value.ref) for value in self.flow.values(kind, scope))
            for kind in kinds
        )

    def _can_be_stepped(self, value: Value) -> bool:
        """Whether the scaler can step it: an optimizer, or an object that holds one where the scaler looks for it.

        What has no ``step`` is not what is stepped: where any attribute may hold any argument, the model is among them.
        """
        if value.kind != "instance" or is_optimizer(value):
            return True
        names: set[str] = set()
        for info in value.ref.mro():
            names |= self.flow.attribute_names.get(info.facts.node, set()) | info.facts.methods.keys()
        bases: frozenset[str] = value.ref.external_bases()
        is_plain = (is_module(value) or bases <= {"builtins.object"}) and not _hands_on(value)
        return bool(names & HOLDS_OPTIMIZER) or ("step" not in names and is_plain)

    def _looks_like_one(self, scope: Scope) -> bool:
        """Whether a class of the project, seen from outside, has the methods of an optimizer and is none."""
        for node, info in self.flow.classes.items():
            value = Value("instance", info)
            if is_optimizer(value) or is_module(value) or (scope.parent is not None and scope.parent.node is node):
                continue
            if {"zero_grad", "step"} <= info.facts.methods.keys():
                return True
        return False


def _hands_on(value: Value) -> bool:
    """Whether an object asks another for the attributes that it lacks."""
    return value.kind == "instance" and value.ref.find_method("__getattr__") is not None
