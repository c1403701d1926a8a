"""Functions of torch whose default epsilon is zero in half precision."""

from __future__ import annotations

from amp_rules.checks.common.number_limits import other_half, vanishes
from amp_rules.lattice.abstract_values import IN_ONE_EXPRESSION, PASSING, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_EPSILON = {"normalize": (3, 1e-12, 2), "cosine_similarity": (3, 1e-8, 1), "pairwise_distance": (3, 1e-6, 1)}
"""Operation: the position of ``eps``, its default, and its position in the constructor of the layer."""
_ZEROING = frozenset({"relu", "relu6", "masked_fill", "zeros", "zeros_like", "new_zeros", "threshold", "sub"})


class LibraryEpsUnderflow(Check):
    """Functions of torch whose default epsilon is zero in half precision.

    ## What it does
    Finds `F.normalize`, `F.cosine_similarity` and `F.pairwise_distance` of half tensors that may hold vectors of zeros
    (after `relu`, a mask, a difference), with an epsilon that is 0 in the half type, as the defaults of the first two
    are.

    ## Why
    `F.normalize` divides by `norm.clamp_min(1e-12)`, `F.cosine_similarity` by a norm of at least 1e-8. In float16 both
    epsilons are 0, so a vector of zeros gives 0 / 0, which is NaN. Under autocast on CUDA both work in float32.

    ## Example
        features = F.relu(self.project(x))
        return F.normalize(features, dim=-1)

    ## Use instead
        features = F.relu(self.project(x))
        return F.normalize(features.float(), dim=-1).to(x.dtype)

    ## When it is silent
    The tensor is float32, autocast runs the function in float32, the epsilon is at least 1e-7, or nothing suggests that
    a whole vector may be zero.

    ## Source
    https://github.com/pytorch/pytorch/issues/32137
    """

    code = "AMP609"
    name = "library-eps-underflow"
    severity = "warning"
    message = "A function of torch divides by an epsilon that is zero in half precision."
    advice = "Call it on float32, or give an `eps` of at least 1e-7."
    triggers = ("normalize(", "cosine_similarity(", "CosineSimilarity", "pairwise_distance(", "PairwiseDistance")
    operations = tuple(_EPSILON)

    def applies(self, mode: Mode) -> bool:
        """Only float16 is that narrow."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a call."""
        if not op.args or op.node is None or (frame.autocast and _is_float32(op, frame)):
            return
        position, default, of_layer = _EPSILON[op.op]
        held = op.data if isinstance(op.data, Value) and op.data.op == "layer" else None
        given = held.arg(of_layer, "eps") if held is not None else op.arg(position, "eps")
        number = (
            (default if default <= frame.mode.rounds_to_zero else None)
            if given is None
            else vanishes(given, frame.mode)
        )
        tensors = [op.args[0], *(op.args[1:2] if op.op != "normalize" else ())]
        if number is None or not all(item.low for item in tensors) or other_half(op.args[0], frame.mode):
            return
        if any(_may_vanish(item) for item in tensors):
            message = f"`{frame.text(op.node)}` is NaN for vectors of zeros: its epsilon {number:g} is 0 in fp16"
            self.report(frame, op.node, message, culprit=given)


def _is_float32(op: Value, frame: Frame) -> bool:
    return ("norm" if op.op == "normalize" else op.op) in frame.machine.table.float32


def _may_vanish(value: Value) -> bool:
    """Whether a vector of zeros is likely: after a ReLU, a mask, a difference."""
    value = value.through(PASSING)
    if value.op == "mul":
        return any(
            "mask" in (item.data if isinstance(item.data, str) else "")
            for part in value.args
            for item in part.behind(IN_ONE_EXPRESSION)
        )
    if value.op == "mean" or value.op == "sum":
        return bool(value.args) and _may_vanish(value.args[0])
    return value.op in _ZEROING
