"""Gradient penalties of gradients that are still scaled."""

from __future__ import annotations

from amp_rules.checks.common.step_events import SCALED, scaling_of
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_PENALTIES = frozenset({"norm", "vector_norm", "pow", "square"})
_FACTORS = frozenset({"mul", "div"})


class GradPenaltyScaled(Check):
    """A penalty is made of gradients that were never divided by the scale.

    ## What it does

    Finds norms and squares of what `torch.autograd.grad(scaler.scale(loss), ...)` returns.

    ## Why

    `torch.autograd.grad` gives gradients of the scaled loss and no `scaler.step` ever unscales them. A penalty on
    their square is 65536 * 65536 = 4.3e9 times too large, which is inf in float16, and changes with the scale.

    ## Example

        grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        penalty = sum(g.pow(2).sum() for g in grads).sqrt()

    ## Use instead

        grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        grads = [g / scaler.get_scale() for g in grads]
        penalty = sum(g.pow(2).sum() for g in grads).sqrt()

    ## When it is silent

    Where the gradients were multiplied or divided by anything since, and where the loss was not scaled.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty
    """

    code = "AMP824"
    name = "grad-penalty-scaled"
    severity = "warning"
    message = "A gradient penalty is made of gradients that are multiplied by the loss scale."
    advice = "Divide the gradients by `scaler.get_scale()` first."
    triggers = ("autograd.grad(",)
    operations = ("norm", "vector_norm", "pow", "square", "mul")

    def applies(self, mode: Mode) -> bool:
        """Scaling is for float16."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Follow what is squared back to where it was made."""
        if not op.args or (op.op == "mul" and op.args[0] is not op.args[-1]):
            return
        value = op.args[0]
        for _ in range(12):
            if value.op in _FACTORS or (value.op in _PENALTIES):
                return
            if value.op == "call" and value.data == "torch.autograd.grad":
                outputs = value.kwargs.get("outputs") if value.kwargs else None
                if outputs is None and value.args:
                    outputs = value.args[0]
                if scaling_of(outputs, frame)[0] == SCALED and op.node is not None:
                    message = "the penalty is made of gradients that are multiplied by the loss scale"
                    self.report(frame, op.node, message)
                return
            if not value.args:
                return
            value = value.args[0]
