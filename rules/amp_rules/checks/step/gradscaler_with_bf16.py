"""Scalers in scripts that compute in bfloat16."""

from __future__ import annotations

import ast

from amp_rules.lint.check import Check, LintedFile
from amp_rules.torch.mixed_precision import AUTOCASTS, is_scaler_name


class GradscalerWithBf16(Check):
    """A scaler is used although all that is computed in half is bfloat16.

    ## What it does

    Finds a `GradScaler` that is always on, in a file whose autocast regions all say `dtype=torch.bfloat16`.

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
        scalers: list[ast.Call] = []
        types: list[str | None] = []
        for item in ast.walk(module.module.tree):
            if not isinstance(item, ast.Call):
                continue
            name = module.dotted(item.func)
            if (
                name is not None
                and is_scaler_name(name)
                and not any(word.arg in ("enabled", None) for word in item.keywords)
            ):
                scalers.append(item)
            elif name in AUTOCASTS:
                given = next((word.value for word in item.keywords if word.arg == "dtype"), None)
                types.append(module.dotted(given) if given is not None else None)
        if types and all(name == "torch.bfloat16" for name in types):
            for call in scalers:
                self.report_in(
                    file, call, "the scaler does nothing useful: every autocast region of this file is bfloat16"
                )
