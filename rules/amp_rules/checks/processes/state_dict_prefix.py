"""Checkpoints whose keys begin with the wrapper's name."""

from __future__ import annotations

import ast

from amp_rules.checks.common.wrapping import WrapEvent, is_assigned_between, second_names, wrapped_models
from amp_rules.lint.check import Check, LintedFile, replacement
from amp_rules.source.index import FileIndex
from amp_rules.source.syntax import spelling


class StateDictPrefix(Check):
    """Checkpoints whose keys begin with the wrapper's name.

    ## What it does

    Finds `model.state_dict()` inside of `torch.save(...)`, below the line that wraps `model` in
    DistributedDataParallel in the same function.

    ## Why

    The wrapper holds the model as `module`, so each key begins with `module.`. Loading the file into the bare model,
    as inference does, finds none of its keys: a linear layer has 2 missing and 2 unexpected ones, and
    `load_state_dict` raises.

    ## Example

        model = DistributedDataParallel(model)
        torch.save(model.state_dict(), "model.pt")

    ## Use instead

        torch.save(model.module.state_dict(), "model.pt")

    ## When it is silent

    When the file strips prefixes or unwraps models anywhere, and when the saving and the wrapping stand in different
    functions or branches.

    ## Source

    https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    code = "AMP908"
    name = "state-dict-prefix"
    severity = "info"
    message = "The keys of a checkpoint begin with `module.`."
    advice = "Save `model.module.state_dict()`, which loads with and without a wrapper."
    fix_title = "Save the model within the wrapper"
    fix_safety = "unsafe"
    preview = "prefixed keys are right where the file is loaded into a wrapped model again"
    triggers = ("DistributedDataParallel",)

    def visit_module(self, file: LintedFile) -> None:
        """Look for the states of wrapped models."""
        module = file.module
        index = module.index
        if index.words & {
            "module",
            "unwrap",
            "unwrap_model",
            "strip_prefix",
            "consume_prefix_in_state_dict_if_present",
        }:
            return
        for event in wrapped_models(module):
            names = {event.model, *second_names(index, event.model)}
            for call in index.named.get("state_dict", ()):
                assert isinstance(call.func, ast.Attribute)
                if spelling(call.func.value) in names and _is_saved(index, event, call):
                    edit = (call.func.value, f"{event.model}.module")
                    fix = replacement(file, self.fix_title, "unsafe", edit)
                    text = f"The keys of `{module.module.text(call)}` begin with `module.`: `{event.model}` is wrapped"
                    self.report_in(file, call, text, fix=fix)


def _is_saved(index: FileIndex, event: WrapEvent, call: ast.Call) -> bool:
    if not index.precedes(event.node, call) or any(True for _ in index.branches(event.node)):
        return False
    if is_assigned_between(index, event.model, event.node, index.statement(call)):
        return False
    return any(
        isinstance(item, ast.Call) and (spelling(item.func) or "").endswith("save") for item in index.ancestors(call)
    )
