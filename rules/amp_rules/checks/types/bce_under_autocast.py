"""Binary cross-entropy of probabilities where autocast refuses it."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import operand, source
from amp_rules.checks.common.checkpoints import is_known_to
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix


class BceUnderAutocast(Check):
    """Binary cross-entropy of probabilities, which autocast refuses.

    ## What it does
    Finds calls of ``F.binary_cross_entropy`` and of ``nn.BCELoss`` that run under autocast on CUDA. A call of a layer
    is reported where the layer is made, if that is in the same file.

    ## Why
    Autocast on CUDA raises ``RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to
    autocast`` whatever the type of the input: the gradient of the loss, up to 1e12 before it is multiplied by that of
    the sigmoid, does not fit in float16.

    ## Example
        criterion = nn.BCELoss()
        loss = criterion(torch.sigmoid(logits), target)

    ## Use instead
        criterion = nn.BCEWithLogitsLoss()
        loss = criterion(logits, target)

    ## When it is silent
    The call is under ``autocast(enabled=False)``, or outside of the ``with autocast()`` of its function, or the layer
    is given to a function of the project that turns autocast off. On the CPU, and without autocast (O2, O3), the loss
    is allowed.

    ## Source
    https://docs.pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy
    """

    code = "AMP708"
    name = "bce-under-autocast"
    severity = "error"
    message = "Autocast on CUDA raises at binary_cross_entropy and BCELoss."
    advice = "Use binary_cross_entropy_with_logits on the scores before the sigmoid."
    fix_title = "use binary_cross_entropy_with_logits"
    fix_safety = "safe"
    triggers = ("binary_cross_entropy", "BCELoss", "criterion(", "loss(", "loss_fn(", "loss_fct(", "loss_func(", "bce(")
    operations = ("binary_cross_entropy", "call")

    def applies(self, mode: Mode) -> bool:
        """Only under autocast on CUDA."""
        return mode.autocast and mode.device == "cuda"

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a loss, or a call of what may be one."""
        if not frame.autocast or op.node is None or _is_outside(frame):
            return
        if op.op == "call":
            held = next((item for item in alternatives(op.args[0]) if _is_loss(item)), None) if op.args else None
            if held is None or op.args[0].op != "join":
                return
        else:
            held = op.data if isinstance(op.data, Value) else None
        text = frame.text(op.node)
        if held is not None and held.node is not None:
            around = frame.module.index.parents.get(held.node)
            if isinstance(around, ast.Call) and is_known_to(around, frame.module, "enabled=false"):
                return
            if "BCELoss" in frame.text(held.node):
                self.report(frame, held.node, f"`{text}` raises under autocast on CUDA")
                return
        fix = _with_logits(op, frame) if held is None else None
        self.report(frame, op.node, f"`{text}` raises under autocast on CUDA", fix=fix)


def _is_loss(value: Value) -> bool:
    return value.op == "layer" and value.sym == "torch.nn.BCELoss"


def _is_outside(frame: Frame) -> bool:
    """Whether the function turns autocast on itself and the call is not under that."""
    if any(item.op == "autocast" for item in frame.contexts):
        return False
    outer = frame
    while outer.caller is not None:
        outer = outer.caller
    node = outer.function.node if outer.function else None
    if node is None:
        return False
    lines = frame.module.module.lines[node.lineno - 1 : node.end_lineno]
    return any("autocast(" in line and "enabled=False" not in line for line in lines)


def _with_logits(op: Value, frame: Frame) -> Fix | None:
    node, given = op.node, op.args[0] if op.args else None
    if not isinstance(node, ast.Call) or given is None or given.op != "sigmoid" or given.inplace:
        return None
    written, inner = operand(op), operand(given)
    if written is None or written is not given.node or inner is None or not isinstance(node.func, ast.Attribute):
        return None
    return replacement(
        frame,
        "use binary_cross_entropy_with_logits",
        "safe",
        (node.func, source(frame, node.func) + "_with_logits"),
        (written, source(frame, inner)),
    )
