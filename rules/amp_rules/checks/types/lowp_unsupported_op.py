"""Operations that have no half precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.checks.common.arithmetic import in_training
from amp_rules.checks.common.mixed_types import float_type, whole_text, written
from amp_rules.lattice.abstract_values import BOOL, F32, IN_A_FEW_LINES, LOW, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.half_precision import fate, why_not
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.source.index import keyword
from amp_rules.torch.half_precision import COMPLEX_MAKERS, UNSUPPORTED

_AMBIGUOUS = frozenset({"det", "solve", "lu", "cond", "inv"})
_SHORT_TIME = frozenset({"stft", "istft"})
_SHAPING = frozenset({"unsqueeze", "view", "reshape", "contiguous", "detach", "to", "float", "half"})
_NO_PRODUCT = "donot_use_mm"


class LowpUnsupportedOp(Check):
    """Operations that have no half precision.

    ## What it does

    Looks for Fourier transforms, decompositions of matrices, quantiles and distances of half tensors.

    ## Why

    They raise, as in "linalg_inv: Low precision dtypes not supported. Got Half", "quantile() input tensor must be
    either float or double dtype" and "Unsupported dtype Half". On CUDA Fourier transforms take float16, but only of
    sizes that are powers of two, and bfloat16 in the newest releases of torch alone. Autocast on CUDA does not know
    these operations, except `cdist`. `view_as_complex` and `complex` know no bfloat16, and of float16 they make
    complex32, for which torch has few operations; `histc` lacks CUDA alone.

    ## Example

        weight_inverse = self.conv.weight.squeeze().inverse()

    ## Use instead

        weight = self.conv.weight.squeeze()
        weight_inverse = weight.float().inverse().to(weight.dtype)

    ## When it is silent

    When the tensor was converted, when its type is not known, and where autocast casts the operation to float32. Under
    autocast outside of modules and losses: geometry and transforms of data run without it. Outside of them also on what
    is made of a function's arguments. On `stft` in float16 unless
    its size is known to be no power of two. On `cdist` of euclidean distances unless both sides are selected by a mask
    and may be short: more than 25 rows go through a matrix product, which half tensors have.

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

    def __init__(self, anyones: bool = False) -> None:
        """
        Args:
            anyones: report what is made of arguments outside of models too: who asks knows that a model calls it.
        """
        self._anyones = anyones

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the operand."""
        if not op.args or op.node is None or fate(op.op, frame.mode, frame.autocast) != "no kernel":
            return
        place = next((i for i, item in enumerate(_operands(op)) if float_type(item, frame) == LOW), None)
        if place is None or _is_given(op.op, op.args[place], frame) or _is_supported(op, frame):
            return
        tensor = op.args[place]
        if not in_training(frame) and (frame.autocast or (_is_made_of_given(tensor) and not self._anyones)):
            return
        node = written(frame, op, place)
        message = f"`{frame.text(node or tensor.node)}` is half, and `{op.op}` {why_not(op.op, frame.mode)}"
        self.report(frame, op.node, message, culprit=tensor, fix=self._fix(op, frame))

    def _fix(self, op: Value, frame: Frame) -> Fix | None:
        """Convert all tensors that the operation is given: they are to be of one type."""
        edits: list[tuple[ast.AST, str]] = []
        for node in _halves(op, frame):
            text = whole_text(frame, node)
            if text is None or node is None:
                return None
            edits.append((node, f"{text}.float()"))
        return replacement(frame, self.fix_title, "unsafe", *edits) if edits else None


def _halves(op: Value, frame: Frame) -> Iterator[ast.expr | None]:
    """Where the tensors are written that are half, or may be beside one that is; None where that is not to be seen."""
    for place, item in enumerate(op.args):
        if _is_to_convert(item, frame):
            yield written(frame, op, place)
    for name, item in (op.kwargs or {}).items():
        if _is_to_convert(item, frame):
            yield keyword(op.node, name) if isinstance(op.node, ast.Call) else None


def _is_to_convert(value: Value, frame: Frame) -> bool:
    return value.tensor > 0 and frame.is_tensor(value) and value.maybe_low and float_type(value, frame) != F32


def _operands(op: Value) -> Sequence[Value]:
    """The tensors of an operation that takes no half one: both parts of complex numbers, which are of one type."""
    return op.args[:2] if op.op in COMPLEX_MAKERS else op.args[:1]


def _is_given(op: str, tensor: Value, frame: Frame) -> bool:
    """Whether a tensor is the argument of a function that is no part of a model: whoever calls it knows its type."""
    cls = frame.function.cls if frame.function is not None else None
    return source_of(tensor).op == "param" and (op in _AMBIGUOUS or cls is None or not cls.is_module)


def _is_made_of_given(tensor: Value) -> bool:
    """Whether a tensor is made of a function's arguments."""
    return any(item.op == "param" and item.tensor for item in tensor.behind(IN_A_FEW_LINES))


def _is_supported(op: Value, frame: Frame) -> bool:
    """Whether the arguments say, or are likely to say, that half tensors are taken after all."""
    if op.op in _SHORT_TIME and frame.mode.fp16 and frame.mode.device == "cuda":
        size = op.arg(1, "n_fft")
        number = size.number if size is not None else None
        return number is None or not number.is_integer() or int(number) & (int(number) - 1) == 0
    if op.op != "cdist":
        return False
    power, way = op.arg(2, "p"), op.arg(3, "compute_mode")
    if (power is not None and power.number not in (None, 2.0)) or (way is not None and _NO_PRODUCT in str(way.const)):
        return False
    return not all(_may_be_short(item) for item in op.args[:2])


def _may_be_short(value: Value) -> bool:
    """Whether rows were selected by what they hold, so that there may be any number of them."""
    value = value.through(_SHAPING)
    if value.op == "masked_select":
        return True
    return value.op == "getitem" and len(value.args) > 1 and value.args[1].dtypes == BOOL
