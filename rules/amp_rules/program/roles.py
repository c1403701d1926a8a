"""What a value is for: model, optimizer, scheduler, loader.

Roles rest on constructors and class bases where they are known, and on use where they are not: what is asked for
``zero_grad`` and ``step`` is an optimizer, what is asked for ``parameters`` and ``state_dict`` is a model.
"""

from __future__ import annotations

import ast
from typing import Literal

from amp_rules.program.flow import CellKey, Flow, is_loader_value
from amp_rules.program.scopes import Scope
from amp_rules.program.values import Value
from amp_rules.tables import torch_api as api

_NOT_MODULES = ("torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.nn.parameter", "torch.nn.Parameter")
_MODEL_FACTORIES = ("torchvision.models.", "timm.create_model", "torch.hub.load", "segmentation_models_pytorch.")
_MODEL_USES = frozenset({"parameters", "state_dict", "load_state_dict", "named_parameters"})

Stepper = Literal["optimizer", "other", "unknown"]


def is_module(value: Value) -> bool:
    """Whether the value is an ``nn.Module``."""
    if value.kind == "instance":
        return any(
            name in api.TORCH_MODULE_BASES or name.rpartition(".")[2].endswith(api.MODULE_BASE_SUFFIXES)
            or (name.startswith("torch.nn.") and not name.startswith(_NOT_MODULES))
            or name.startswith("torchvision.models.")
            for name in value.ref.external_bases()
        )
    if value.kind != "object":
        return False
    name = value.ref
    if name.startswith(_MODEL_FACTORIES):
        return not name.endswith("#")
    last = name.rpartition(".")[2]
    if name.startswith(("torch.nn.", "torch_geometric.nn.")) and not name.startswith(_NOT_MODULES):
        return last[:1].isupper() or last == "?"
    head = name.rpartition(".")[0].rpartition(".")[2]
    return last == "from_pretrained" and ("Model" in head or head.startswith("Auto")) and "Tokenizer" not in head


def is_optimizer(value: Value) -> bool:
    """Whether the value is a ``torch.optim.Optimizer``."""
    if value.kind == "instance":
        return any(_optimizer_name(name) for name in value.ref.external_bases())
    return value.kind == "object" and _optimizer_name(value.ref)


def _optimizer_name(name: str) -> bool:
    if name.endswith("#") or is_scheduler_name(name):
        return False
    return name.startswith(api.OPTIMIZER_PREFIXES) or name in api.THIRD_PARTY_OPTIMIZERS


def is_scheduler_name(name: str) -> bool:
    """Whether a library's class is a learning rate scheduler."""
    last = name.rpartition(".")[2]
    return name.startswith(api.SCHEDULER_PREFIXES) or "schedule" in last.lower() or last.endswith("LR")


def is_scheduler(value: Value) -> bool:
    """Whether the value is a learning rate scheduler."""
    if value.kind == "instance":
        return any(is_scheduler_name(name) for name in value.ref.external_bases())
    return value.kind == "object" and is_scheduler_name(value.ref)


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
        if len(uses & _MODEL_USES) and uses & {"train", "eval", "cuda", "to", "parameters"} and "zero_grad" not in (
            uses - {"zero_grad"} if "parameters" in uses else uses
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
