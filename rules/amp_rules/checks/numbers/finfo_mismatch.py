"""Limits of one type on tensors of another."""

from __future__ import annotations

import ast

from amp_rules.checks.common.number_limits import argument_node, is_limit, too_large
from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import BOOL, INT, LOW, TENSORS, Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.half_precision import written_number
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix

_FILLS = {
    "masked_fill": (2, "value"), "fill": (1, "value"), "index_fill": (3, "value"), "full_like": (1, "fill_value"),
    "fill_diagonal": (1, "fill_value"), "new_full": (2, "fill_value"), "full": (1, "fill_value"),
    "clamp": (1, "min"), "clamp_min": (1, "min"), "clamp_max": (1, "max"),
    "where": (2, "other"), "setitem": (2, ""), "add": (1, ""), "sub": (1, ""),
}  # fmt: skip
_MAKES_ITS_OWN = ("full", "full_like", "new_full", "where")


class FinfoMismatch(Check):
    """Limits of one floating type on tensors of another.

    ## What it does
    Finds `torch.finfo(torch.float32).min` (or `.max`, or the limit of another tensor's type) filled into, added to or
    used to clamp a tensor that may be half, and `torch.finfo` of a tensor of integers or booleans.

    ## Why
    -3.4028e38 fits neither float16 nor bfloat16, whose largest number is 3.3895e38: `masked_fill` raises "value cannot
    be converted to type at::BFloat16 without overflow", and indexed assignment writes -inf. `torch.finfo` of an integer
    type raises a TypeError.

    ## Example
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores.masked_fill(mask, torch.finfo(torch.float32).min)

    ## Use instead
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)

    ## When it is silent
    The tensor is float32 for certain, a test of its dtype stands before, or the limit is that of its own type.

    ## Source
    https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo
    """

    code = "AMP603"
    name = "finfo-mismatch"
    severity = "error"
    message = "The limit of one floating type is used on a tensor of another."
    advice = "Ask for the limits of the tensor's own type: `torch.finfo(x.dtype)`."
    fix_title = "Ask for the limits of the tensor's own type"
    fix_safety = "safe"
    triggers = ("finfo", "masked_fill", "full_like")
    operations = (*_FILLS, "finfo")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a fill, or the type that a limit is asked of."""
        if op.op == "finfo":
            self._asked(op, frame)
            return
        position, name = _FILLS[op.op]
        given = op.arg(position, name)
        if given is None or not is_limit(given):
            return
        tensor = op if op.op in _MAKES_ITS_OWN else op.args[0]
        if not tensor.maybe_low or not frame.is_tensor(tensor):
            return
        outcome = written_number(op.op, frame.mode)
        certain = outcome == "raises"
        if outcome == "bound" or (not certain and not tensor.low):
            return
        for item in alternatives(given):
            self._compare(op, item, tensor, frame, certain)

    def _compare(self, op: Value, given: Value, tensor: Value, frame: Frame, raises: bool) -> None:
        named = _type_of(given)
        if named is None or (too_large(given, frame.mode) is None and not (named and tensor.low)):
            return
        node = argument_node(op, *_FILLS[op.op]) or op.node
        if node is None or op.node is None:
            return
        end = "and raises" if raises else "and becomes infinite"
        text = frame.text(node if op.op not in ("setitem", "add", "sub") else given.node or node)
        message = f"`{text}` is the limit of another type: it does not fit in {frame.mode.dtype} {end}"
        self.report(frame, node, message, culprit=given, fix=self._fix(op, node, frame))

    def _asked(self, op: Value, frame: Frame) -> None:
        given = op.args[0] if op.args else None
        if given is None or given.op != "dtype" or not given.args or op.node is None:
            return
        tensor = given.args[0]
        kinds = tensor.dtypes & TENSORS
        if tensor.tensor == 2 and kinds and not kinds & ~(INT | BOOL) and tensor.dtypes == kinds:
            message = f"`{frame.text(op.node)}` raises: the tensor holds {'booleans' if kinds == BOOL else 'integers'}"
            self.report(frame, op.node, message, advice="Ask for the limits of the floating tensor that is filled.")

    def _fix(self, op: Value, node: ast.AST, frame: Frame) -> Fix | None:
        call = op.node
        if op.op != "masked_fill" or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return None
        receiver = call.func.value
        asked = _asked_type(node, frame)
        if asked is None or not isinstance(receiver, ast.Name) or len(call.args) >= len(op.args):
            return None
        return replacement(frame, self.fix_title, "safe", (asked, f"{receiver.id}.dtype"))


def _type_of(given: Value) -> int | None:
    """The types whose limit a number is: 1 if of a tensor known to be no half, 0 if of a type named outright."""
    asked = next((item.args[0] for item in given.behind(2) if item.op.startswith("finfo") and item.args), None)
    if asked is None:
        return None
    if asked.op == "dtype" and asked.args:
        other = asked.args[0]
        return 1 if other.float32 else None
    mask = ops.dtype_named(asked)
    return 0 if mask and not mask & LOW else None


def _asked_type(node: ast.AST, frame: Frame) -> ast.expr | None:
    """``torch.float32`` of ``torch.finfo(torch.float32).min``; numpy's ``finfo`` does not take a type of torch."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and node.value.args:
        return node.value.args[0] if frame.module.dotted(node.value.func) == "torch.finfo" else None
    return None
