"""Buffers of frequencies and positions that conversion to half rounds."""

from __future__ import annotations

from amp_rules.checks.common.mixed_types import float32_origin
from amp_rules.checks.common.position_counts import is_position
from amp_rules.lattice.abstract_values import F32, IN_A_FEW_LINES, LOW, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_LINEAR = frozenset("add sub mul div neg to float view reshape unsqueeze cat stack repeat expand getitem".split())


class BufferRegisteredLowp(Check):
    """Buffers of frequencies and positions that conversion to half rounds.

    ## What it does

    Looks for registered buffers that hold rotary frequencies (`1 / base ** (arange / dim)`) or positions in float32,
    in modes that convert the whole model.

    ## Why

    `model.half()` converts buffers that hold floats. The inverse frequencies then have 11 bits: `1 / 10000 ** (1 / 64)`
    is off by 2e-4 of its value, so that the angle at position 4096 is off by half a radian or more, and
    no later `.float()` brings the bits back.

    ## Example

        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)

    ## Use instead

        def _inv_freq(self, device):
            return 1.0 / (self.base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim))

    ## When it is silent

    Unless asked for (preview): what it finds is true, but harmless where positions are few or frequencies are computed
    anew. In autocast modes, which leave buffers alone, on integer buffers, and on tables of sines and cosines, whose
    rounding does not grow with the position.

    ## Source

    https://arxiv.org/abs/2411.13476
    """

    code = "AMP758"
    name = "buffer-registered-lowp"
    severity = "warning"
    preview = "what it finds is harmless where positions are few or frequencies are computed anew"
    message = "A buffer of frequencies or positions is converted to half with the model."
    advice = "Compute it in float32 in the forward pass, or keep it outside of the buffers."
    triggers = ("register_buffer",)
    operations = ("buffer",)

    def applies(self, mode: Mode) -> bool:
        """Autocast leaves buffers alone."""
        return not mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a buffer that is registered."""
        content = op.args[0] if op.args else None
        if content is None or op.node is None or not content.tensor or content.dtypes not in (F32, F32 | LOW):
            return
        if _is_frequency(content) or (_made_float(content) and is_position(content, frame.mode.largest_exact_integer)):
            self.report(frame, op.node, f"`{op.data}` is rounded to {frame.mode.dtype} when the model is converted")


def _made_float(value: Value) -> bool:
    return float32_origin(value) is not None


def _is_frequency(value: Value, depth: int = IN_A_FEW_LINES) -> bool:
    """Whether a value is a power whose exponents count channels."""
    if depth == 0 or (value.lo >= 0 and value.hi <= 1):
        return False
    if value.op in ("pow", "rpow", "exp"):
        exponent = value.args[-1]
        if value.args[0].number == 2:
            return False  # Powers of two are exact.
        return any(item.op == "arange" for item in exponent.behind(IN_A_FEW_LINES))
    return value.op in _LINEAR and any(_is_frequency(item, depth - 1) for item in value.args)
