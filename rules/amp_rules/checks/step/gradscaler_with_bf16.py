"""Scalers in scripts that compute in bfloat16."""

from __future__ import annotations

import ast

from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword, literal
from amp_rules.torch.mixed_precision import AUTOCASTS, is_scaler_name


class GradscalerWithBf16(Check):
    """A scaler is used although all that is computed in half is bfloat16.

    ## What it does

    Finds a `GradScaler` that is always on, in a file whose autocast regions all say `dtype=torch.bfloat16`, or in the
    branch of a test like `precision == "bf16"`.

    ## Why

    Bfloat16 has the exponents of float32: a gradient of 1e-38 survives, and there is nothing to scale. The scaler
    doubles its scale every 2000 steps all the same, looks at every gradient for infinities in each step, and skips
    steps once scale times loss overflows.

    ## Example

        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(x), y)

    ## Use instead

        scaler = torch.amp.GradScaler("cuda", enabled=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(x), y)

    ## When it is silent

    Where `enabled` is given to the scaler, and where one region has another type or one that is computed.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    code = "AMP817"
    name = "gradscaler-with-bf16"
    severity = "info"
    message = "A scaler is used although bfloat16 needs none."
    advice = "Leave the scaler out, or create it with `enabled=False`."
    triggers = ("GradScaler(",)

    def visit_module(self, file: LintedFile) -> None:
        """Compare the scalers of a file with its regions."""
        module = file.module
        scalers = [
            call
            for call in module.index.calls
            if is_scaler_name(module.dotted(call.func) or "") and keyword(call, "enabled") is None
        ]
        regions = [call for call in module.index.calls if module.dotted(call.func) in AUTOCASTS]
        types = [module.dotted(given) if (given := keyword(call, "dtype")) is not None else None for call in regions]
        if types and all(name == "torch.bfloat16" for name in types):
            message = "the scaler does nothing useful: every autocast region of this file is bfloat16"
            for call in scalers:
                if not any(item.arg is None for item in call.keywords):
                    self.report_in(file, call, message)
            return
        for call in scalers:
            if any(_says_bfloat16(test, outcome, module) for test, outcome in module.index.branches(call)):
                self.report_in(file, call, "the scaler does nothing useful: this branch is for bfloat16")


def _says_bfloat16(test: ast.expr, outcome: bool, module: ModuleFacts) -> bool:
    """Whether a test that comes out so says that the type is bfloat16, and nothing else."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is outcome:
        return any(_says_bfloat16(item, outcome, module) for item in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _says_bfloat16(test.operand, not outcome, module)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Eq, ast.Is)):
        return False
    sides = (test.left, test.comparators[0])
    named = any(literal(item) in ("bf16", "bfloat16") or module.dotted(item) == "torch.bfloat16" for item in sides)
    return outcome and named
