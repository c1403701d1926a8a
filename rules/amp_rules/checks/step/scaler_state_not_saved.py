"""Checkpoints without the scale."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.checks.common.checkpoints import (
    handed_on,
    is_known_to,
    is_loading,
    is_saving,
    optimizer_loads,
    optimizer_saves,
    state_of,
)
from amp_rules.checks.common.step_events import SCALED_BACKWARD, is_wrapped
from amp_rules.checks.common.step_roles import scaler_names
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import Function, keyword, literal
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import SCALER
from amp_rules.torch.mixed_precision import LEVEL_VARIABLE, has_loss_scale


class ScalerStateNotSaved(Check):
    """A checkpoint holds the optimizer's state and not the scaler's.

    ## What it does

    Finds `optimizer.state_dict()` in what is saved, and calls of functions that save checkpoints and are given the
    optimizer, in files that scale losses and nowhere write the scaler's `state_dict()`. Where it is written, finds
    `optimizer.load_state_dict()` in files that never load the scaler's.

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

    Where the scaler's state is written anywhere in the file, or the scaler is handed to what saves, or what saves is
    given `self`, `**state` or another object that may hold it. Migrated scripts keep the keys of their checkpoints
    where AMP118 does not know who reads them, so the scaler of `amp_runtime` is not asked for, nor one that
    `AMP_OPT_LEVEL` turns off, as migrations to plain PyTorch write it.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#saving-resuming
    """

    code = "AMP822"
    name = "scaler-state-not-saved"
    severity = "warning"
    message = "A checkpoint holds the optimizer's state and not the scaler's."
    advice = "Save `scaler.state_dict()` with the checkpoint and load it again."
    triggers = ("GradScaler(", "NativeScaler", SCALED_BACKWARD, ".unscale_(")

    def applies(self, mode: Mode) -> bool:
        """Scaling is for float16."""
        return mode.fp16

    def visit_module(self, file: LintedFile) -> None:
        """Compare what is made with what is saved."""
        module = file.module
        made = [call for call in module.index.calls if _makes(call, module)]
        used = scaler_names(module)
        if LEVEL_VARIABLE in module.module.source.text:
            return
        if is_wrapped(module) or not (made or used) or (made and all(map(_is_off, made))):
            return

        def is_it(node: ast.expr) -> bool:
            name = last_name(node)
            return SCALER in name.lower() or name in used

        if not (state_of(module, is_it, "state_dict") or handed_on(module, is_it, is_saving)):
            self._missing(file, bool(made), is_it)
        elif not (state_of(module, is_it, "load_state_dict") or handed_on(module, is_it, is_loading)):
            for call in optimizer_loads(module):
                message = "the optimizer's state is loaded here, but the saved state of the scaler is never loaded"
                self.report_in(file, call, message)

    def _missing(self, file: LintedFile, made: bool, is_it: Callable[[ast.expr], bool]) -> None:
        module = file.module
        for call in optimizer_saves(module):
            if is_known_to(call, module, SCALER, "amp."):
                continue
            if made or _is_beside(call, module, is_it):
                message = (
                    "the optimizer's state is saved here without the scaler's state, so the scale starts at 65536 again"
                )
                self.report_in(file, call, message)


def _makes(call: ast.Call, module: ModuleFacts) -> bool:
    return has_loss_scale(module.dotted(call.func) or "")


def _is_off(call: ast.Call) -> bool:
    return literal(keyword(call, "enabled")) is False


def _is_beside(call: ast.Call, module: ModuleFacts, is_it: Callable[[ast.expr], bool]) -> bool:
    """Whether the class or function that saves is the one that scales, where the file does not make the scaler."""
    around = [item for item in module.index.ancestors(call) if isinstance(item, (Function, ast.ClassDef))]
    if not around:
        return False
    scaling = module.index.named.get("scale", ())
    return any(
        isinstance(other.func, ast.Attribute)
        and is_it(other.func.value)
        and not (module.dotted(other.func) or "").startswith("amp_runtime.")
        and any(item is around[-1] for item in module.index.ancestors(other))
        for other in scaling
    )
