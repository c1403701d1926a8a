"""Int8 models whose ranges are found under autocast."""

from __future__ import annotations

import ast

from amp_rules.checks.common.prepared_models import observed_calls
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword, literal
from amp_rules.torch.mixed_precision import AUTOCASTS
from amp_rules.torch.quantizing import RUNTIME_QUANTIZES


class QuantizedUnderAutocast(Check):
    """The ranges of an int8 model are found under autocast.

    ## What it does

    Finds calls of what `prepare`, `prepare_fx`, `prepare_pt2e` and their forms for training made inside of an autocast
    region, and `amp.quantize` there.

    ## Why

    A model that was prepared has observers between its layers, and its graph says where float32 is rounded to int8.
    Under autocast linear layers and convolutions give half: the ranges are those of numbers that were rounded once
    already, and the converted model, whose quantization takes float32 alone, raises an error or rounds twice.
    `amp.quantize` raises an error by itself.

    ## Example

        prepared = prepare_pt2e(exported, quantizer)
        with torch.no_grad(), torch.autocast("cuda"):
            for x, _ in loader:
                prepared(x)

    ## Use instead

        prepared = prepare_pt2e(exported, quantizer)
        with torch.no_grad():
            for x, _ in loader:
                prepared(x)

    ## When it is silent

    In regions that are turned off with `enabled=False`, and where the prepared model is called in another function than
    the one that made it.

    ## Source

    https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html
    """

    code = "AMP760"
    name = "quantized-under-autocast"
    severity = "warning"
    message = "The ranges of an int8 model are found under autocast."
    advice = "Calibrate in float32: take the loop out of the autocast region."
    triggers = ("quantization", ".quantize(")

    def applies(self, mode: Mode) -> bool:
        """Only autocast has regions."""
        return mode.autocast

    def visit_module(self, file: LintedFile) -> None:
        """Look at the calls of prepared models, and at what prepares them."""
        module = file.module
        for call in module.index.calls:
            if module.dotted(call.func) == RUNTIME_QUANTIZES and _in_region(call, module):
                self.report_in(file, call, "`amp.quantize` raises an error here, in an autocast region")
        for call, _ in observed_calls(module):
            if _in_region(call, module):
                text = module.module.text(call.func)
                self.report_in(file, call, f"`{text}` finds its ranges under autocast, from half numbers")


def _in_region(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether the innermost autocast region around a call, in its own function, is on."""
    inside: ast.AST = call
    for item in module.index.ancestors(call):
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return False
        if isinstance(item, (ast.With, ast.AsyncWith)) and inside in item.body:
            for part in reversed(item.items):
                region = part.context_expr
                if isinstance(region, ast.Call) and (module.dotted(region.func) or "") in AUTOCASTS:
                    enabled = keyword(region, "enabled")
                    return enabled is None or literal(enabled) is True
        inside = item
    return False
