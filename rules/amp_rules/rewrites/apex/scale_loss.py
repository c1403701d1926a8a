"""Take the context around the backward pass out.

## What it does
`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()` becomes the plain backward pass of `loss`,
which is then scaled as in any other script.

## Why
The context scales the loss, unscales the gradients at its end and decides on the step. The scaler does the same in
three calls that every reader of PyTorch knows: `scale`, `unscale_` before gradients are clipped, `step`.
`delay_unscale` has no counterpart, because the scaler unscales once, before the step. A scaled loss that is logged
afterwards keeps its variable: the loss times the scale that it had. `del scaled_loss` goes with the variable.

## Before
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()

## After
    amp.scaler.scale(loss).backward()

## When it declines
When the scaled loss is used for more than its backward pass, but for its number in a log afterwards; when it
is deleted and something else may have given the variable its value; and when the context also works on gradients, which
are still scaled there, and does more than average them over the processes by hand.

## Leaving it out
No: the context manager is Apex's own.

## Source
https://nvidia.github.io/apex/advanced.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import emptied
from amp_rules.plan.apex.scaled_loss import ScaledLoss, deletions, is_kept, scaled_loss_of, uses
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute

RULE = Rule(
    "AMP402",
    "apex-scale-loss",
    "The scaler takes the place of scale_loss.",
    "precision",
    ways=("idiom",),
    after=("AMP403",),
)

_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each ``with amp.scale_loss``."""
    for node in file.module.parents:
        found = scaled_loss_of(file, node) if isinstance(node, ast.With) else None
        if found is None:
            continue
        assert isinstance(node, ast.With)
        message = f"`{file.module.text(found.loss)}` is scaled by the scaler, which also unscales before the step"
        yield Change(RULE, file.module, node, message, list(_actions(file, node, found)))
        for statement in _deleted(file, node, found):
            yield Change(RULE, file.module, statement, f"there is no `{found.name}` any more", [])


def _actions(file: ApexFile, node: ast.With, found: ScaledLoss) -> Iterator[Action]:
    yield Unwrap(node)
    if found.name is None:
        return
    text = file.source(found.loss)
    inside = {part for item in node.body for part in walk(item)}
    if is_kept(file, node, found):
        loss = text if isinstance(found.loss, _ATOMS) else f"({text})"
        yield Insert(node, f"{found.name} = {loss}.detach().float() * {file.vocabulary.scale(file.module)}")
    for statement in _deleted(file, node, found):
        yield from _without(file, statement, found.name)
    for use in uses(file, node, found.name):
        if use not in inside:
            if text == found.name or (found.loss_id is None and _is_shown(file, use)):
                continue
            raise file.not_understood(use, f"`{found.name}` is used after the context that scales it")
        call = _backward(file, use)
        if call is None:
            raise file.not_understood(use, f"`{found.name}` is used for more than its backward pass")
        if found.loss_id is not None:
            code = file.vocabulary.scaled(file.module, text, file.source(found.loss_id))
            yield Replace(use, substitute(code))
        elif text != found.name:
            grouped = isinstance(call.func, ast.Attribute) and call.func.value is use
            yield Replace(use, substitute(f"({text})" if grouped and not isinstance(found.loss, _ATOMS) else text))


def _deleted(file: ApexFile, node: ast.With, found: ScaledLoss) -> list[ast.Delete]:
    """The ``del scaled_loss`` of a variable that goes."""
    if found.name is None or is_kept(file, node, found) or file.source(found.loss) == found.name:
        return []
    return deletions(file, node, found.name)


def _without(file: ApexFile, statement: ast.Delete, name: str) -> Iterator[Action]:
    """Take one variable out of a ``del``."""
    others = [file.source(item) for item in statement.targets if not (isinstance(item, ast.Name) and item.id == name)]
    if others:
        yield Insert(statement, f"del {', '.join(others)}")
    yield Remove(statement if others else emptied(file, statement))


def _is_shown(file: ApexFile, use: ast.Name) -> bool:
    """Whether only the number of the scaled loss is asked for, as for a log: no gradient flows back from there."""
    parent = file.module.parents[use]
    return isinstance(parent, ast.Attribute) and parent.attr in ("data", "detach", "item")


def _backward(file: ApexFile, use: ast.Name) -> ast.Call | None:
    """The backward pass that starts from the variable."""
    parent = file.module.parents[use]
    if isinstance(parent, ast.Attribute) and parent.attr == "backward":
        call = file.module.parents[parent]
        return call if isinstance(call, ast.Call) and call.func is parent else None
    if isinstance(parent, ast.Call) and use in parent.args and ast.unparse(parent.func).endswith("autograd.backward"):
        return parent
    return None
