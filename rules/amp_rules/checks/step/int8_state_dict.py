"""Int8 models of which only the weights are saved."""

from __future__ import annotations

import ast

from amp_rules.checks.common.checkpoints import is_saving
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import literal
from amp_rules.torch.quantizing import CONVERTED, RUNTIME_QUANTIZES


class Int8StateDict(Check):
    """An int8 model is saved by its `state_dict` alone.

    ## What it does

    Finds `torch.save(quantized.state_dict(), path)` of what `convert_pt2e`, `amp.convert_quantized` or
    `amp.quantize(model, "static")` gave.

    ## Why

    The ranges of what flows between the layers are numbers in the graph of such a model, and not tensors: they are not
    in its `state_dict`. To load it, the float model has to be exported, prepared and converted again, and gets the
    ranges of whatever it is calibrated with then. Weights and ranges no longer belong together, and nothing raises.

    ## Example

        quantized = convert_pt2e(prepared)
        torch.save(quantized.state_dict(), "int8.pt")

    ## Use instead

        quantized = convert_pt2e(prepared)
        torch.export.save(torch.export.export(quantized, (x,)), "int8.pt2")

    ## When it is silent

    For `amp.quantize(model, "dynamic")` and `quantize_` of torchao, whose ranges are found anew with each batch; where
    the file also writes the model whole, by `torch.export.save` or `amp.save_quantized`.

    ## Source

    https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html#save-and-load-quantized-model
    """

    code = "AMP829"
    name = "int8-state-dict"
    severity = "warning"
    message = "An int8 model is saved by its weights alone."
    advice = "Save it whole, with `torch.export.save` or `amp.save_quantized`."
    triggers = ("convert_pt2e", "convert_quantized", ".quantize(")

    def visit_module(self, file: LintedFile) -> None:
        """Look at the states that are saved."""
        module = file.module
        if any((module.dotted(call.func) or "") in _WHOLE for call in module.index.calls):
            return
        for call in module.index.named.get("state_dict", ()):
            if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
                continue
            values = module.index.values_of(call.func.value)
            if values and all(_is_converted(value, module) for value in values) and _is_saved(call, module):
                message = f"the ranges of `{call.func.value.id}` are in its graph, and not in its `state_dict`"
                self.report_in(file, call, message)


_WHOLE = frozenset({"torch.export.save", "amp_runtime.save_quantized", "torch.jit.save"})


def _is_converted(value: ast.expr, module: ModuleFacts) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = module.dotted(value.func) or ""
    if name == RUNTIME_QUANTIZES:
        kind = (
            value.args[1] if len(value.args) > 1 else next((k.value for k in value.keywords if k.arg == "kind"), None)
        )
        return literal(kind) == "static"
    return name in CONVERTED


def _is_saved(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a state stands in a call that saves."""
    child: ast.AST = call
    for item in module.index.ancestors(call):
        if isinstance(item, ast.Call) and child is not item.func and is_saving(item, module):
            return True
        if isinstance(item, ast.stmt):
            return False
        child = item
    return False
