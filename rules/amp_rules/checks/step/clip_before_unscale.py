"""Clipping gradients that are still scaled."""

from __future__ import annotations

import ast
import re
from typing import Any

from amp_rules.checks.common.step_events import (
    OWN,
    SCALED,
    SCALED_BACKWARD,
    Event,
    StepCheck,
    insert_before,
    is_wrapped,
    statement_of,
)
from amp_rules.checks.common.step_roles import is_scaler, scales_losses
from amp_rules.checks.common.step_text import calls_of, scaler_calls, text_mentions
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.paths import is_about_precision
from amp_rules.lint.check import LintedFile
from amp_rules.lint.finding import Fix
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import last_name
from amp_rules.torch.gradients import CLIP_METHODS, GRADIENT_HOOKS

_GOOD = ("unscaled",)
_LATE = ("clipped", "limited")
"""States that are told of at the step: what is not known to be scaled, and what is clipped under tests of its own."""


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
            late = kind == "scaler_step" and state is not None and state[0] in _LATE
            return (True if late else None), None
        if kind == "zero_grad" and state is not None and state[0] in _LATE:
            return None, None
        if kind == "clip":
            if state is None:
                return None, None if event.how == OWN else ("clipped", None, event.node)
            if state[0] == "scaled":
                return True, ("limited", state[1], event.node, state[2])
            return False, state
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
        if state[0] in _LATE:
            node = state[2]
            if text_mentions(frame, "unscale"):
                # Whoever calls this may have done it.
                return
        if state[0] == "limited" and not _is_certain(frame, node, state[3]):
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
        if not all(_tests_around(frame, item) <= _tests_around(frame, node) for item in _steps(frame)):
            # Where no loss is scaled the scaler refuses it, or is none.
            return None
        text = f"{holder}.unscale_({argument})"
        return insert_before(frame, node, text, f"Call `{text}` first")


def _is_certain(frame: Frame, node: ast.AST, backward: ast.AST) -> bool:
    """Whether what is clipped is stepped by the scaler: no test keeps the one from the other.

    What is clipped in a function that is called here was told of where it is called.
    """
    if statement_of(frame, node) is None:
        return False
    around, scaled = _tests_around(frame, node), _tests_around(frame, backward)
    if any(_is_about_half(frame, item) for item in around - scaled):
        return False
    same = {frame.text(item.test) for item in scaled}
    tests = {item for step in _steps(frame) for item in _tests_around(frame, step) - around}
    return all(frame.text(item.test) in same or _is_about_half(frame, item) for item in tests)


def _is_about_half(frame: Frame, branch: ast.If) -> bool:
    # ``clip_grad_norm`` is a word of all steps.
    return is_about_precision(re.sub(r"\w*grad\w*", "", frame.text(branch.test)))


def _steps(frame: Frame) -> list[ast.AST]:
    """The calls of ``scaler.step(optimizer)`` in the function."""
    root = frame.function.node if frame.function is not None else frame.module.module.tree
    return [call for call, method in calls_of(root, "step") if call.args and is_scaler(None, method.value)]


def _tests_around(frame: Frame, node: ast.AST) -> set[ast.If]:
    return {item for item in frame.module.index.ancestors(node) if isinstance(item, ast.If)}


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
