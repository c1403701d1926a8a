"""Sums and products of numbers at the end of the range."""

from __future__ import annotations

import ast
import math

from amp_rules.checks.common.number_limits import numbers_of
from amp_rules.lattice.abstract_values import IN_AN_OPERAND, PASSING, Value, same
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check

_KEEPING = PASSING | {"expand", "where"}


class FinfoMinArith(Check):
    """Sums of two masks of the smallest number, and products with infinity.

    ## What it does
    Finds the sum of two masks that were both filled with `torch.finfo(dtype).min`, and masks that are multiplied by
    infinity.

    ## Why
    The smallest number has no room below it: in every floating type `finfo.min + finfo.min` is -inf, where one of them
    was finite, and a row that both masks cover altogether becomes NaN in the softmax. In float16 already -65504 - 16 is
    -inf. `0 * -inf` is NaN, so `(1 - mask) * float("-inf")` is NaN wherever nothing is masked.

    ## Example
        padding = (1.0 - keep) * torch.finfo(scores.dtype).min
        causal = (1.0 - lower) * torch.finfo(scores.dtype).min
        scores = scores + (padding + causal)

    ## Use instead
        hidden = (keep == 0) | (lower == 0)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)

    ## When it is silent
    One of the two is no mask of that kind, or the infinities of the sum are replaced afterwards: by `clamp`,
    `torch.max` with the limit, `nan_to_num`, or `masked_fill(mask == -inf, ...)`.

    ## Source
    https://github.com/huggingface/transformers/pull/17306
    """

    code = "AMP604"
    name = "finfo-min-arith"
    severity = "warning"
    message = "Numbers at the end of the range are added, or a mask is multiplied by infinity."
    advice = "Combine the masks as booleans and fill once."
    triggers = ("finfo", "float('-inf')", 'float("-inf")', ".inf", "65504", "float('inf')", 'float("inf")')
    operations = ("add", "mul")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum or a product."""
        if len(op.args) < 2 or op.node is None or not op.tensor:
            return
        left, right = op.args[0], op.args[1]
        if op.op == "mul":
            for tensor, number in ((left, right), (right, left)):
                if tensor.tensor and math.inf in [abs(item) for item in numbers_of(number)] and _is_mask(tensor):
                    message = f"`{frame.text(op.node)}` is NaN where the mask is 0: 0 * inf"
                    self.report(frame, op.node, message, culprit=number, advice="Use masked_fill with the infinity.")
            return
        first, second = _least(left, frame), _least(right, frame)
        if first is None or second is None or first is second or same(first, second):
            return
        if not _is_mended(op.node, frame):
            message = f"`{frame.text(op.node)}` is -inf where both are masked: each is the smallest number already"
            self.report(frame, op.node, message)


def _is_mask(value: Value) -> bool:
    """Whether zeros are among the elements: one minus something, or the result of a comparison."""
    value = value.through(PASSING)
    if value.op == "sub" and value.args[0].number == 1:
        return True
    return value.op in ("invert", "eq", "ne", "lt", "le", "gt", "ge", "triu", "tril", "logical_not", "logical_or")


def _least(value: Value, frame: Frame, depth: int = IN_AN_OPERAND) -> Value | None:
    """What filled a mask with the smallest number of a type, on one of the ways to here at least."""
    value = value.through(_KEEPING - {"where"})
    if value.op == "join" and depth:
        found = (_least(item, frame, depth - 1) for item in value.args)
        return next((item for item in found if item is not None), None)
    if value.op in ("masked_fill", "full", "full_like", "where", "mul", "triu", "new_full") and value.args:
        start = value.args[0] if value.op == "triu" else value
        if start.op == "masked_fill" and start.args[0].lo != 0 and not _fills_zeros(start):
            return None
        for item in start.args[1:] if start.op in ("masked_fill", "where", "full_like") else start.args:
            if _is_least(item, frame):
                return value
    return None


def _is_mended(node: ast.AST, frame: Frame) -> bool:
    """Whether what follows the sum in the text takes its infinities out again."""
    index = frame.module.index
    if node not in index.parents:
        return False
    statement = index.statement(node)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return False
    name, held = ast.unparse(target), index.parents.get(statement)
    suites = [getattr(held, field, None) for field in ("body", "orelse", "finalbody")]
    body = next((item for item in suites if isinstance(item, list) and statement in item), [statement])
    later = [part for item in body[body.index(statement) + 1 :] for part in ast.walk(item)]
    return any(isinstance(part, ast.Call) and _mends(part, name) for part in later)


def _mends(call: ast.Call, name: str) -> bool:
    """Whether a call replaces the infinities of a tensor."""
    method = call.func.attr.rstrip("_") if isinstance(call.func, ast.Attribute) else ""
    if method not in ("masked_fill", "clamp", "clamp_min", "nan_to_num", "maximum", "max"):
        return False
    given = [ast.unparse(item) for item in (call.func, *call.args)]
    if not any(text == name or text.startswith(f"{name}.") for text in given):
        return False
    return method != "masked_fill" or any("inf" in text for text in given)


def _fills_zeros(filled: Value) -> bool:
    """Whether what is filled are the zeros of the tensor itself, as in ``bias.masked_fill(bias == 0, least)``."""
    test = filled.arg(1, "mask")
    return test is not None and test.op == "eq" and test.args[1].number == 0 and test.args[0] is filled.args[0]


def _is_least(value: Value, frame: Frame) -> bool:
    if value.tensor:
        return False
    if value.op == "neg" and value.args:
        return value.args[0].op == "finfo_max"
    if value.op == "finfo_negative":
        return True
    return value.op == "finfo_min"
