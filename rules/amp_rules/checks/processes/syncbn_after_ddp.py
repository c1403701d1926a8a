"""Batch norm that is made synchronised inside of DistributedDataParallel."""

from __future__ import annotations

from amp_rules.checks.common.wrapping import comes_first, conversions, is_assigned_between, wrapped_models
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Severity


class SyncbnAfterDdp(Check):
    """Batch norm that is made synchronised inside of DistributedDataParallel.

    ## What it does

    Finds `convert_sync_batchnorm` or Apex's `convert_syncbn_model` on a model that the lines above, or a method of the
    class that is called before, have wrapped in `DistributedDataParallel`.

    ## Why

    Wrapping registers hooks on the parameters that are there. Apex builds new layers with copies of them: 0 of a
    batch norm's 2 parameters are averaged over the processes afterwards, and the processes' models drift apart.
    torch keeps the parameters, but the wrapper's checks are over: it refuses synchronised batch norm on a CPU when
    it is built around it, and says nothing here, so that the first forward pass fails instead. Before torch 1.9 that
    pass fails on every device.

    ## Example

        model = DistributedDataParallel(model)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)

    ## Use instead

        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = DistributedDataParallel(model)

    ## When it is silent

    When the model is wrapped afterwards, in another function, or in the other branch of an `if`.

    ## Source

    https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """

    code = "AMP904"
    name = "syncbn-after-ddp"
    severity = "warning"
    message = "Batch norm is made synchronised after the model was wrapped in DistributedDataParallel."
    advice = "Make batch norm synchronised first, then build the optimizer, then wrap the model."
    triggers = ("convert_sync_batchnorm", "convert_syncbn_model")

    def visit_module(self, file: LintedFile) -> None:
        """Look for the wrapping above each conversion."""
        module = file.module
        index = module.index
        wrapped = list(wrapped_models(module))
        for conversion in conversions(module):
            for wrap in wrapped:
                if wrap.model != conversion.model or not comes_first(module, wrap, conversion.node):
                    continue
                if not is_assigned_between(index, wrap.model, wrap.node, index.statement(conversion.node)):
                    name = conversion.what
                    message = f"`{name}` comes after `{wrap.model}` was wrapped in DistributedDataParallel"
                    severity: Severity | None = "error" if name == "convert_syncbn_model" else None
                    self.report_in(file, conversion.node, message, severity=severity)
                    break
