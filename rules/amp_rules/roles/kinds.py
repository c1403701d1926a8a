"""What a single value is, by its constructor and the bases of its class."""

from __future__ import annotations

from amp_rules.flow.values import UNKNOWN_MEMBER, Value
from amp_rules.torch.data import LOADER_CLASSES, LOADER_PREFIXES, MODULES_OF_LOADERS
from amp_rules.torch.models import CHAINS, MODEL_FACTORIES, NOT_MODULES, OF_NO_NETWORK, is_module_base
from amp_rules.torch.optimizers import is_optimizer_name, is_scheduler_name
from amp_rules.torch.varying import WITHOUT_PARAMETERS


def _is_module_base(name: str) -> bool:
    """Whether a class with this base may be a model, a loss with private bases of torch among them.

    A rewrite must not take a loss that holds the network for something else; the linter, which asks for
    :func:`is_module_base` alone, keeps to classes with a forward pass of their own.
    """
    return is_module_base(name) or (name.startswith("torch.nn.") and not name.startswith(NOT_MODULES))


def _has_forward_pass(value: Value, bases: frozenset[str]) -> bool:
    """Whether a class of the project adds a forward pass to one of a library that is not known."""
    if not any(name.partition(".")[0] not in OF_NO_NETWORK for name in bases):
        return False
    forward = value.ref.find_method("forward")
    return forward is not None and forward.receiver is not None


def is_module(value: Value) -> bool:
    """Whether the value is an ``nn.Module``."""
    if value.kind == "instance":
        bases = value.ref.external_bases()
        return any(map(_is_module_base, bases)) or _has_forward_pass(value, bases)
    if value.kind != "object":
        return False
    name = str(value.ref)
    if name.startswith(MODEL_FACTORIES):
        return not value.is_result
    last = name.rpartition(".")[2]
    if name.startswith(("torch.nn.", "torch_geometric.nn.")) and not name.startswith(NOT_MODULES):
        return last[:1].isupper() or last == UNKNOWN_MEMBER
    head = name.rpartition(".")[0].rpartition(".")[2]
    return (
        last == "from_pretrained"
        and not value.is_result
        and ("Model" in head or head.startswith("Auto"))
        and "Tokenizer" not in head
    )


def is_chain(value: Value) -> bool:
    """Whether the value is a model that runs its parts one after the other: ``nn.Sequential``, or derived from it."""
    if value.kind == "object":
        return value.ref in CHAINS and not value.is_result
    return value.kind == "instance" and bool(CHAINS & value.ref.external_bases())


def is_optimizer(value: Value) -> bool:
    """Whether the value is a ``torch.optim.Optimizer``."""
    if value.kind == "instance":
        return any(map(is_optimizer_name, value.ref.external_bases()))
    return value.kind == "object" and not value.is_result and is_optimizer_name(value.ref)


def is_scheduler(value: Value) -> bool:
    """Whether the value is a learning rate scheduler."""
    if value.kind == "instance":
        return any(map(is_scheduler_name, value.ref.external_bases()))
    return value.kind == "object" and is_scheduler_name(value.ref)


def is_loader_value(value: Value) -> bool:
    """Whether the value is a DataLoader of torch or of a library, or of a project class derived from one."""
    if value.kind == "object" and not value.is_result:
        head, _, last = str(value.ref).rpartition(".")  # what is only used as a model is named by a tuple
        if last == UNKNOWN_MEMBER:
            return head in MODULES_OF_LOADERS
        return last in LOADER_CLASSES and (head.startswith(LOADER_PREFIXES) or not head)
    if value.kind == "instance":
        return any(name.rpartition(".")[2] in LOADER_CLASSES for name in value.ref.external_bases())
    return False


def is_stream(value: Value) -> bool:
    """Whether a dataset gives its samples one after the other, without a length."""
    if value.kind != "instance":
        return value.kind == "object" and str(value.ref).rpartition(".")[2] == "IterableDataset"
    return any(name.rpartition(".")[2].startswith("IterableDataset") for name in value.ref.external_bases())


def is_without_parameters(value: Value) -> bool:
    """A loss of torch, a pooling, an activation."""
    name = str(value.ref)
    return value.kind == "object" and (name.endswith("Loss") or name.startswith(WITHOUT_PARAMETERS))
