"""What a single value is, by its constructor and the bases of its class."""

from __future__ import annotations

from amp_rules.program.values import Value
from amp_rules.tables import torch_api as api

_NOT_MODULES = (
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.utils",
    "torch.nn.parameter",
    "torch.nn.Parameter",
)
_MODEL_FACTORIES = (
    "torchvision.models.",
    "timm.create_model",
    "torch.hub.load",
    "segmentation_models_pytorch.",
)


def is_module(value: Value) -> bool:
    """Whether the value is an ``nn.Module``."""
    if value.kind == "instance":
        return any(
            name in api.TORCH_MODULE_BASES
            or name.rpartition(".")[2].endswith(api.MODULE_BASE_SUFFIXES)
            or (name.startswith("torch.nn.") and not name.startswith(_NOT_MODULES))
            or name.startswith("torchvision.models.")
            for name in value.ref.external_bases()
        )
    if value.kind != "object":
        return False
    name = str(value.ref)
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


def is_loader_value(value: Value) -> bool:
    """Whether the value is a DataLoader of torch or of a library, or of a project class derived from one."""
    if value.kind == "object":
        head, _, last = value.ref.rpartition(".")
        return last in api.LOADER_CLASSES and (head.startswith(api.LOADER_PREFIXES) or not head)
    if value.kind == "instance":
        return any(name.rpartition(".")[2] in api.LOADER_CLASSES for name in value.ref.external_bases())
    return False
