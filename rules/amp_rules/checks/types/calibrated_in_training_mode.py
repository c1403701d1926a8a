"""Int8 models whose ranges are found in training mode."""

from __future__ import annotations

import ast

from amp_rules.checks.common.prepared_models import observed_calls, trains
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.torch.quantizing import CALIBRATED


class CalibratedInTrainingMode(Check):
    """A model is calibrated for int8 in training mode.

    ## What it does

    Finds calls of what `prepare`, `prepare_fx` or `prepare_pt2e` made of a model that is in training mode: it was just
    made, or `train()` was called last. A model that `torch.export` wrote down keeps the mode of that moment.

    ## Why

    Observers note the ranges of what flows between the layers. In training mode dropout sets some of it to zero and
    scales the rest up, and batch norm takes the mean and variance of the batch: the ranges are those of a model that
    nobody will run. Batch norm goes on to write the calibration data into its running statistics, and what is in
    training mode is not folded into the layer before it. Nothing raises; the int8 model is just less accurate.

    ## Example

        model = Net()
        model.load_state_dict(torch.load("best.pt"))
        model.qconfig = get_default_qconfig("x86")
        prepared = prepare(model)
        with torch.no_grad():
            for x, _ in loader:
                prepared(x)

    ## Use instead

        model = Net()
        model.load_state_dict(torch.load("best.pt"))
        model.eval()
        model.qconfig = get_default_qconfig("x86")
        prepared = prepare(model)
        with torch.no_grad():
            for x, _ in loader:
                prepared(x)

    ## When it is silent

    Where the model is given to a function that may change its mode, or comes from one; where no layer of its class
    computes something else in training; where the same function trains, and after `prepare_qat`, which wants training
    mode.

    ## Source

    https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html
    """

    code = "AMP761"
    name = "calibrated-in-training-mode"
    severity = "warning"
    message = "A model is calibrated for int8 in training mode."
    advice = "Call `eval()` before the model is prepared or exported."
    triggers = ("quantization",)

    def visit_module(self, file: LintedFile) -> None:
        """Look at the calls of prepared models; of each, the first one is told."""
        module = file.module
        told: set[ast.Call] = set()
        for call, prepared in observed_calls(module):
            if prepared in told or (module.dotted(prepared.func) or "") not in CALIBRATED:
                continue
            if trains(call.func, call, module) and not _trains_here(call, module):
                told.add(prepared)
                text = module.module.text(call.func)
                message = f"`{text}` finds its ranges in training mode, with dropout and the batch norm of each batch"
                self.report_in(file, call, message)


def _trains_here(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether the function of a call also trains."""
    scope = module.index.scope(call)
    return any(module.index.scope(other) is scope for other in module.index.named.get("backward", ()))
