"""Checkpoints without the scale."""

from __future__ import annotations

import ast

from amp_rules.checks.common.step_events import is_optimizer, is_wrapped
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import SCALER
from amp_rules.torch.mixed_precision import is_scaler_name


class ScalerStateNotSaved(Check):
    """A checkpoint holds the optimizer's state and not the scaler's.

    ## What it does

    Finds a `GradScaler` in a file that writes `optimizer.state_dict()`, or hands the optimizer to a function that
    saves checkpoints, and that nowhere writes the scaler's `state_dict()`.

    ## Why

    A run that is resumed starts again from a scale of 65536. Where training had settled at 1024 the first six steps
    overflow and are skipped; where it had grown to 2**24, gradients below 4.5e-13 that used to survive are lost for the
    16000 steps that it takes to grow back.

    ## Example

        scaler = torch.amp.GradScaler("cuda")
        train(model, optimizer, scaler)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    ## Use instead

        scaler = torch.amp.GradScaler("cuda")
        train(model, optimizer, scaler)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        torch.save(state, path)

    ## When it is silent

    Where the scaler's state is written anywhere in the file, or the scaler is handed to what saves.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#saving-resuming
    """

    code = "AMP822"
    name = "scaler-state-not-saved"
    severity = "warning"
    message = "A checkpoint holds the optimizer's state and not the scaler's."
    advice = "Save `scaler.state_dict()` with the checkpoint and load it again."
    triggers = ("GradScaler(",)

    def applies(self, mode: Mode) -> bool:
        """Scaling is for float16."""
        return mode.fp16

    def visit_module(self, file: LintedFile) -> None:
        """Compare what is made with what is saved."""
        module = file.module
        made: list[ast.Call] = []
        saves = writes = False
        for item in ast.walk(module.module.tree):
            if not isinstance(item, ast.Call):
                continue
            if is_scaler_name(module.dotted(item.func) or "") and not _is_off(item):
                made.append(item)
            name = last_name(item.func)
            if name in ("state_dict", "load_state_dict") and isinstance(item.func, ast.Attribute):
                if SCALER in last_name(item.func.value).lower():
                    return
                saves = saves or (name == "state_dict" and is_optimizer(None, item.func.value))
            writes = writes or "save" in name or "checkpoint" in name.lower()
            if "save" in name or "checkpoint" in name.lower():
                given = [last_name(part) for part in [*item.args, *(word.value for word in item.keywords)]]
                if any(SCALER in part.lower() for part in given):
                    return
                saves = saves or any(is_optimizer(None, part) for part in item.args)
        if made and saves and writes and not is_wrapped(module):
            self.report_in(
                file, made[0], "the scale of this scaler is in no checkpoint, though the optimizer's state is"
            )


def _is_off(call: ast.Call) -> bool:
    return any(item.arg == "enabled" and isinstance(item.value, ast.Constant) for item in call.keywords)
