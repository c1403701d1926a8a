"""Reading ``with amp.scale_loss(loss, optimizer) as scaled_loss:``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile
from amp_rules.source.syntax import walk

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
        raise file.not_understood(node, "`with` enters another context besides `scale_loss`")
    keywords = {item.arg: item.value for item in call.keywords}
    loss = call.args[0] if call.args else keywords.get("loss")
    if loss is None or None in keywords or isinstance(loss, ast.Starred):
        raise file.not_understood(call, "the loss of `scale_loss` is not named")
    target = node.items[0].optional_vars
    if target is not None and not isinstance(target, ast.Name):
        raise file.not_understood(node, "the scaled loss is not kept in a variable")
    loss_id = keywords.get("loss_id", call.args[2] if len(call.args) > 2 else None)
    if isinstance(loss_id, ast.Constant) and loss_id.value == 0:
        loss_id = None
    return ScaledLoss(loss, target.id if target is not None else None, loss_id)


def uses(file: ApexFile, node: ast.With, name: str) -> list[ast.Name]:
    """Where the variable of a scaled loss is read from here on, until it is written again."""
    owner = file.references.scope_of(node).owner(name)
    end = node.end_lineno or node.lineno
    found = [
        item
        for item in file.module.parents
        if isinstance(item, ast.Name)
        and item.id == name
        and item.lineno >= node.lineno
        and file.references.scope_of(item).owner(name) is owner
    ]
    later = [item for item in found if item.lineno > end]
    written = min((item for item in later if isinstance(item.ctx, ast.Store)), key=_start, default=None)
    return [
        item
        for item in found
        if isinstance(item.ctx, ast.Load)
        and (written is None or _is_read_before(file, item, written))
        and item is not node.items[0].context_expr
        and item not in set(walk(node.items[0].context_expr))
    ]


def _is_read_before(file: ApexFile, read: ast.Name, written: ast.Name) -> bool:
    """Whether a variable is read before it is written; what is given to it comes first: ``loss = loss / 2``."""
    if isinstance(file.module.parents[written], ast.withitem):
        return _start(read) < _start(written)  # ``with amp.scale_loss(loss, optimizer) as s: s.backward()``
    return read.lineno <= written.lineno


def deletions(file: ApexFile, node: ast.With, name: str) -> list[ast.Delete]:
    """The ``del scaled_loss`` that this context is the last to give a value for.

    Raises:
        NotUnderstood: something else gives the variable a value in between, so that it may be there or not.
    """
    owner = file.references.scope_of(node).owner(name)
    names = [
        item
        for item in file.module.parents
        if isinstance(item, ast.Name) and item.id == name and file.references.scope_of(item).owner(name) is owner
    ]
    stores = [item for item in names if isinstance(item.ctx, ast.Store)]
    found = []
    for item in names:
        if not isinstance(item.ctx, ast.Del) or _start(item) < _start(node):
            continue
        written = max((store for store in stores if _start(store) < _start(item)), key=_start)
        holder = next((part for part in file.module.ancestors(written) if isinstance(part, ast.stmt)), None)
        statement = file.module.parents[item]
        if holder is node and isinstance(statement, ast.Delete):
            found.append(statement)
        elif holder is node or not (isinstance(holder, ast.stmt) and scaled_loss_of(file, holder)):
            raise file.not_understood(item, f"`{name}` is deleted, and its value may not be that of `scale_loss`")
    return found


def is_kept(file: ApexFile, node: ast.With, found: ScaledLoss) -> bool:
    """Whether the scaled loss is read after the context, as for a log."""
    if found.name is None or ast.unparse(found.loss) == found.name:
        return False
    inside = set(walk(node))
    return any(use not in inside for use in uses(file, node, found.name))


def _start(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _call(file: ApexFile, node: ast.expr) -> ast.Call | None:
    """The expression, if it is a call of ``scale_loss``."""
    if isinstance(node, ast.Call) and file.references.target(node.func) == SCALE_LOSS:
        return node
    return None
