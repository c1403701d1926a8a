"""Normalization by hand in half precision."""

from __future__ import annotations

from amp_rules.evidence.patterns import is_bounded, is_tensor, squared, unguarded, ways
from amp_rules.lint.check import Check
from amp_rules.lint.frame import Frame
from amp_rules.lint.mode import Mode
from amp_rules.lint.values import Value

_SMALLEST_EPSILON = 3.9e-4
"""The gradient of ``rsqrt`` at 0 plus this is 65504."""


class HandwrittenNormLowp(Check):
    """A layer norm, RMS norm or standardization by hand whose variance is in float16.

    ## What it does
    Finds ``(var + eps).sqrt()`` and ``torch.rsqrt(var + eps)`` where ``var`` is ``x.var(...)`` or a mean of squares
    that is computed in float16.

    ## Why
    The squares overflow where ``x`` is 256 away from its mean, which makes the result 0, and vanish below 1.7e-4.
    Where they vanish, ``eps`` alone is left, and the gradient of ``rsqrt`` is ``0.5 * eps ** -1.5``: with 1e-5 that is
    1.6e7, infinite in float16. ``var`` is on no list of autocast, so that it stays in float16 there too; ``pow`` and
    ``norm`` are on one on CUDA. The norms of torch compute in float32 whatever they are given.

    ## Example
        var = torch.var(x, dim=1, unbiased=False, keepdim=True)
        y = (x - mean) * (var + 1e-5).rsqrt()

    ## Use instead
        var = torch.var(x.float(), dim=1, unbiased=False, keepdim=True)
        y = ((x - mean) * (var + 1e-5).rsqrt()).to(x.dtype)

    ## When it is silent
    The variance is computed in float32, ``eps`` is 3.9e-4 or more, or it depends on something, as on the type of
    ``x``. In bfloat16, whose range is that of float32. Under autocast
    outside of modules.

    ## Source
    https://github.com/lucidrains/denoising-diffusion-pytorch raises the epsilon of its LayerNorm where the input is
    half; https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32 lists ``layer_norm``.
    """

    code = "AMP718"
    name = "handwritten-norm-lowp"
    severity = "error"
    message = "A normalization by hand computes its variance in float16."
    advice = "Convert the input to float32 first, or use the norm of torch.nn.functional."
    triggers = ("sqrt(", "** 0.5", "**0.5", "** -0.5", "**-0.5", "pow(")
    operations = ("sqrt", "rsqrt", "pow")

    def applies(self, mode: Mode) -> bool:
        """Only float16 overflows."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a root."""
        if not op.args or op.node is None or not is_tensor(op, frame):
            return
        if op.op == "pow" and not (len(op.args) == 2 and op.args[1].number in (0.5, -0.5)):
            return
        for item in ways(op.args[0]):
            guarded, epsilon = unguarded(item)
            number = epsilon.number if epsilon is not None else None
            if number is None or number >= _SMALLEST_EPSILON:
                continue
            for variance in ways(guarded):
                if _is_low_variance(variance, frame):
                    text, made = frame.text(op.node), frame.text(variance.node)
                    frame.report(self, op.node, f"`{text}` normalizes by `{made}`, which is in fp16")
                    return


def _is_low_variance(value: Value, frame: Frame) -> bool:
    given = value.args[0] if value.args else None
    if given is None:
        return False
    if value.op == "var":
        # Autocast leaves it in the type of an activation, which is half more often than not.
        known = value.maybe_low and _is_activation(frame) if frame.autocast else value.low
        return known and not is_bounded(given, 255.9)
    if value.op != "mean" or not value.low:
        return False
    roots = [squared(item) for item in ways(given)]
    return any(x is not None and not is_bounded(x, 255.9) for x in roots)


def _is_activation(frame: Frame) -> bool:
    function = frame.function
    return function is not None and function.cls is not None and function.cls.is_module
