"""Arguments of autocast that it does not take."""

from __future__ import annotations

import ast

from amp_rules.checks.common.step_text import starts_with
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.torch.dtypes import FLOAT32_TYPES, HALF_TYPES
from amp_rules.torch.mixed_precision import AUTOCASTS_BY_DEVICE, TORCH_AUTOCASTS

_DTYPES = frozenset(HALF_TYPES) | FLOAT32_TYPES


class AutocastDeviceType(Check):
    """Autocast is given the wrong first argument, or none.

    ## What it does

    Finds `torch.autocast()` without a device type or with a dtype or a boolean in its place, and
    `torch.cuda.amp.autocast` with a device type or a dtype where it takes `enabled`.

    ## Why

    `torch.autocast` wants a device type: without one it raises `TypeError`, with a dtype `ValueError`. The old
    `torch.cuda.amp.autocast` has `enabled` first: `autocast(torch.bfloat16)` means `enabled=True` in float16, where
    70000 is inf, and `autocast(device_type="cuda")` raises. The two are imported under one name.

    ## Example

        with torch.cuda.amp.autocast(torch.bfloat16):
            loss = criterion(model(x), y)

    ## Use instead

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(x), y)

    ## When it is silent

    Where the argument is a variable, and where the file imports the name from several places.

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
            self.report_in(file, given, f"`{given.value}` stands where `autocast` takes a device type, which raises")
        elif module.dotted(given) in _DTYPES:
            self.report_in(file, given, f"`{module.module.text(given)}` stands where `autocast` takes a device type")

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
                message = f"`{given}` stands where the old `autocast` takes `enabled`"
                self.report_in(file, first, message, severity="warning")
