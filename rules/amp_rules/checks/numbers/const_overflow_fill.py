"""Fill values outside of the range of half precision."""

from __future__ import annotations

import ast
import re

from amp_rules.checks.common.mixed_types import written as written_at
from amp_rules.checks.common.number_limits import (
    argument_node,
    described,
    half_where_float,
    is_limit,
    other_half,
    too_large,
)
from amp_rules.checks.common.result_uses import only_softmax
from amp_rules.lattice.abstract_values import BOOL, CAST, IN_A_FEW_LINES, INT, NUM, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.half_precision import written_number
from amp_rules.lattice.parameter_names import possible_types
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.torch.idioms import NAMED_LOSS

_WRITING = {
    "masked_fill": ((2, "value"),),
    "fill": ((1, "value"),),
    "fill_diagonal": ((1, "fill_value"),),
    "index_fill": ((3, "value"),),
    "scatter": ((3, "value"),),
    "full": ((1, "fill_value"),),
    "full_like": ((1, "fill_value"),),
    "new_full": ((2, "fill_value"),),
    "clamp": ((1, "min"), (2, "max")),
    "clamp_min": ((1, "min"),),
    "clamp_max": ((1, "max"),),
    "hardtanh": ((1, "min_val"), (2, "max_val")),
    "threshold": ((2, "value"),),
    "pad": ((3, "value"),),
    "setitem": ((2, ""),),
    "where": ((1, "input"), (2, "other")),
    "nan_to_num": ((2, "posinf"), (3, "neginf")),
    "tensor": ((0, "data"),),
    "as_tensor": ((0, "data"),),
    "new_tensor": ((1, "data"),),
}
_MAKES_ITS_OWN = frozenset({"full", "full_like", "new_full", "where", "tensor", "as_tensor", "new_tensor"})
_CASTS = ("to", "half", "type", "type_as")
_HELD = {"full": (1, "fill_value"), "tensor": (0, "data"), "where": (2, "other"), "masked_fill": (2, "value")}
"""Where a tensor that is made in float32 and converted has its number."""


class ConstOverflowFill(Check):
    """Fill values that half precision cannot hold.

    ## What it does
    Finds `masked_fill`, `fill_`, `full`, `full_like`, `new_full`, `clamp`, `scatter_`, `index_fill_`, `fill_diagonal_`,
    `F.pad`, `x[mask] = c`, `torch.where` and conversions of constants where the number is outside of the range of the
    half type and the tensor may be half. The number is followed through variables, module constants, class attributes,
    defaults, imports and calls of helpers.

    ## Why
    float16 ends at 65504. `masked_fill(mask, -1e9)` raises "value cannot be converted to type at::Half without
    overflow" from -65505 on, as do most of the functions that take a Python number. `x[mask] = -1e9`, `torch.where` and
    `.half()` do not raise: they write -inf, and a row that is masked altogether becomes NaN in the softmax. `clamp`
    raises on the CPU; on CUDA it compares in float32. bfloat16 holds -1e9 and ends at 3.39e38.

    ## Example
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores.masked_fill(mask, -1e9)

    ## Use instead
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)

    ## When it is silent
    The tensor is float32 (made by `.float()`, by a factory without `dtype`, or by an operation that autocast runs in
    float32), holds integers, or a test of its dtype stands before; what is computed where autocast is turned off is
    float32 unless it is half for certain. What is written without an exception is a finding
    only where the tensor is half for certain. Infinities are written on purpose. On CUDA, bounds of `clamp` beyond the
    range of the half type change nothing. Under autocast, for arguments called masks, which are whole numbers or
    float32, and for what is made of arguments called losses, which autocast computes in float32.

    ## Source
    https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo
    """

    code = "AMP601"
    name = "const-overflow-fill"
    severity = "error"
    message = "A tensor is filled with a number that half precision cannot hold."
    advice = "Take `torch.finfo(x.dtype).min`, or a number that the type holds, such as -1e4."
    fix_title = "Fill with the smallest number of the tensor's own type"
    fix_safety = "safe"
    triggers = (
        "masked_fill", "fill_(", "fill_diagonal", "full_like", "new_full", ".full(", "clamp", "clip(", "scatter",
        "pad(", "where(",
        "nan_to_num", "hardtanh(", "1e5", "1e6", "1e7", "1e8",
        "1e9", "1E", "1e1", "1e2", "1e3", "NEAR_INF", "hreshold(",
        re.compile(r"\][ \t]*=[ \t]*-?(?:\w+\.)*(?:[A-Z][A-Z_]{2,}\b|float\(|\d{5}|[\d.]+e)"),
    )  # fmt: skip
    operations = (*_WRITING, *_CASTS)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the numbers that an operation writes."""
        if op.op in _CASTS:
            self._cast(op, frame)
            return
        outcome = written_number(op.op, frame.mode)
        for position, name in _WRITING[op.op]:
            given = op.arg(position, name)
            number = too_large(given, frame.mode)
            if given is None or number is None or is_limit(given):
                continue
            if outcome == "bound" and (number > 0) != name.startswith("min"):
                continue  # no half number lies beyond it
            tensor = op if op.op in _MAKES_ITS_OWN else op.args[0]
            if _may_be_half(op, tensor, frame, outcome == "raises"):
                self._report(op, frame, given, number, argument_node(op, position, name), outcome == "raises")

    def _report(
        self, op: Value, frame: Frame, given: Value, number: float, node: ast.expr | None, raising: bool
    ) -> None:
        place: ast.AST | None = node or op.node
        if place is None:
            return
        written = f"`self.{given.data}` ({number:g})" if given.op == "buffer" else ""
        written = written or described(frame, node or given.node, number)
        target: ast.AST | None = None
        if op.args and op.op not in _MAKES_ITS_OWN:
            target = written_at(frame, op, 0) or op.args[0].node
        of = f" for `{frame.text(target)}`" if target is not None else ""
        if raising:
            message = f"{written} does not fit in {frame.mode.dtype}: `{op.op}` raises{of}"
        else:
            inf = "inf" if number > 0 else "-inf"
            message = f"{written} does not fit in {frame.mode.dtype}: it silently becomes {inf}{of}"
        self.report(frame, place, message, culprit=given, severity="error" if raising else "warning",
            fix=_fix(self, op, frame, number, node),
        )  # fmt: skip

    def _cast(self, op: Value, frame: Frame) -> None:
        """A tensor that is made of one number, or filled with one, in float32 and then converted."""
        made = op.args[0]
        position = _HELD.get(made.op)
        if not half_where_float(op) or (made.dtypes & ~NUM == op.dtypes and made.op != "buffer"):
            return
        given: Value | None = made
        node = None
        if made.op != "buffer" and position is not None:
            given, node = made.arg(*position), argument_node(made, *position)
        elif made.op != "buffer":
            return
        number = too_large(given, frame.mode)
        if given is not None and number is not None and not is_limit(given):
            self._report(op, frame, given, number, node, False)


def _may_be_half(op: Value, tensor: Value, frame: Frame, raising: bool) -> bool:
    # Who turns autocast off computes in float32, unless something says otherwise.
    may_be = raising and (frame.autocast or not frame.mode.autocast)
    if not (tensor.maybe_low if may_be else half_where_float(tensor)) or other_half(tensor, frame.mode):
        return False
    if frame.mode.autocast and not tensor.bits & CAST and _is_spared(op.args[0] if op.args else tensor):
        return False
    return frame.is_tensor(tensor) or (op.op == "setitem" and _sliced(op.args[1], tensor, frame))


def _is_spared(tensor: Value) -> bool:
    """Whether it is made of nothing but masks, which are whole numbers or float32, or losses, which autocast widens."""
    given = [item for item in tensor.behind(IN_A_FEW_LINES) if item.op == "param" and item.tensor]
    names = [item.data if isinstance(item.data, str) else "" for item in given]
    if source_of(tensor).op == "param":
        return bool(possible_types(names[0]) & (BOOL | INT) & tensor.dtypes) if names else False
    return bool(names) and all(any(word in name for word in NAMED_LOSS) for name in names)


def _sliced(index: Value, tensor: Value, frame: Frame) -> bool:
    """Whether the index is one of several dimensions, which lists do not have, and nothing speaks of an array."""
    named = isinstance(tensor.node, (ast.arg, ast.Name)) and isinstance(tensor.data, str)
    return (
        index.op == "tuple" and any(item.op == "slice" for item in index.args) and named
        and not frame.used_as_array(tensor.data)
    )  # fmt: skip


def _fix(check: Check, op: Value, frame: Frame, number: float, node: ast.expr | None) -> Fix | None:
    """Only before a softmax, which makes nothing of any very small number."""
    call, torch = op.node, frame.module.names.name_of("torch")
    if op.op != "masked_fill" or number > 0 or node is None or torch is None or not isinstance(call, ast.Call):
        return None
    receiver = call.func.value if isinstance(call.func, ast.Attribute) and len(call.args) < len(op.args) else None
    if not isinstance(receiver, ast.Name) or not only_softmax(frame, call):
        return None
    return replacement(frame, check.fix_title, "safe", (node, f"{torch}.finfo({receiver.id}.dtype).min"))
