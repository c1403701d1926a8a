"""Arguments of autocast that it does not take."""

from __future__ import annotations

import ast
from typing import TypeGuard

from amp_rules.checks.common.origins import Origin, class_around, origins
from amp_rules.checks.common.step_text import starts_with
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import FileIndex, Function
from amp_rules.source.syntax import spelling
from amp_rules.torch.dtypes import FLOAT32_TYPES, HALF_TYPES
from amp_rules.torch.mixed_precision import AUTOCASTS_BY_DEVICE, TORCH_AUTOCASTS

_DTYPES = frozenset(HALF_TYPES) | FLOAT32_TYPES


_OF_MODELS = frozenset("parameters named_parameters state_dict load_state_dict generate".split())
_OF_TENSORS = frozenset("shape size dim dtype unsqueeze reshape".split())
"""What only models and only tensors are asked for: their ``device`` is a ``torch.device``."""


def is_device(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression is a ``torch.device`` for certain."""
    if isinstance(node, ast.Call):
        return module.dotted(node.func) == "torch.device"
    index = module.index
    held = spelling(node)
    if held is None or _is_parameter(index, node):
        return False
    given = [value for target, value, _ in index.assignments if spelling(target) == held]
    if given:
        return all(spelling(value) != held and is_device(module, value) for value in given)
    if not isinstance(node, ast.Attribute) or node.attr != "device":
        return False
    owner = spelling(node.value)
    made = [value for target, value, _ in index.assignments if spelling(target) == owner]
    if any(isinstance(value, ast.Call) and module.dotted(value.func) == "accelerate.Accelerator" for value in made):
        return True
    asked = {item.attr for name in _OF_MODELS | _OF_TENSORS for item in index.uses(name) if _is_of(item, owner)}
    return bool(asked)


def numbered_device(module: ModuleFacts, node: ast.expr) -> ast.expr | None:
    """The device in ``str(device)``, where the text mostly ends in a number: ``cuda:0``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str"):
        return None
    if len(node.args) != 1 or node.keywords or "str" in module.index.functions:
        return None
    device = node.args[0]
    made = origins(module, device)
    return device if made and all(_has_number(item) for item in made) else None


def _has_number(place: Origin) -> bool:
    """Whether an expression is for certain a device that has a number, as all have where a tensor is."""
    module, node = place
    if isinstance(node, ast.Call) and module.dotted(node.func) == "torch.device":
        first = node.args[0] if node.args else None
        return len(node.args) > 1 or (isinstance(first, ast.Constant) and "cuda:" in str(first.value))
    if not isinstance(node, ast.Attribute) or node.attr != "device":
        return False
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        owner = class_around(module, node)
        # A model that keeps no ``device`` of its own has it from the library, or looks at its parameters.
        return owner is not None and owner.is_module
    return is_device(module, node) or _of_a_parameter(node.value)


def _of_a_parameter(owner: ast.expr) -> bool:
    """``next(model.parameters())`` and ``list(self.parameters())[0]``."""
    return any(isinstance(item, ast.Attribute) and item.attr == "parameters" for item in ast.walk(owner))


def _is_of(item: ast.Name | ast.Attribute, owner: str | None) -> TypeGuard[ast.Attribute]:
    return isinstance(item, ast.Attribute) and spelling(item.value) == owner


def _is_parameter(index: FileIndex, node: ast.expr) -> bool:
    """Whether a name is a parameter of the function that it stands in, which somebody gives anything."""
    function = index.scope(node)
    if not isinstance(node, ast.Name) or not isinstance(function, Function):
        return False
    given = function.args
    return node.id in {item.arg for item in [*given.posonlyargs, *given.args, *given.kwonlyargs]}


class AutocastDeviceType(Check):
    """Autocast is given the wrong first argument, or none.

    ## What it does

    Finds `torch.autocast()` without a device type or with a dtype, a boolean or a `torch.device` in its place, and
    `torch.cuda.amp.autocast` with a device type or a dtype where it takes `enabled`. `str(model.device)` is found too,
    for information.

    ## Why

    `torch.autocast` wants a device type, which is text: without one it raises `TypeError`, with a dtype or a device
    `ValueError`. The old
    `torch.cuda.amp.autocast` has `enabled` first: `autocast(torch.bfloat16)` means `enabled=True` in float16, where
    70000 is inf, and `autocast(device_type="cuda")` raises. The two are imported under one name.
    The text of a device is `cuda:0` where a model is: torch before 2.4 refuses that with `RuntimeError`.

    ## Example

        with torch.cuda.amp.autocast(torch.bfloat16):
            loss = criterion(model(x), y)

    ## Use instead

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(x), y)

    ## When it is silent

    Where the argument is a variable that may be text, as `args.device` mostly is, and where the file imports the name
    from several places.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP825"
    name = "autocast-device-type"
    severity = "error"
    message = "Autocast does not take this argument."
    advice = "Pass `torch.autocast` a device type such as `cuda`, and a type as `dtype=`."
    fix_title = "Pass the device type"
    fix_safety = "safe"
    triggers = ("autocast(",)

    def visit_module(self, file: LintedFile) -> None:
        """Judge each call of autocast."""
        module = file.module
        several = module.names.rebound
        for item in ast.walk(module.module.tree):
            if isinstance(item, ast.Call):
                name = module.dotted(item.func)
                if name in TORCH_AUTOCASTS and not starts_with(item.func, several):
                    self._new(item, file)
                elif name in AUTOCASTS_BY_DEVICE and not starts_with(item.func, several):
                    self._old(item, file)

    def _new(self, call: ast.Call, file: LintedFile) -> None:
        module = file.module
        keywords = {item.arg: item.value for item in call.keywords}
        if None in keywords or any(isinstance(item, ast.Starred) for item in call.args):
            return
        given = call.args[0] if call.args else keywords.get("device_type")
        if given is None:
            rest = "".join(f", {module.module.text(item)}" for item in call.keywords)
            text = f'{module.module.text(call.func)}("cuda"{rest})'
            fix = Fix("Pass the device type", "safe", (TextEdit("replace", module.module.span(call), text),))
            self.report_in(file, call, "`autocast` needs a device type and raises without one", fix=fix)
        elif isinstance(given, ast.Constant) and isinstance(given.value, bool):
            self.report_in(file, given, f"`{given.value}` is passed to `autocast` as a device type, which raises")
        elif module.dotted(given) in _DTYPES:
            self.report_in(file, given, f"`{module.module.text(given)}` is passed to `autocast` as a device type")
        elif is_device(module, given):
            held = module.module.text(given)
            fix = Fix("Pass its type", "safe", (TextEdit("replace", module.module.span(given), f"{held}.type"),))
            message = f"`{held}` is a `torch.device`, and `autocast` takes only its type: `{held}.type`"
            self.report_in(file, given, message, fix=fix if not isinstance(given, ast.Call) else None)
        else:
            device = numbered_device(module, given)
            if device is not None:
                held = module.module.text(device)
                edit = TextEdit("replace", module.module.span(given), f"{held}.type")
                message = f"The text of `{held}` may be `cuda:0`, which `autocast` of torch before 2.4 refuses"
                self.report_in(file, given, message, severity="info", fix=Fix("Pass its type", "safe", (edit,)))

    def _old(self, call: ast.Call, file: LintedFile) -> None:
        module = file.module
        for word in call.keywords:
            if word.arg == "device_type":
                self.report_in(file, call, "the old `autocast` of one device has no `device_type`, which raises")
                return
        if call.args:
            first = call.args[0]
            text = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if text or module.dotted(first) in _DTYPES:
                given = module.module.text(first)
                message = f"`{given}` is passed to the old `autocast` as `enabled`"
                self.report_in(file, first, message, severity="warning")
