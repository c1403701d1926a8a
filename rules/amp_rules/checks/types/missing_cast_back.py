"""Values that were converted to float32 and not back."""

from __future__ import annotations

import ast

from amp_rules.checks.common.first_cause import FirstCause
from amp_rules.checks.common.mixed_types import (
    REFUSING,
    called,
    float32_origin,
    held_layer,
    is_cast,
    is_mask,
    owner_keeps_float32,
    refused,
    whole_text,
    written,
)
from amp_rules.lattice.abstract_values import F32, LOW, PARAMETER, PASSING, POSITION, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.source.facts import FunctionFacts

_CASTING = frozenset("to type type_as float half double bfloat16".split())


class MissingCastBack(Check):
    """Values that were converted to float32 and not back.

    ## What it does

    Looks, where the model is half and autocast is off, for results of `.float()`, `.to(torch.float32)` and
    `softmax(..., dtype=torch.float32)` that reach a matrix product, a convolution or a normalisation with half
    operands, and for norms by hand that multiply such a result by a half weight and return it.

    ## Why

    These operations do not promote. `torch.bmm(probabilities.float(), value.half())` raises "expected scalar type
    Float but found Half", and so do `nn.Linear` with half weights and `F.layer_norm(x.float(), shape, half_weight)`.
    `half_weight * x.float()` raises nothing and is float32, which the next layer refuses.

    ## Example

        probabilities = scores.softmax(dim=-1, dtype=torch.float32)
        return torch.bmm(probabilities, value)

    ## Use instead

        probabilities = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
        return torch.bmm(probabilities, value)

    ## When it is silent

    Under autocast, which casts the operands itself; when all operands were converted; and when the type of one of
    them is not known.

    ## Source

    https://docs.pytorch.org/docs/stable/generated/torch.bmm.html
    """

    code = "AMP753"
    name = "missing-cast-back"
    severity = "error"
    message = "A value that was converted to float32 meets half operands."
    advice = "Convert it back with `.to(other.dtype)` first."
    fix_title = "convert back"
    fix_safety = "safe"
    triggers = ("float()", "float32", "double()")
    operations = (*sorted(REFUSING), "return")

    def __init__(self) -> None:
        self._causes = FirstCause()

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Forget what was reported in a function."""
        self._causes.clear()

    def applies(self, mode: Mode) -> bool:
        """Autocast casts the operands itself."""
        return not mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the operands of an operation that refuses mixed types, or a result."""
        if op.op == "return":
            self._result(op, frame)
            return
        found = refused(op, frame)
        if found is None or owner_keeps_float32(frame) or op.node is None:
            return
        wide, low = found
        origin = float32_origin(wide)
        if origin is None or not is_cast(origin) or (origin.args and _is_mask(origin.args[0])):
            return
        if self._causes.follows(op, wide):
            return  # Mended there, this is half.
        other = f"the half weights of `{op.op}`" if low.op == "layer" else f"the half `{called(frame, low)}`"
        message = f"`{frame.text(wide.node)}` is float32 and meets {other} in `{op.op}`"
        self.report(frame, op.node, message, fix=self._fix(op, wide, low, frame))

    def _result(self, op: Value, frame: Frame) -> None:
        """``weight * x`` at the end of a norm by hand that computes in float32."""
        if frame.function is None or not frame.function.is_forward or frame.caller is not None or frame.autocast:
            return
        result = op.args[0].through(PASSING - _CASTING) if op.args else op
        if result.op not in ("mul", "add") or result.dtypes != F32 or len(result.args) != 2 or result.node is None:
            return
        if owner_keeps_float32(frame):
            return
        for weight, wide in (result.args, result.args[::-1]):
            if not (weight.bits & PARAMETER and weight.dtypes == LOW and wide.tensor and wide.dtypes == F32):
                continue
            inner = wide if wide.op != "mul" else next((item for item in wide.args if item.dtypes == F32), wide)
            origin = float32_origin(inner)
            if origin is not None and is_cast(origin):
                message = f"`{frame.text(origin.node)}` makes `{frame.text(result.node)}` float32, which is returned"
                self.report(frame, result.node, message, severity="warning")
                return

    def _fix(self, op: Value, wide: Value, low: Value, frame: Frame) -> Fix | None:
        places = {id(item): written(frame, op, index) for index, item in enumerate(op.args)}
        node, like = places.get(id(wide)), places.get(id(low))
        text = whole_text(frame, node)
        if text is None or node is None or not isinstance(like, ast.Name) or held_layer(op) is not None:
            return None
        return replacement(frame, self.fix_title, "safe", (node, f"{text}.to({like.id}.dtype)"))


def _is_mask(value: Value) -> bool:
    """Whether a mask was converted; positions are whole numbers too, and are computed with."""
    return is_mask(value) and not value.bits & POSITION
