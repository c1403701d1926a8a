"""Functions with a backward of their own that do not know of autocast."""

from __future__ import annotations

import ast

from amp_rules.checks.common.autograd_functions import (
    aliases,
    aligned,
    alignments,
    called_with_care,
    kernels,
    mixing,
    names_in,
    products,
    recomputed,
    tensor_inputs,
)
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts
from amp_rules.torch.idioms import NAMED_BATCH_NORM, NAMED_WEIGHT


class CustomFunctionNoAmpDecorator(Check):
    """An `autograd.Function` multiplies or hands to a kernel tensors whose types autocast does not align.

    ## What it does

    Finds subclasses of `torch.autograd.Function` without `custom_fwd` whose forward and backward multiply two of its
    tensors, whose forward passes two floating point tensors to a compiled extension, or whose backward runs again a
    callable that forward was given and ran, as a checkpoint does.

    ## Why

    Under autocast a layer's input is float16 and its weight float32. In `forward` autocast still casts both for
    `matmul`, but `backward` runs without autocast: `grad.matmul(weight)` raises "expected mat1 and mat2 to have the
    same dtype, but got: c10::Half != float". A kernel sees the mixture at once, and few check. What backward runs again
    is computed in float32 there, with other values than in forward, or raises where its inputs are half.

    ## Example

        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x.matmul(weight.t())

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad.matmul(weight), grad.t().matmul(x)

    ## Use instead

        class Linear(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return x.matmul(weight.t())

            @staticmethod
            @torch.amp.custom_bwd(device_type="cuda")
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                return grad.matmul(weight), grad.t().matmul(x)

    ## When it is silent

    Where the tensors are converted to one type in `forward` or where `apply` is called, under the idiom
    `_cast_if_autocast_enabled`, where the function says anything of autocast, and for functions that only communicate
    or reshape.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#autocast-and-custom-autograd-functions
    """

    code = "AMP801"
    name = "custom-function-no-amp-decorator"
    severity = "error"
    message = "An autograd function mixes tensors of different types under autocast."
    advice = "Decorate `forward` with `torch.amp.custom_fwd` and `backward` with `torch.amp.custom_bwd`."
    fix_title = "Add `custom_fwd` and `custom_bwd`"
    fix_safety = "safe"
    triggers = ("Function)",)

    def applies(self, mode: Mode) -> bool:
        """Only autocast leaves types mixed."""
        return mode.autocast

    def visit_class(self, cls: ClassFacts, file: LintedFile) -> None:
        """Judge an autograd function."""
        module = file.module
        forward, backward = cls.methods.get("forward"), cls.methods.get("backward")
        if forward is None or backward is None or not cls.is_autograd_function:
            return
        if any(name.rpartition(".")[2] != "staticmethod" for name, _ in forward.decorators) or called_with_care(cls):
            return
        if _mentions_autocast(forward.node) or _mentions_autocast(backward.node):
            return
        inputs = tensor_inputs(forward)
        kinds = aligned(forward.node)
        mixed = self._multiplied(forward, backward, inputs, kinds)
        kernel = False
        if mixed is None and not NAMED_BATCH_NORM.search(cls.name):
            mixed, kernel = _passed(forward, inputs, kinds, module), True
        if mixed is None:
            self._run_again(file, cls, forward, backward)
            return
        names = " and ".join(f"`{name}`" for name in mixed[:2])
        what = "hands to a kernel" if kernel else "multiplies"
        partial = alignments(forward.node)
        place: ast.AST = partial[-1] if partial else forward.node
        # Weights are float32 beside activations; two activations may be alike.
        have = "have" if not kernel or any(map(NAMED_WEIGHT.search, mixed)) else "may have"
        message = f"`{cls.name}` {what} {names}, which {have} different types under autocast"
        self.report_in(file, place, message, fix=None if partial else _fix(module, forward, backward, kernel))

    def _run_again(self, file: LintedFile, cls: ClassFacts, forward: FunctionFacts, backward: FunctionFacts) -> None:
        """Judge a function that recomputes what it does not save, as a checkpoint does."""
        call = recomputed(forward, backward)
        if call is None or any(name.rpartition(".")[2] != "staticmethod" for name, _ in backward.decorators):
            return
        text = file.module.module.text(call.func)
        message = f"the backward of `{cls.name}` runs `{text}` again without the autocast that its forward ran it under"
        self.report_in(file, forward.node, message, fix=_fix(file.module, forward, backward, kernel=False))

    def _multiplied(
        self, forward: FunctionFacts, backward: FunctionFacts, inputs: list[str], kinds: dict[str, str]
    ) -> list[str] | None:
        """Two tensors that forward multiplies, where backward multiplies again."""
        if kinds or aligned(backward.node):
            return None
        second = aliases(forward.node)
        for _, names in products(forward.node):
            meant = [other for name in names for other in (name, *sorted(second.get(name, ())))]
            own = [name for name in dict.fromkeys(meant) if name in inputs]
            if len(own) > 1 and any(len(set(names)) > 1 for _, names in mixing(backward.node)):
                return own
        return None


def _passed(forward: FunctionFacts, inputs: list[str], kinds: dict[str, str], module: ModuleFacts) -> list[str] | None:
    """Two tensors of types that may differ and that a kernel is given."""
    saved = {*_saved(forward.node), *_TENSORS}
    second = aliases(forward.node)
    for _, names in kernels(forward.node, module):
        meant = [other for name in names for other in (name, *sorted(second.get(name, ())))]
        own = [name for name in dict.fromkeys(meant) if name in inputs and name in saved]
        if len({kinds.get(name, name) for name in own}) > 1:
            first = own[0]
            others = [name for name in own if kinds.get(name, name) != kinds.get(first, first)]
            return [first, next((name for name in others if NAMED_WEIGHT.search(name)), others[-1])]
    return None


"""Kernels of batch norm take float32 statistics with half activations."""
_TENSORS = frozenset("x input inputs input_ weight bias w b".split())
"""Names that are hardly given to anything but tensors."""


def _saved(node: ast.AST) -> list[str]:
    """The names that forward keeps for backward, which are tensors."""
    found = []
    for item in ast.walk(node):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute):
            if item.func.attr == "save_for_backward":
                found += [name for given in item.args for name in names_in(given)]
    return found


def _mentions_autocast(node: ast.AST) -> bool:
    return any(
        isinstance(item, (ast.Name, ast.Attribute)) and "autocast" in ast.unparse(item) for item in ast.walk(node)
    )


def _fix(module: ModuleFacts, forward: FunctionFacts, backward: FunctionFacts, kernel: bool) -> Fix:
    span = module.module.span
    cast = ", cast_inputs=torch.float32" if kernel else ""
    return Fix(
        "Add `custom_fwd` and `custom_bwd`",
        "safe",
        (
            TextEdit("decorate", span(forward.node), f'torch.amp.custom_fwd(device_type="cuda"{cast})'),
            TextEdit("decorate", span(backward.node), 'torch.amp.custom_bwd(device_type="cuda")'),
            TextEdit("import", span(forward.node), "import torch"),
        ),
    )
