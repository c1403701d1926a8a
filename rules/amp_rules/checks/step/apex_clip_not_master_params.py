"""Clipping the half gradients of a model whose optimizer has others."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.apex_scripts import has_master_weights
from amp_rules.checks.common.step_events import APEX, GRAD_OPS, Event, StepCheck
from amp_rules.checks.common.step_text import calls_of
from amp_rules.lattice.abstract_values import IN_ONE_EXPRESSION, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import replacement
from amp_rules.lint.finding import Fix
from amp_rules.source.syntax import last_name, walk


class ApexClipNotMasterParams(StepCheck):
    """Under Apex O2 the model's gradients are clipped, and the optimizer steps with the master weights'.

    ## What it does

    Finds `clip_grad_norm_(model.parameters(), ...)`, norms of `p.grad` and noise that is added to it, for the
    parameters `p` of a model, after `with amp.scale_loss(...)` at level O2, or in a class of which another method
    scales the loss.

    ## Why

    When `scale_loss` ends, Apex writes unscaled float32 gradients to the master weights, which the optimizer holds.
    The model's own parameters keep float16 gradients that are still multiplied by the scale and that nobody reads
    again: clipping them changes nothing, and a gradient norm of 1e6 goes into the step as it is.

    ## Example

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    ## Use instead

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()

    ## When it is silent

    At O0 and O1, where the model's parameters are what the optimizer holds, and where the file clips master weights.

    ## Source

    https://nvidia.github.io/apex/advanced.html#gradient-clipping
    """

    code = "AMP842"
    name = "apex-clip-not-master-params"
    severity = "warning"
    message = "The model's gradients are clipped or changed where the optimizer uses those of the master weights."
    advice = "Clip `amp.master_params(optimizer)`."
    fix_title = "Clip the master weights"
    fix_safety = "safe"
    states = ("$master",)
    operations = (*StepCheck.operations, *GRAD_OPS)

    def applies(self, mode: Any) -> bool:
        """The file says at which level it runs."""
        return True

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Follow the backward pass to the clipping."""
        kind = event.kind
        if kind == "backward":
            return None, ("apex", event.node) if event.how == APEX else None
        if kind in ("step", "escape", "zero_grad"):
            return None, None
        if kind == "clip" and (state is not None or _scales_elsewhere(frame)):
            return ".parameters()" in frame.text(event.node), state
        if kind == "gradient" and state is not None and event.value is not None:
            return _is_of_model(event.value), state
        return None, state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the clipping."""
        if not has_master_weights(frame.module, frame) or "master_params" in frame.module.module.source.text:
            return
        call = event.node
        if event.kind == "gradient":
            message = "the model's gradient is used at O2, where the optimizer steps with the master weights' gradients"
            advice = "Use the parameters of `amp.master_params(optimizer)`."
            self.report(frame, call, message, advice=advice, here=True)
            return
        assert isinstance(call, ast.Call)
        arguments = [*call.args, *(item.value for item in call.keywords)]
        given = next(text for item in arguments if ".parameters()" in (text := frame.text(item)))
        message = f"`{given}` are clipped at O2, where the optimizer steps with the master weights' gradients"
        self.report(frame, call, message, fix=self._fix(call, frame), here=True)

    def _fix(self, clip: ast.Call, frame: Frame) -> Fix | None:
        root = frame.function.node if frame.function is not None else frame.module.module.tree
        calls = [(call, method) for call, method in calls_of(root, "scale_loss") if len(call.args) > 1]
        texts = {f"{frame.text(method.value)}.master_params({frame.text(call.args[1])})" for call, method in calls}
        is_torchs = last_name(clip.func) in ("clip_grad_norm_", "clip_grad_value_")
        if len(texts) != 1 or not clip.args or not is_torchs:
            return None
        return replacement(frame, "Clip the master weights", "safe", (clip.args[0], texts.pop()))


def _scales_elsewhere(frame: Frame) -> bool:
    """Whether another method of the class scales the loss."""
    cls = frame.function.cls if frame.function is not None and frame.caller is None else None
    return cls is not None and any(
        last_name(item.func) == "scale_loss" for item in walk(cls.node) if isinstance(item, ast.Call)
    )


def _is_of_model(op: Value) -> bool:
    """Whether a gradient is that of a parameter out of ``model.parameters()``."""
    held = source_of(op.args[0]).behind(IN_ONE_EXPRESSION)
    return any(item.op == "method" and item.data in ("parameters", "named_parameters") for item in held)
