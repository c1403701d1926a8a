"""Constant loss scales on half losses."""

from __future__ import annotations

from amp_rules.checks.common.number_limits import numbers_of, other_half
from amp_rules.lattice.abstract_values import PASSING, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_LARGEST_SCALE = 2.0**14
"""A loss of 4 overflows from this scale on."""


class LossScaleConstant(Check):
    """Constant loss scales on half losses.

    ## What it does
    Finds `(loss * scale).backward()` where the scale is a constant above 16384 and the loss is half.

    ## Why
    The product has the type of the loss, and float16 ends at 65504: a loss of 2 times 65536 is inf, and so is every
    gradient. `GradScaler.scale` multiplies in float32, starts at 65536 and lowers the scale when gradients overflow.

    ## Example
        loss = criterion(model(x), y).half()
        (loss * 65536.0).backward()

    ## Use instead
        loss = criterion(model(x), y).float()
        (loss * 65536.0).backward()

    ## When it is silent
    The loss is float32, as all losses of torch are under autocast on CUDA, the scale is small, or the mode is bfloat16.

    ## Source
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    code = "AMP608"
    name = "loss-scale-constant"
    severity = "error"
    message = "A half loss is multiplied by a constant scale that takes it out of range."
    advice = "Scale a float32 loss, best with `torch.amp.GradScaler`, which lowers its scale on overflow."
    triggers = (".backward(",)
    operations = ("backward",)

    def applies(self, mode: Mode) -> bool:
        """Only float16 is that narrow."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge what is differentiated."""
        scaled = op.args[0].through(PASSING | {"sum", "mean"}) if op.args else op
        if scaled.op != "mul" or len(scaled.args) < 2 or scaled.node is None or not scaled.low:
            return
        for loss, scale in (scaled.args[:2], scaled.args[1::-1]):
            numbers = numbers_of(scale)
            if not numbers or min(numbers) <= _LARGEST_SCALE or not loss.low:
                continue
            if frame.is_tensor(loss) and not other_half(loss, frame.mode):
                limit = frame.mode.largest / numbers[0]
                message = f"`{frame.text(scaled.node)}` is infinite in fp16 for losses above {limit:.2g}"
                self.report(frame, scaled.node, message, culprit=scale)
