"""Half tensors divided by their float32 sum."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import F32, LOW, ZERO_DIM, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_TOTALS = frozenset({"sum", "norm", "vector_norm", "prod"})


class CrossDtypeZeroDim(Check):
    """Half tensors divided by their float32 sum.

    ## What it does

    Looks for a half tensor that is divided by, or multiplied with, a float32 total that has no dimensions.

    ## Why

    A tensor without dimensions does not decide the type of a result: under autocast on CUDA `x.sum()` of a float16
    tensor is float32, yet `x / x.sum()` is float16. Where the total exceeds 65504, the kernel may see inf; where the
    quotients are below 6e-8 they become 0.

    ## Example

        weights = scores / scores.sum()

    ## Use instead

        weights = scores.float() / scores.sum()

    ## When it is silent

    With bfloat16, when the total keeps a dimension, and when the tensor is float32.

    ## Source

    https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype
    """

    code = "AMP720"
    name = "cross-dtype-zero-dim"
    severity = "info"
    message = "A half tensor is divided by its float32 total."
    advice = "Convert the tensor to float32 before the division."
    preview = "it matters only where a total rounds to 0 or overflows in half"
    triggers = (".sum()", ".norm()", ".prod()")
    operations = ("div",)

    def applies(self, mode: Mode) -> bool:
        """Only autocast makes totals float32, and only float16 has a narrow range."""
        return mode.autocast and mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a quotient."""
        tensor, total = op.args[0], op.args[1]
        if tensor.dtypes != LOW or not tensor.tensor or total.dtypes != F32 or not total.bits & ZERO_DIM:
            return
        if total.op in _TOTALS and op.node is not None and frame.is_tensor(tensor):
            message = f"`{frame.text(op.node)}` stays float16 though `{frame.text(total.node)}` is float32"
            self.report(frame, op.node, message)
