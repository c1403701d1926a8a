"""Autograd functions of which only one half knows of autocast."""

from __future__ import annotations

import ast

from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts

_OF_TORCH = frozenset({"torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd"})


class CustomBwdMismatch(Check):
    """`custom_fwd` and `custom_bwd` do not stand where they belong.

    ## What it does

    Finds `autograd.Function` classes with `custom_fwd` on `forward` and nothing on `backward`, with the two exchanged,
    or with `torch.amp.custom_fwd` used without `device_type`.

    ## Why

    `custom_bwd` runs backward with the autocast state that forward ran with. Without it backward runs with autocast
    off, and a product of the float16 gradient with a float32 weight raises. `@torch.amp.custom_fwd` without
    `device_type` is a `TypeError` when the module is imported.

    ## Example

        class Linear(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x @ weight

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad @ weight.t(), x.t() @ grad

    ## Use instead

        class Linear(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x @ weight

            @staticmethod
            @torch.amp.custom_bwd(device_type="cuda")
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad @ weight.t(), x.t() @ grad

    ## When it is silent

    For functions without either decorator, and where `backward` has another decorator that may do the same.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.amp.custom_bwd
    """

    code = "AMP802"
    name = "custom-bwd-mismatch"
    severity = "warning"
    message = "The decorators `custom_fwd` and `custom_bwd` are not used as a pair."
    advice = "Put `custom_fwd` on `forward` and `custom_bwd` on `backward`, both below `staticmethod`."
    fix_title = "Add `custom_bwd`"
    fix_safety = "safe"
    triggers = ("custom_fwd", "custom_bwd")

    def visit_class(self, cls: ClassFacts, file: LintedFile) -> None:
        """Compare the decorators of forward and backward."""
        module = file.module
        forward, backward = cls.methods.get("forward"), cls.methods.get("backward")
        if forward is None or backward is None or not cls.is_autograd_function:
            return
        for function, wrong in ((forward, "custom_bwd"), (backward, "custom_fwd")):
            node = _decorator(function, wrong)
            if node is not None:
                self.report_in(file, node, f"`{wrong}` is on `{function.name}` of `{cls.name}`")
                return
        first, second = _decorator(forward, "custom_fwd"), _decorator(backward, "custom_bwd")
        for node in (first, second):
            if node is not None and not isinstance(node, ast.Call) and _is_new(module, node):
                message = f"`{module.module.text(node)}` lacks its `device_type`, which raises"
                self.report_in(file, node, message, severity="error")
        if first is not None and second is None and len(backward.decorators) == int(backward.is_static):
            name = module.module.text(first).replace("custom_fwd", "custom_bwd")
            fix = _fix(module, first, backward)
            self.report_in(file, backward.node, f"`backward` of `{cls.name}` lacks `{name.partition('(')[0]}`", fix=fix)
        elif second is not None and first is None and len(forward.decorators) == int(forward.is_static):
            self.report_in(file, forward.node, f"`forward` of `{cls.name}` lacks `custom_fwd`")


def _decorator(function: FunctionFacts, name: str) -> ast.expr | None:
    """The decorator of that name, whatever alias it goes by."""
    return next((node for dotted, node in function.decorators if dotted.rpartition(".")[2].endswith(name)), None)


def _is_new(module: ModuleFacts, node: ast.expr) -> bool:
    return (module.dotted(node) or "").startswith("torch.amp.")


def _fix(module: ModuleFacts, first: ast.expr, backward: FunctionFacts) -> Fix | None:
    """The decorator that goes with forward's, where its name is reached through a module."""
    target = first.func if isinstance(first, ast.Call) else first
    dotted = module.dotted(target) or ""
    if not isinstance(target, ast.Attribute) and dotted not in _OF_TORCH:
        return None
    text = module.module.text(target) if isinstance(target, ast.Attribute) else dotted
    text = text.replace("custom_fwd", "custom_bwd")
    if isinstance(first, ast.Call):
        device = next((item.value for item in first.keywords if item.arg == "device_type"), None)
        if device is None and _is_new(module, target):
            return None
        text += f"(device_type={module.module.text(device)})" if device is not None else ""
    place = module.module.span(backward.node)
    edits = [TextEdit("decorate", place, text)]
    if not isinstance(target, ast.Attribute):
        edits.append(TextEdit("import", place, "import torch"))
    return Fix(f"Add `{text}`", "safe", tuple(edits))
