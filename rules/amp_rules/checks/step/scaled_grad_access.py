"""Reading or changing gradients that are still scaled."""

from __future__ import annotations

from typing import Any

from amp_rules.checks.common.step_events import GRAD_OPS, SCALED, Event, StepCheck
from amp_rules.lattice.frame import Frame

_GOOD = ("unscaled",)
_WHAT = {"add": "added to", "clamp": "clamped", "clamp_min": "clamped", "clamp_max": "clamped"}


class ScaledGradAccess(StepCheck):
    """Gradients are measured or changed before the scale is taken out of them.

    ## What it does

    Finds norms, means and maxima of `p.grad`, and additions to it or clamps of it, between
    `scaler.scale(loss).backward()` and `scaler.step(optimizer)` without `scaler.unscale_(optimizer)`.

    ## Why

    Gradients of a scaled loss are 65536 times too large to begin with, and by another factor after each change of the
    scale. A norm that is logged jumps by powers of two, noise or weight decay that is added to them is divided away by
    65536 in `scaler.step`, and a clamp to 1.0 is a clamp to 0.000015.

    ## Example

        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p) * sigma)
        scaler.step(optimizer)

    ## Use instead

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p) * sigma)
        scaler.step(optimizer)

    ## When it is silent

    For factors, sums over processes and tests for infinity, which the scale does not matter to, and where
    `unscale_` was called on a way that leads here.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients
    """

    code = "AMP812"
    name = "scaled-grad-access"
    severity = "warning"
    message = "Gradients are read or changed while they are still multiplied by the loss scale."
    advice = "Call `scaler.unscale_(optimizer)` before gradients are read."
    states = ("$grads",)
    operations = (*StepCheck.operations, *sorted(GRAD_OPS))

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Follow the scale from the backward pass to the access."""
        kind = event.kind
        if kind == "backward":
            return None, ("scaled", event.node) if event.how == SCALED else None
        if kind == "unscale":
            return None, _GOOD
        if kind in ("scaler_step", "update", "escape", "zero_grad"):
            return None, None
        if kind == "gradient" and state is not None:
            return state != _GOOD, state
        return None, state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the access."""
        op = event.value.op if event.value is not None else ""
        what = _WHAT.get(op, f"read by `{op}`")
        self.report(frame, event.node, f"the gradient is {what} while it is multiplied by the loss scale", here=True)
