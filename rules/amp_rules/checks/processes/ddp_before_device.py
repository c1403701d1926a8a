"""Models that are moved to their device after DistributedDataParallel was put around them."""

from __future__ import annotations

import ast

from amp_rules.checks.common.calls import calls_named
from amp_rules.checks.common.origins import Origin, origins
from amp_rules.checks.common.wrapping import is_assigned_between
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import before, keyword
from amp_rules.source.syntax import last_name, spelling
from amp_rules.torch.devices import DEFAULT_DEVICE, DEVICE, MOVING
from amp_rules.torch.idioms import NAMED_DEVICE
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL


class DdpBeforeDevice(Check):
    """Models that are moved to their device after DistributedDataParallel was put around them.

    ## What it does

    Finds `model = DistributedDataParallel(model)` of a model that was built on the CPU, where the first `.cuda()` or
    `.to(device)` of it comes after that in the same function.

    ## Why

    The wrapper sends the parameters of rank 0 when it is built, which NCCL refuses for tensors of the CPU. With gloo it
    works, and then each parameter gets another gradient accumulator when it moves: the wrapper's hooks are on the old
    ones. No gradient is averaged, no error is raised, and each process trains a model of its own.

    ## Example

        model = DistributedDataParallel(Net())
        model.to(device)

    ## Use instead

        model = DistributedDataParallel(Net().to(device), device_ids=[device.index])

    ## When it is silent

    Where something before the wrapper may have moved the model: a call that gives it a device, a function that builds
    it in a way that is not known, a default device; with `device_ids`, and where it moves to the CPU.

    ## Source

    https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    code = "AMP913"
    name = "ddp-before-device"
    severity = "error"
    message = "The model is moved to its device after it was wrapped in DistributedDataParallel."
    advice = "Move the model first, then build the optimizer, then wrap the model."
    triggers = ("DistributedDataParallel",)

    def visit_module(self, file: LintedFile) -> None:
        """Look for the first move of each model that is wrapped."""
        module = file.module
        if "DistributedDataParallel" not in module.index.words or module.index.words & DEFAULT_DEVICE:
            return
        for target, value, statement in module.index.assignments:
            name = spelling(target)
            if name is None or not isinstance(value, ast.Call):
                continue
            if module.dotted(value.func) not in DISTRIBUTED_DATA_PARALLEL or keyword(value, "device_ids") is not None:
                continue
            if len(value.args) != 1 or not _is_on_cpu(module, value):
                continue
            move = next((call for call in _moves(module, name) if module.index.precedes(statement, call)), None)
            if move is not None and not is_assigned_between(
                module.index, name, statement, module.index.statement(move)
            ):
                text = module.module.text(move)
                self.report_in(file, value, f"The model is still on the CPU here: `{text}` comes after the wrapper")


def _moves(module: ModuleFacts, name: str) -> list[ast.Call]:
    """The calls that move a model from the CPU to another device."""
    found = []
    for call in calls_named(module, MOVING):
        if isinstance(call.func, ast.Attribute) and spelling(call.func.value) == name:
            given = call.args[0] if call.args else keyword(call, "device")
            if call.func.attr == "cuda" or (given is not None and _is_other_device(module, given)):
                found.append(call)
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _is_other_device(module: ModuleFacts, given: ast.expr) -> bool:
    """Whether an argument of ``to`` is a device, and not the CPU for certain."""
    made = origins(module, given)
    return bool(made) and all(_is_gpu(item) for item in made)


def _is_gpu(place: Origin) -> bool:
    module, node = place
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) or str(node.value).startswith("cuda")
    if isinstance(node, ast.Call):
        if module.dotted(node.func) == DEVICE and node.args:
            first = node.args[0]
            return not (isinstance(first, ast.Constant) and str(first.value).startswith("cpu"))
        return module.dotted(node.func) == "torch.cuda.current_device"
    return NAMED_DEVICE.search(last_name(node)) is not None


def _is_on_cpu(module: ModuleFacts, wrap: ast.Call) -> bool:
    """Whether the model that a call wraps was built before, and nothing gave it a device."""
    model = wrap.args[0]
    made = origins(module, model)
    if not made or not all(_builds(item) for item in made):
        return False
    name = spelling(model)
    if name is None:
        return True
    index = module.index
    return not any(
        before(call, wrap)
        and (
            (last_name(call.func) in MOVING and isinstance(call.func, ast.Attribute) and _is_of(call.func.value, name))
            or any(_is_of(item, name) for item in [*call.args, *(part.value for part in call.keywords)])
        )
        for call in index.calls
        if index.scope(call) is index.scope(wrap)
    )


def _is_of(node: ast.expr, name: str) -> bool:
    held = spelling(node)
    return held is not None and (held == name or name.startswith(held + ".") or held == f"{name}.module")


def _builds(place: Origin) -> bool:
    """Whether an expression builds a model without a word about a device."""
    module, node = place
    if not isinstance(node, ast.Call):
        return False
    if any(NAMED_DEVICE.search(item) for item in _words(node)):
        return False
    if any(
        isinstance(item, (ast.With, ast.AsyncWith)) and _names_device(item) for item in module.index.ancestors(node)
    ):
        return False
    cls = module.class_named(node.func)
    if cls is not None:
        init = cls.method("__init__")
        words = {word for item in init.nodes for word in _words(item)} if init is not None else set()
        return cls.is_module and not any(NAMED_DEVICE.search(word) or word in MOVING for word in words)
    return (module.dotted(node.func) or "").startswith(("torch.nn.", "torchvision.models."))


def _names_device(block: ast.With | ast.AsyncWith) -> bool:
    return any(NAMED_DEVICE.search(word) for item in block.items for word in _words(item.context_expr))


def _words(node: ast.AST) -> set[str]:
    """The names and texts in an expression."""
    found = {last_name(item) for item in ast.walk(node) if isinstance(item, (ast.Name, ast.Attribute))}
    found |= {item.arg for item in ast.walk(node) if isinstance(item, ast.keyword) and item.arg}
    texts = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant))
    return found | {text for text in texts if isinstance(text, str)}
