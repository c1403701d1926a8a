"""Reading ``with amp.scale_loss(loss, optimizer) as scaled_loss:``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile

SCALE_LOSS = "apex.amp.scale_loss"


@dataclass(frozen=True)
class ScaledLoss:
    """What a ``with`` scales.

    Attributes:
        loss: the loss.
        name: the variable of the scaled loss, if it has one.
        loss_id: which of several loss scales, where it is not the first.
    """

    loss: ast.expr
    name: str | None
    loss_id: ast.expr | None


def scaled_loss_of(file: ApexFile, node: ast.stmt) -> ScaledLoss | None:
    """What the statement scales; None when it is no ``with amp.scale_loss(...)``.

    Raises:
        NotUnderstood: it is one, and does more than that.
    """
    if not isinstance(node, ast.With):
        return None
    calls = [_call(file, item.context_expr) for item in node.items]
    if not any(calls):
        return None
    call = calls[0]
    if len(node.items) != 1 or call is None:
        raise file.not_understood(node, "`with` enters something else beside `scale_loss`")
    keywords = {item.arg: item.value for item in call.keywords}
    loss = call.args[0] if call.args else keywords.get("loss")
    if loss is None or None in keywords or isinstance(loss, ast.Starred):
        raise file.not_understood(call, "the loss of `scale_loss` is not named")
    target = node.items[0].optional_vars
    if target is not None and not isinstance(target, ast.Name):
        raise file.not_understood(node, "the scaled loss is kept in something else than a variable")
    loss_id = keywords.get("loss_id", call.args[2] if len(call.args) > 2 else None)
    if isinstance(loss_id, ast.Constant) and loss_id.value == 0:
        loss_id = None
    return ScaledLoss(loss, target.id if target is not None else None, loss_id)


def _call(file: ApexFile, node: ast.expr) -> ast.Call | None:
    """The expression, if it is a call of ``scale_loss``."""
    if isinstance(node, ast.Call) and file.references.target(node.func) == SCALE_LOSS:
        return node
    return None
