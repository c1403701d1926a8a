"""Optimizers that hold parameters the model no longer has."""

from __future__ import annotations

import ast

from amp_rules.checks.common.wrapping import BUILDS_OPTIMIZER, WrapEvent, is_assigned_between, optimizers, replacements
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.index import FileIndex, before
from amp_rules.source.syntax import spelling


class OptimizerBeforeWrap(Check):
    """Optimizers that hold parameters the model no longer has.

    ## What it does

    Finds an optimizer built from a model's parameters, also by a function that is called `build_optimizer` or alike
    and is given the model, followed by something that puts other parameters into that model:
    FullyShardedDataParallel, `fully_shard`, Apex's `convert_syncbn_model`, `get_peft_model`, `resize_token_embeddings`,
    or `model.head = nn.Linear(...)`.

    ## Why

    The optimizer goes on stepping the old tensors. After 20 steps on a layer that was put in afterwards, that layer
    has moved by exactly 0; no error is raised. `model.half()`, `.to(device)`, DistributedDataParallel and torch's
    `convert_sync_batchnorm` keep the parameters and are fine after the optimizer.

    ## Example

        optimizer = torch.optim.AdamW(model.parameters())
        model = FullyShardedDataParallel(model)

    ## Use instead

        model = FullyShardedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())

    ## When it is silent

    When the optimizer is built again or gets the new parameters with `add_param_group`, when the two stand in
    different branches or functions, and for `use_orig_params=True`.

    ## Source

    https://pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel
    """

    code = "AMP906"
    name = "optimizer-before-wrap"
    severity = "error"
    message = "The optimizer is built from parameters that are replaced afterwards."
    advice = "Build the optimizer after everything that changes the model's parameters."
    triggers = (
        "FullyShardedDataParallel", "fully_shard", "convert_syncbn_model", "get_peft_model", "resize_token_embeddings",
        ".fc = nn.", ".classifier = nn.", ".head = nn.", ".fc = torch.nn.", ".classifier = torch.nn.",
        ".head = torch.nn.",
    )  # fmt: skip

    def visit_module(self, file: LintedFile) -> None:
        """Look for a replacement below each optimizer."""
        module = file.module
        if not BUILDS_OPTIMIZER.search(module.module.source.text):
            return
        built = list(optimizers(module))
        if not built or "add_param_group" in module.index.words:
            return
        events = list(replacements(module))
        for call, model in built:
            event = next((item for item in events if self._is_stale(module.index, call, model, item)), None)
            if event is not None:
                message = f"This optimizer holds the parameters that `{model}` has now, and {event.what} later"
                self.report_in(file, call, message)

    def _is_stale(self, index: FileIndex, call: ast.Call, model: str, event: WrapEvent) -> bool:
        if not (event.model == model or event.model.startswith(model + ".")):
            return False
        if not index.precedes(call, event.node) or is_assigned_between(index, model, call, index.statement(event.node)):
            return False
        targets = {
            spelling(target) for target, value, _ in index.assignments if any(item is call for item in ast.walk(value))
        }
        return not any(
            spelling(target) in targets and before(event.node, value) and index.scope(value) is index.scope(call)
            for target, value, _ in index.assignments
        )
