"""Clipping gradients that are still scaled."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.step_events import (
    OWN,
    SCALED,
    SCALED_BACKWARD,
    Event,
    StepCheck,
    insert_before,
    is_wrapped,
)
from amp_rules.checks.common.step_roles import scales_losses
from amp_rules.checks.common.step_text import scaler_calls, text_mentions
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import LintedFile
from amp_rules.lint.finding import Fix
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import last_name
from amp_rules.torch.gradients import CLIP_METHODS, GRADIENT_HOOKS

_GOOD = ("unscaled",)


class ClipBeforeUnscale(StepCheck):
    """Gradients are clipped before the scale is taken out of them.

    ## What it does

    Finds `clip_grad_norm_`, `clip_grad_value_` and the like between `scaler.scale(loss).backward()` and
    `scaler.step(optimizer)` where no `scaler.unscale_(optimizer)` comes first.

    ## Why

    The loss was multiplied by the scale, 65536 to begin with, and so were the gradients. A limit of 1.0 then is a limit
    of 1/65536: each step is shrunk to nothing, with a norm that depends on what the scale happens to be. On a small
    model the norm that `clip_grad_norm_` returns is 340535 instead of 5.2. Nothing raises.

    ## Example

        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    ## Use instead

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    ## When it is silent

    Where `unscale_` is called on one of the ways that lead here, where the backward pass is not of a scaled loss, and
    in files that leave the step to Accelerate, Lightning or DeepSpeed.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
    """

    code = "AMP811"
    name = "clip-before-unscale"
    severity = "warning"
    message = "Gradients are clipped while they are still multiplied by the loss scale."
    advice = "Call `scaler.unscale_(optimizer)` before clipping."
    fix_title = "Unscale the gradients first"
    fix_safety = "safe"
    states = ("$clip",)
    file_triggers = ("GradScaler(", SCALED_BACKWARD)

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Follow the scale from the backward pass to the clipping."""
        kind = event.kind
        if kind == "backward":
            return None, ("scaled", event.scaler, event.node) if event.how == SCALED else None
        if kind in ("unscale",):
            return None, _GOOD
        if kind in ("scaler_step", "update", "escape"):
            late = kind == "scaler_step" and state is not None and state[0] == "clipped"
            return (True if late else None), None
        if kind == "zero_grad" and state is not None and state[0] == "clipped":
            return None, None
        if kind == "clip":
            if state is None:
                return None, None if event.how == OWN else ("clipped", None, event.node)
            return state[0] == "scaled", state
        return None, state

    def visit_module(self, file: LintedFile) -> None:
        """Judge hooks that limit gradients in a file that scales losses."""
        module = file.module
        if is_wrapped(module) or not scales_losses(module):
            return
        message = "a hook limits gradients that are still multiplied by the loss scale"
        for call in module.index.calls:
            name = last_name(call.func)
            if name in GRADIENT_HOOKS and _limits(call):
                self.report_in(file, call, message)
            elif "clip" in name.lower() and name not in CLIP_METHODS:
                found = module.project.resolve(module, module.dotted(call.func) or "")
                hooks = found.nodes if isinstance(found, FunctionFacts) and found.module is not module else []
                if any(_hooks_limit(item) for item in hooks):
                    self.report_in(file, call, f"{message}, in `{name}`")

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the clipping."""
        node: ast.AST = event.node
        if state[0] == "clipped":
            node = state[2]
            if text_mentions(frame, "unscale"):
                # Whoever calls this may have done it.
                return
        assert isinstance(node, ast.Call)
        clip = last_name(node.func)
        message = f"`{clip}` clips gradients that are still multiplied by the loss scale"
        since = state[2] if state[0] == "scaled" else None
        self.report(frame, node, message, fix=self._fix(node, frame), here=True, since=since)

    def _fix(self, node: ast.AST, frame: Frame) -> Fix | None:
        calls = scaler_calls(frame, "step")
        texts = {(holder, argument) for holder, argument in calls}
        if len(texts) != 1:
            return None
        holder, argument = texts.pop()
        text = f"{holder}.unscale_({argument})"
        return insert_before(frame, node, text, f"Call `{text}` first")


def _hooks_limit(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in GRADIENT_HOOKS and _limits(node)


def _limits(call: ast.Call) -> bool:
    """Whether a hook is a clamp of its argument."""
    hook = call.args[0] if call.args else None
    if not isinstance(hook, ast.Lambda) or not isinstance(hook.body, ast.Call) or not hook.args.args:
        return False
    limited = hook.body
    given = [*limited.args, *([limited.func.value] if isinstance(limited.func, ast.Attribute) else [])]
    name = hook.args.args[-1].arg
    return last_name(limited.func).startswith(("clamp", "clip")) and any(
        isinstance(item, ast.Name) and item.id == name for item in given
    )
