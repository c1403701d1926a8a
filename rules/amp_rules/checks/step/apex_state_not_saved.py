"""Checkpoints without Apex's loss scale."""

from __future__ import annotations

import ast

from amp_rules.checks.common.apex_scripts import calls_named
from amp_rules.checks.common.step_events import is_optimizer
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.syntax import last_name


class ApexStateNotSaved(Check):
    """A checkpoint holds the optimizer's state and not that of `amp`.

    ## What it does

    Finds `amp.initialize` in a file that saves `optimizer.state_dict()` and nowhere `amp.state_dict()`.

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

    Where `amp.state_dict()` or `amp.load_state_dict()` occurs anywhere in the file.

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
        made = calls_named(module, "amp.initialize")
        if not made or calls_named(module, "amp.state_dict", "amp.load_state_dict"):
            return
        saves = writes = False
        for item in ast.walk(module.module.tree):
            if isinstance(item, ast.Call):
                name = last_name(item.func)
                writes = writes or "save" in name
                if name == "state_dict" and isinstance(item.func, ast.Attribute):
                    saves = saves or is_optimizer(None, item.func.value)
        if saves and writes:
            self.report_in(
                file, made[0], "the loss scale of `amp` is in no checkpoint, though the optimizer's state is"
            )
