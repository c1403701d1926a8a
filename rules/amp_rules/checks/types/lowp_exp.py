"""Exponentials of what half precision has no room for."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import (
    bounded_above,
    described,
    is_gaussian,
    is_tensor,
    operand,
    runs_in_half,
    terms,
)
from amp_rules.lattice.abstract_values import PARAMETER, Value, alternatives, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.torch.idioms import NAMED_LOGARITHM, NAMED_LOGIT_SCALE

_LIMITS = {"exp": 11.089, "expm1": 11.089, "exp2": 15.999, "sinh": 11.78, "cosh": 11.78}


class LowpExp(Check):
    """An exponential in float16 of a value that nothing bounds.

    ## What it does
    Finds ``exp``, ``expm1``, ``exp2``, ``sinh`` and ``cosh`` that a model or loss computes in float16 of a value that
    is not bounded from above.

    ## Why
    ``exp(11.1)`` is more than 65504, so it is infinite in float16, and ``inf / inf`` and ``inf * 0`` are NaN. Cosine
    similarities divided by a temperature of 0.07 reach 14.3 already. Autocast computes ``exp``, ``expm1``, ``sinh`` and
    ``cosh`` in float32 on CUDA, but neither ``exp2`` nor ``exp_`` and others in place, nor anything on the CPU.

    ## Example
        weights = torch.exp(self.score(x))

    ## Use instead
        weights = torch.exp(self.score(x).float())

    ## When it is silent
    In bfloat16, whose range is that of float32. Where the argument cannot be large: its maximum was subtracted, it was
    clamped, it is the result of ``tanh``, ``log_softmax`` or the like, it is a negative or a multiple of a square or
    distance (a decay, a Gaussian). Where it is a weight of the model and no scale of logits by its name
    (`logit_scale`, `temperature`, which training lets grow unless they are clamped), or the logarithm of something by
    its name (``logvar``, ``log_std``).
    Outside of modules, losses and optimizers, where nothing but the mode says that values are half.

    ## Source
    https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32 lists ``exp`` among the
    operations that need float32.
    """

    code = "AMP703"
    name = "lowp-exp"
    severity = "error"
    message = "An exponential is infinite in float16 from 11.09 on."
    advice = "Convert the argument to float32, clamp it, or subtract its maximum."
    triggers = ("exp(", "exp2(", "expm1(", "exp_(", "sinh(", "cosh(")
    operations = tuple(_LIMITS)

    def applies(self, mode: Mode) -> bool:
        """Only float16 overflows that early."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an exponential."""
        if not op.low or not op.args or op.node is None:
            return
        limit, given = _LIMITS[op.op], op.args[0]
        if bounded_above(given, limit) or _is_called_log(op) or (_is_modest(given) and not _is_learned_scale(op)):
            return
        if is_tensor(op, frame) and runs_in_half(given, frame):
            message = f"`{frame.text(op.node)}` is infinite in fp16 where `{described(frame, op)}` is above {limit:.1f}"
            self.report(frame, op.node, message)


def _is_modest(value: Value) -> bool:
    """Whether it is a weight, or negative as the author means it: a Gaussian, a decay, ``-x``."""
    if all(_is_weight(item) for _, item in terms(value)) or is_gaussian(value):
        return True
    return _has_negation(value)


def _is_weight(value: Value) -> bool:
    """Whether it is a weight, or one where the settings say so and nothing else."""
    items = [item for item in alternatives(value) if not (item.is_const and item.const is None)]
    return bool(items) and all(item.bits & PARAMETER for item in items)


def _is_learned_scale(op: Value) -> bool:
    """Whether the argument is a weight that logits are multiplied by, and grows as long as that helps."""
    node, held = operand(op), source_of(op.args[0])
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return held.op == "parameter" and bool(NAMED_LOGIT_SCALE.search(name.lower()))


def _has_negation(value: Value) -> bool:
    value = source_of(value)
    number = value.number
    return (
        value.op == "neg"
        or (number is not None and number < 0)
        or (value.op in ("mul", "div") and any(_has_negation(item) for item in value.args))
    )


def _is_called_log(op: Value) -> bool:
    """Whether the argument is called a logarithm, whose exponential was representable before."""
    node = operand(op)
    for item in ast.walk(node) if node is not None else ():
        name = item.id if isinstance(item, ast.Name) else item.attr if isinstance(item, ast.Attribute) else ""
        if NAMED_LOGARITHM.search(name.lower()):
            return True
    return False
