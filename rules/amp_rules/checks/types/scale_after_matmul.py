"""Scaling that comes after the matrix product that it should protect."""

from __future__ import annotations

from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS, is_outer, operands
from amp_rules.lattice.abstract_values import IN_ONE_EXPRESSION, INF, LOW, PROBABILITY, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_PRODUCTS = MATRIX_PRODUCTS - {"addmm", "addmv", "addbmm", "baddbmm"}
_SIZES = frozenset("size len numel getitem".split())


class ScaleAfterMatmul(Check):
    """Scaling that comes after the matrix product that it should protect.

    ## What it does

    Looks for a float16 matrix product of two activations that is divided, or multiplied by a number below 1, only
    afterwards: by the square root of a dimension, a scale, or the number of summed elements.

    ## Why

    The product is rounded to float16 before it is scaled. Two rows of 64 elements of 40 have the product 102400, which
    is inf in float16; scaled by 1/8 first it is 12800. Sums over positions instead of channels, as in linear or
    non-local attention, have thousands of terms. inf divided by anything is inf or NaN.

    ## Example

        energy = torch.bmm(query, key) / query.size(1)

    ## Use instead

        energy = torch.bmm(query / query.size(1), key)

    ## When it is silent

    With bfloat16, whose range is that of float32; when an operand is a probability or otherwise bounded, was scaled
    or normalised before, or is float32; and where `scaled_dot_product_attention` does the scaling.

    ## Source

    https://arxiv.org/abs/2105.13290
    """

    code = "AMP709"
    name = "scale-after-matmul"
    severity = "warning"
    message = "A float16 matrix product is scaled only after it was rounded."
    advice = "Scale an operand before the product, or use `scaled_dot_product_attention`."
    preview = "a product overflows only with large activations, which the code does not show"
    triggers = ("matmul", "bmm", "einsum", " @ ", "torch.mm(")
    operations = ("mul", "div")

    def applies(self, mode: Mode) -> bool:
        """Only float16 has a narrow range."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a scaling."""
        left, right = op.args[0], op.args[1] if len(op.args) > 1 else None
        if right is None or op.node is None or not left.tensor:
            return
        product = source_of(left)
        if product.op not in _PRODUCTS or product.dtypes != LOW or is_outer(product):
            return
        if not _shrinks(op.op, right, frame):
            return
        if all(_is_unbounded(item) for item in operands(product)):
            what, factor = frame.text(product.node), frame.text(right.node)
            self.report(frame, op.node, f"`{what}` is rounded to float16 before it is scaled by `{factor}`")


def _shrinks(op: str, factor: Value, frame: Frame) -> bool:
    """Whether a factor makes the product smaller, going by a dimension."""
    number = factor.number
    if number is not None:
        smaller = abs(number) < 1 if op == "mul" else abs(number) > 1
        return smaller and any(word in frame.text(factor.node) for word in ("scal", "**", "sqrt", "temperature"))
    if factor.tensor == 2:
        return False
    behind = list(factor.behind(IN_ONE_EXPRESSION))
    if op == "div":
        return any(item.op in _SIZES or item.op == "math" for item in behind) and not factor.tensor
    if not factor.tensor and any(item.op == "math" or item.op in ("pow", "rpow", "div") for item in behind):
        return True
    name = factor.data if isinstance(factor.data, str) else ""
    return "scal" in name and "logit" not in name and factor.op == "attr"


def _is_unbounded(value: Value) -> bool:
    """Whether nothing is known to keep the elements small."""
    if not value.tensor:
        return False
    if value.bits & PROBABILITY or (value.lo > -INF and value.hi < INF):
        return False
    source = source_of(value)
    if source.op in ("mul", "div", "normalize", "layer_norm", "rms_norm", "softmax"):
        return False
    return not source.bits & PROBABILITY and not (source.lo > -INF and source.hi < INF)
