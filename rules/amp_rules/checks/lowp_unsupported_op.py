"""Operations that have no half precision."""

from __future__ import annotations

import ast

from amp_rules.evidence.mixing import float_type, whole_text, written
from amp_rules.lint.check import Check
from amp_rules.lint.finding import Fix
from amp_rules.lint.frame import Frame
from amp_rules.lint.values import LOW, Value, source_of
from amp_rules.tables.unsupported import DECOMPOSITIONS, FOURIER, UNSUPPORTED

_AMBIGUOUS = frozenset({"det", "solve", "lu", "cond", "inv"})


class LowpUnsupportedOp(Check):
    """Operations that have no half precision.

    ## What it does

    Looks for Fourier transforms, decompositions of matrices, quantiles and distances of half tensors.

    ## Why

    They raise, as in "linalg_inv: Low precision dtypes not supported. Got Half", "quantile() input tensor must be
    either float or double dtype" and "Unsupported dtype Half". On CUDA Fourier transforms take float16, but only of
    sizes that are powers of two, and never bfloat16. Autocast on CUDA does not know these operations, except `cdist`.

    ## Example

        weight_inverse = self.conv.weight.squeeze().inverse()

    ## Use instead

        weight = self.conv.weight.squeeze()
        weight_inverse = weight.float().inverse().to(weight.dtype)

    ## When it is silent

    When the tensor was converted, when its type is not known, and where autocast casts the operation to float32.

    ## Source

    https://docs.pytorch.org/docs/stable/generated/torch.quantile.html
    """

    code = "AMP715"
    name = "lowp-unsupported-op"
    severity = "error"
    message = "An operation that has no half precision is given a half tensor."
    advice = "Convert with `.float()` first, and convert the result back."
    fix_title = "convert to float32 first"
    fix_safety = "unsafe"
    triggers = (
        *(f"{name}(" for name in sorted(UNSUPPORTED - _AMBIGUOUS)),
        *(f".{name}(" for name in sorted(_AMBIGUOUS)),
        ".inverse(",
    )
    operations = tuple(sorted(UNSUPPORTED))

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the operand."""
        if not op.args or op.node is None or (frame.autocast and op.op in frame.machine.table.float32):
            return
        tensor = op.args[0]
        if float_type(tensor, frame) != LOW or _is_anyones(op.op, tensor, frame):
            return
        what = "has no half precision"
        if op.op in FOURIER and frame.mode.fp16 and frame.mode.device == "cuda":
            what = "takes float16 only in sizes that are powers of two"
        elif op.op in DECOMPOSITIONS:
            what = "has no half precision on any device"
        node = written(frame, op, 0)
        message = f"`{frame.text(node or tensor.node)}` is half, and `{op.op}` {what}"
        frame.report(self, op.node, message, culprit=tensor, fix=self._fix(node, frame))

    def _fix(self, node: ast.expr | None, frame: Frame) -> Fix | None:
        text = whole_text(frame, node)
        if text is None or node is None:
            return None
        return frame.replace(self.fix_title, "unsafe", (node, f"{text}.float()"))


def _is_anyones(op: str, tensor: Value, frame: Frame) -> bool:
    """Whether a tensor is the argument of a function that is no part of a model: whoever calls it knows its type."""
    cls = frame.function.cls if frame.function is not None else None
    return source_of(tensor).op == "param" and (op in _AMBIGUOUS or cls is None or not cls.is_module)
