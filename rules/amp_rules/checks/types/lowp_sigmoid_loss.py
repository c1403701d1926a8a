"""Sigmoid in half precision on its way to a loss."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import complement, is_here, is_loss, is_tensor, operand, source, unguarded, ways
from amp_rules.checks.common.number_limits import argument_node
from amp_rules.lattice.abstract_values import IN_AN_OPERAND, PARAMETER, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix


class LowpSigmoidLoss(Check):
    """A sigmoid in half precision whose distance from 1 a loss is made of.

    ## What it does
    Finds a sigmoid of half scores whose complement a loss raises to a power below 1, and ``binary_cross_entropy`` of a
    half sigmoid.

    ## Why
    In float16 ``sigmoid`` is 1 exactly from 8.4 on, in bfloat16 from 6.3 on. ``1 - p`` is 0 then: the
    gradient of a root of it is NaN, and that of ``binary_cross_entropy`` is NaN in float16 and 0 in bfloat16, for
    a confidently wrong example too. ``sigmoid`` is on no list of autocast, so that it
    keeps the half type of the scores.

    ## Example
        p = torch.sigmoid(logits)
        loss = (1 - p) ** 0.5 * ce

    ## Use instead
        p = torch.sigmoid(logits.float())
        loss = (1 - p) ** 0.5 * ce

    ## When it is silent
    The scores are converted to float32 before the sigmoid. The exponent is 1 or more, as that of a focal loss is: the
    weight that is lost is less than 5e-4 then. Functions and classes that are not called a loss, unless
    they call ``binary_cross_entropy``. Under autocast on CUDA ``binary_cross_entropy`` is AMP708.

    ## Source
    https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior: ``sigmoid`` is not among the operations
    that autocast changes.
    """

    code = "AMP707"
    name = "lowp-sigmoid-loss"
    severity = "warning"
    message = "A loss is computed from a sigmoid in half precision, which is 1 exactly for large scores."
    advice = "Convert the scores to float32 before the sigmoid."
    fix_title = "compute the sigmoid in float32"
    fix_safety = "unsafe"
    triggers = ("sigmoid", "Sigmoid")
    operations = ("pow", "binary_cross_entropy")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a power or a cross-entropy."""
        if not op.args or op.node is None:
            return
        sigmoid = _sigmoid(op.args[0]) if op.op == "binary_cross_entropy" else self._in_power(op, frame)
        if sigmoid is None or not sigmoid.maybe_low or (frame.autocast and op.op == "binary_cross_entropy"):
            return
        if not is_tensor(sigmoid, frame) or sigmoid.node is None or sigmoid.args[0].bits & PARAMETER:
            return
        score = 8.4 if frame.mode.fp16 else 6.3
        made, used = frame.text(sigmoid.node), frame.text(op.node)
        place = sigmoid.node if is_here(sigmoid, frame) else op.node
        message = f"`{made}` is 1 from {score} on in {frame.mode.dtype}, and `{used}` needs what is missing"
        fix = _in_float32(op, sigmoid, frame) if place is sigmoid.node else None
        self.report(frame, place, message, fix=fix)

    def _in_power(self, op: Value, frame: Frame) -> Value | None:
        power = op.args[1].number if len(op.args) > 1 else None
        if not is_loss(frame) or power is None or not 0 < power < 1:
            return None  # Where the exponent is 1 or more the weight that is lost is below a thousandth.
        for item in ways(op.args[0]):
            plain, _ = unguarded(item)
            other = complement(plain)
            if other is not None:
                return _sigmoid(other)
        return None


def _sigmoid(value: Value, depth: int = IN_AN_OPERAND) -> Value | None:
    """The sigmoid that a value is, directly or for some of its elements."""
    for item in ways(value):
        plain, _ = unguarded(item)
        if plain.op == "sigmoid" and plain.args:
            return plain
        if depth and plain.op in ("where", "add", "mul", "sub", "clamp"):
            for part in plain.args:
                found = _sigmoid(part, depth - 1) if part.tensor else None
                if found is not None:
                    return found
    return None


def _in_float32(op: Value, sigmoid: Value, frame: Frame) -> Fix | None:
    written = operand(sigmoid)
    if not isinstance(written, _SIMPLE) or sigmoid.inplace:
        return None
    edits: list[tuple[ast.AST, str]] = [(written, f"{source(frame, written)}.float()")]
    if op.op == "binary_cross_entropy":
        # Both are to be of one type.
        target = argument_node(op, 1, "target")
        if not isinstance(target, _SIMPLE) or _is_used_again(op, frame):
            return None
        given = op.arg(1, "target")
        if given is None or given.maybe_low:
            edits.append((target, f"{source(frame, target)}.float()"))
    return replacement(frame, "compute the sigmoid in float32", "unsafe", *edits)


def _is_used_again(op: Value, frame: Frame) -> bool:
    """Whether a variable that a cross-entropy is given goes into another call of the function, which may want half."""
    given = argument_node(op, 0, "input")
    if not isinstance(given, ast.Name) or frame.function is None:
        return False
    calls = [item for item in frame.function.nodes if isinstance(item, ast.Call) and item is not op.node]
    return any(isinstance(item, ast.Name) and item.id == given.id for call in calls for item in call.args)


_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
