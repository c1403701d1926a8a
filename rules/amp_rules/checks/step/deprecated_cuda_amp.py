"""Names of `torch.cuda.amp` that torch has replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.step_text import starts_with
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.version_tests import chosen_by_version

_NAMES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
_OLD = {f"torch.{device}.amp.{name}": (device, name) for device in ("cuda", "cpu") for name in _NAMES}


class DeprecatedCudaAmp(Check):
    """`torch.cuda.amp` and `torch.cpu.amp` have been replaced by `torch.amp`.

    ## What it does

    Finds calls of `autocast`, `GradScaler`, `custom_fwd` and `custom_bwd` from `torch.cuda.amp` or `torch.cpu.amp`.

    ## Why

    Since torch 2.4 each of them warns with a `FutureWarning` when it is called, once for each place, which fills the
    log of a run; some day they will be gone. `torch.amp` has the same four with the device type as an argument.

    ## Example

        with torch.cuda.amp.autocast():
            loss = criterion(model(x), y)

    ## Use instead

        with torch.amp.autocast("cuda"):
            loss = criterion(model(x), y)

    ## When it is silent

    In files that import these names from several places, and after a test of torch's version or of whether it has the
    new names: there old versions are supported.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.cuda.amp.autocast
    """

    code = "AMP826"
    name = "deprecated-cuda-amp"
    severity = "info"
    preview = "the old names still work and only warn"
    message = "The names in `torch.cuda.amp` are deprecated in favour of those in `torch.amp`."
    advice = "Use the function of the same name in `torch.amp`, with the device type as first argument."
    fix_title = "Use `torch.amp`"
    fix_safety = "safe"
    triggers = ("cuda.amp", "cpu.amp", "from torch.cuda import amp", "from torch.cpu import amp")

    def visit_module(self, file: LintedFile) -> None:
        """Judge each call."""
        module = file.module
        several = module.names.rebound
        guarded = chosen_by_version(module.module.tree)
        for call in _calls(module.module.tree):
            function = call.func if isinstance(call, ast.Call) else call
            found = _OLD.get(module.dotted(function) or "")
            if found is None or starts_with(function, several) or call in guarded:
                continue
            device, name = found
            message = f"`torch.{device}.amp.{name}` is deprecated in favour of `torch.amp.{name}`"
            self.report_in(file, call, message, fix=_fix(module, call, device, name))


def _calls(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield calls, and decorators that are not calls."""
    for item in ast.walk(tree):
        if isinstance(item, ast.Call):
            yield item
        elif isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (node for node in item.decorator_list if not isinstance(node, ast.Call))


def _fix(module: ModuleFacts, call: ast.expr, device: str, name: str) -> Fix | None:
    place = module.module.span(call)
    if not isinstance(call, ast.Call):
        text = f'torch.amp.{name}(device_type="{device}")'
    else:
        if any(isinstance(item, ast.Starred) for item in call.args) or place.start.line != place.end.line:
            return None
        if (name.startswith("custom") and call.args) or any(word.arg is None for word in call.keywords):
            return None
        first = f'device_type="{device}"' if name.startswith("custom") else f'"{device}"'
        labels = ["enabled=", "dtype=", "cache_enabled="] if name == "autocast" else [""] * len(call.args)
        parts = [label + ast.unparse(item) for label, item in zip(labels, call.args, strict=False)]
        parts += [f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords]
        text = f"torch.amp.{name}({', '.join([first, *parts])})"
    return Fix("Use `torch.amp`", "safe", (TextEdit("replace", place, text), TextEdit("import", place, "import torch")))
