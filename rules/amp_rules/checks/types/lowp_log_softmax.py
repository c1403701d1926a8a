"""Log-probabilities in half precision."""

from __future__ import annotations

from amp_rules.checks.common.arithmetic import in_float32, is_tensor, likely_half
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix


class LowpLogSoftmax(Check):
    """Log-probabilities or a cross-entropy rounded to half precision.

    ## What it does
    Finds ``log_softmax`` and ``cross_entropy`` of half scores in O2 and O3 without ``dtype=torch.float32``.

    ## Why
    Log-probabilities of a large vocabulary are around -10, where neighbouring float16 numbers are 1/128 apart, and
    1/16 in bfloat16: different candidates of a beam search get equal scores, and sums over a sequence drift. Filling
    such scores with a large negative number overflows as well. The operation accumulates in float32; only its result
    is rounded, so it costs little to keep that in float32.

    ## Example
        scores = F.log_softmax(logits, dim=-1)

    ## Use instead
        scores = F.log_softmax(logits, dim=-1, dtype=torch.float32)

    ## When it is silent
    Unless asked for (preview): what it finds is true, but matters only where rounded scores are compared or summed over
    many steps, or where more than 65504 pixels are averaged. Under autocast on CUDA, which computes both in float32;
    where the scores are converted or ``dtype=`` is given; in O2 in losses, which are given float32.

    ## Source
    https://github.com/facebookresearch/ParlAI computes the scores of its search with ``dtype=torch.float32`` "to avoid
    overflow issues during search calculations";
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html
    """

    code = "AMP721"
    name = "lowp-log-softmax"
    severity = "warning"
    preview = "it matters only where scores are summed over many steps or more than 65504 pixels are averaged"
    message = "Log-probabilities or a cross-entropy are rounded to half precision."
    advice = "Give log_softmax dtype=torch.float32, and cross_entropy scores in float32."
    fix_title = "compute in float32"
    fix_safety = "safe"
    triggers = ("log_softmax", "LogSoftmax", "cross_entropy", "CrossEntropy")
    operations = ("log_softmax", "cross_entropy")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge log-probabilities."""
        if not likely_half(op, frame) or op.node is None or not op.args or not is_tensor(op, frame):
            return
        what = "log-probabilities" if op.op == "log_softmax" else "the loss"
        text = in_float32(frame, op.node) if op.op == "log_softmax" and not isinstance(op.data, Value) else None
        fix: Fix | None = replacement(frame, "compute in float32", "safe", (op.node, text)) if text else None
        self.report(frame, op.node, f"`{frame.text(op.node)}` rounds {what} to {frame.mode.dtype}", fix=fix)
