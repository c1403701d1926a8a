"""Models that are wrapped or converted before Apex sees them, or moved after."""

from __future__ import annotations

import ast

from amp_rules.checks.common.apex_scripts import apex_calls, asks_for_precision, is_call_of
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import before, keyword
from amp_rules.source.resolver import root_of
from amp_rules.source.syntax import last_name
from amp_rules.torch.devices import MOVING
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL

_PARALLEL = DATA_PARALLEL | DISTRIBUTED_DATA_PARALLEL


class ApexOrder(Check):
    """A model is given to `amp.initialize` wrapped for several devices, in half, or still on the CPU.

    ## What it does

    Finds `amp.initialize(model, ...)` where `model` is the result of `DistributedDataParallel(...)`,
    `DataParallel(...)` or `.half()`, and where `model` is made by a class in the same function and `model.cuda()` or
    `model.to(device)` follow only afterwards.

    ## Why

    Apex refuses all three with `RuntimeError`: "Parallel wrappers should only be applied to the model(s) AFTER the
    model(s) have been returned from amp.initialize", "you do not need to call .half() on your model before", "you need
    to provide a model with parameters located on a CUDA device before passing it". A wrapper keeps the parameters of
    32 bits that it was given for its buckets, and Apex would make others of 16.

    ## Example

        model = DistributedDataParallel(model)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")

    ## Use instead

        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
        model = DistributedDataParallel(model)

    ## When it is silent

    Where a test that asks for mixed precision decides about the wrapper, and where a function made the model, or a
    device was mentioned, before.

    ## Source

    https://nvidia.github.io/apex/amp.html#apex.amp.initialize
    """

    code = "AMP841"
    name = "apex-order"
    severity = "error"
    message = "A model was wrapped or converted before `amp.initialize`."
    advice = "Call `amp.initialize` for a model on the GPU right after the optimizer is made, and wrap what it returns."
    triggers = ("amp.initialize(",)
    operations = ("call",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at what made the model."""
        if not is_call_of(op, "amp.initialize") or op.node is None:
            return
        model = op.arg(1, "models")
        for item in alternatives(model) if model is not None else ():
            if asks_for_precision(frame, item.node):
                continue
            if _is_parallel(item):
                self.report(frame, op.node, "the model is wrapped for several devices already, which Apex refuses")
                return
            if item.op == "half" or (item.op == "method" and item.data == "half"):
                self.report(frame, op.node, "the model is converted to half already, which Apex refuses")
                return

    def visit_module(self, file: LintedFile) -> None:
        """Look for models that are moved to the GPU only afterwards."""
        for call in apex_calls(file.module, "amp.initialize"):
            model = call.args[0] if call.args else keyword(call, "models")
            if (
                isinstance(model, ast.Name)
                and keyword(call, "enabled") is None
                and _moves_later(file.module, call, model)
            ):
                self.report_in(
                    file, call, f"`{model.id}` is moved to the GPU only after this, and Apex refuses it before"
                )


def _moves_later(module: ModuleFacts, call: ast.Call, model: ast.Name) -> bool:
    """Whether a model that a class makes here is on the CPU still, and on its way to a GPU."""
    index = module.index
    scope = index.scope(call)
    if index.words & {"set_default_tensor_type", "set_default_device"}:
        return False
    made = [
        value
        for target, value, _ in index.assignments
        if isinstance(target, ast.Name)
        and target.id == model.id
        and index.scope(target) is scope
        and before(target, call)
    ]
    if not made or not all(map(_makes_on_cpu, made)):
        return False
    is_later = False
    for other in index.calls:
        if other is call or index.scope(other) is not scope:
            continue
        if before(other, call) and _may_move(other, model.id):
            return False
        is_later = is_later or (index.precedes(call, other) and _moves(other, model.id))
    return is_later


def _makes_on_cpu(value: ast.expr) -> bool:
    """Whether a class is called, and no device named."""
    if not isinstance(value, ast.Call) or _says_device(ast.unparse(value)):
        return False
    called = value.func
    return isinstance(called, (ast.Name, ast.Attribute)) and last_name(called)[:1].isupper()


def _says_device(text: str) -> bool:
    return any(word in text.lower() for word in ("cuda", "device", "gpu", ".to(", "parallel", "prepare"))


def _may_move(call: ast.Call, name: str) -> bool:
    """Whether a call moves a model or a part of it, or is given it and speaks of devices."""
    root = root_of(call.func)
    if isinstance(root, ast.Name) and root.id == name:
        return last_name(call.func) in MOVING or _says_device(last_name(call.func))
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(isinstance(item, ast.Name) and item.id == name for item in given) and _says_device(ast.unparse(call))


def _moves(call: ast.Call, name: str) -> bool:
    """Whether a call is ``model.cuda()`` or ``model.to(device)``."""
    function = call.func
    if not isinstance(function, ast.Attribute) or ast.unparse(function.value) != name:
        return False
    given = function.attr == "to" and call.args
    return function.attr == "cuda" or bool(given and _says_device(ast.unparse(given[0])))


def _is_parallel(value: Value) -> bool:
    return (value.op == "layer" and value.sym in _PARALLEL) or is_call_of(value, "parallel.DistributedDataParallel")
