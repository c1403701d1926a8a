"""Checkpoints without Apex's loss scale."""

from __future__ import annotations

import ast

from amp_rules.checks.common.apex_scripts import apex_calls
from amp_rules.checks.common.checkpoints import is_known_to, optimizer_loads, optimizer_saves
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.syntax import is_none
from amp_rules.torch.idioms import SCALER


class ApexStateNotSaved(Check):
    """A checkpoint holds the optimizer's state and not that of `amp`.

    ## What it does

    Finds what saves `optimizer.state_dict()`, or is given the optimizer and saves checkpoints, in a file that calls
    `amp.initialize` and nowhere `amp.state_dict()`. Where that is called, finds `optimizer.load_state_dict()` in a file
    that never calls `amp.load_state_dict()`.

    ## Why

    Apex keeps the loss scale of each loss in `amp.state_dict()`. A resumed run starts again at 65536: where training
    had settled at 1024 the first six steps overflow and are skipped.

    ## Example

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    ## Use instead

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}
        torch.save(state, path)

    ## When it is silent

    Where `amp.state_dict()` occurs anywhere in the file, and where the loss scale is a number, which never changes.

    ## Source

    https://nvidia.github.io/apex/amp.html#checkpointing
    """

    code = "AMP843"
    name = "apex-state-not-saved"
    severity = "info"
    message = "A checkpoint holds the optimizer's state and not that of `amp`."
    advice = "Save `amp.state_dict()` with the checkpoint and load it again after `amp.initialize`."
    triggers = ("amp.initialize(",)

    def visit_module(self, file: LintedFile) -> None:
        """Compare what is initialized with what is saved."""
        module = file.module
        made = apex_calls(module, "amp.initialize")
        if not made or all(map(_is_static, made)):
            return
        if not apex_calls(module, "amp.state_dict") and not _is_handed_on(module):
            for call in optimizer_saves(module):
                if not is_known_to(call, module, "amp.") and not _is_given_scaler(call):
                    message = "the optimizer's state is saved here without the loss scale of `amp`"
                    self.report_in(file, call, message)
        elif not apex_calls(module, "amp.load_state_dict") and not _is_handed_on(module):
            for call in optimizer_loads(module):
                message = "the optimizer's state is loaded here, but the saved state of `amp` is never loaded"
                self.report_in(file, call, message)


def _is_handed_on(module: ModuleFacts) -> bool:
    """Whether a function is given ``amp`` itself, and may ask it for its state."""
    return any(
        module.dotted(item) == "apex.amp"
        for call in module.index.calls
        for item in [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(item, (ast.Name, ast.Attribute))
    )


def _is_given_scaler(call: ast.Call) -> bool:
    """Whether what saves is given an object for the loss scale: timm's ``CheckpointSaver(amp_scaler=loss_scaler)``."""
    return any(item.arg is not None and SCALER in item.arg and not is_none(item.value) for item in call.keywords)


def _is_static(call: ast.Call) -> bool:
    """Whether the loss scale stays as it was: it is a number, or Apex is turned off."""
    scale = literal(keyword(call, "loss_scale"))
    return isinstance(scale, (int, float)) or literal(keyword(call, "enabled")) is False
