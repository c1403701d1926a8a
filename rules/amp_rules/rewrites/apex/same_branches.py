"""Join branches that differ by Apex alone.

## What it does
`if args.fp16:` with a scaled backward pass, `else:` with a plain one: one of the two stays, the plain one. The same for
clipping `amp.master_params(optimizer)` here and `model.parameters()` there.

## Why
With the runtime's scaler, which does nothing at O0, one path serves every level.

## Before
    if args.fp16:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        clip_grad_norm_(amp.master_params(optimizer), 1.0)
    else:
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)

## After
    amp.scaler.scale(loss).backward()
    amp.scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)

## When it declines
Branches that differ in something else stay two branches.

## Leaving it out
No: one of two branches that are now equal would stay as dead code, with a scaled step in it.

## Source
https://nvidia.github.io/apex/amp.html#transition-guide-for-old-api-users
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.scaled_loss import scaled_loss_of
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace, Unwrap
from amp_rules.text.expression_edits import substitute

RULE = Rule(
    "AMP403", "apex-same-branches", "One path serves every level.", "precision", ways=("idiom",), after=("AMP401",)
)

_PARAMETERS = "<parameters>"
_OTHER = {"body": "orelse", "orelse": "body"}


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each pair of branches."""
    used = {use.node for use in file.references.uses if use.target.startswith("apex.amp.")}
    for node in file.module.parents:
        if isinstance(node, ast.If) and node.orelse:
            message = f"`{file.module.text(node.test)}` chose between the same steps with Apex and without"
            kept = _plain(file, node.body, node.orelse, used)
            if kept is not None:
                actions = [Unwrap(node, (kept,))]
                yield Change(RULE, file.module, node, message, actions)
        elif isinstance(node, ast.IfExp):
            kept = _plain(file, [ast.Expr(node.body)], [ast.Expr(node.orelse)], used)
            if kept is not None:
                plain = node.body if kept == "body" else node.orelse
                edit = Replace(node, substitute(file.source(plain)))
                yield Change(RULE, file.module, node, "one expression serves every level", [edit])


def _plain(file: ApexFile, body: Iterable[ast.stmt], orelse: Iterable[ast.stmt], used: set[ast.expr]) -> str | None:
    """Which of two equal branches does without Apex."""
    first = [item for item in body if not isinstance(item, (ast.Import, ast.ImportFrom))]
    second = [item for item in orelse if not isinstance(item, (ast.Import, ast.ImportFrom))]
    with_apex = [any(part in used for item in suite for part in walk(item)) for suite in (first, second)]
    if with_apex == [True, False]:
        kept = "orelse"
    elif with_apex == [False, True]:
        kept = "body"
    else:
        return None
    if _normal(file, first) != _normal(file, second):
        return None
    # Only the branch with Apex says which of several loss scales is meant.
    return kept if not any(_has_loss_id(file, item) for item in (*first, *second)) else _OTHER[kept]


def _has_loss_id(file: ApexFile, statement: ast.stmt) -> bool:
    found = (scaled_loss_of(file, node) for node in walk(statement) if isinstance(node, ast.With))
    return any(scaled is not None and scaled.loss_id is not None for scaled in found)


def _normal(file: ApexFile, suite: list[ast.stmt]) -> list[str]:
    """The statements without Apex, in a form that can be compared."""
    rows: list[str] = []
    for item in suite:
        rows.extend(ast.unparse(part) for part in _without_apex(file, item))
    return rows


def _without_apex(file: ApexFile, node: ast.stmt) -> list[ast.stmt]:
    found = scaled_loss_of(file, node)
    if found is not None:
        assert isinstance(node, ast.With)
        inner = [part for item in node.body for part in _without_apex(file, item)]
        return [_Substitute(found.name, found.loss).visit(copy.deepcopy(item)) for item in inner]
    return [_Masked(file).masked(node)]


class _Substitute(ast.NodeTransformer):
    def __init__(self, name: str | None, value: ast.expr) -> None:
        self.name = name
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == self.name else node


class _Masked:
    """Takes what an optimizer's and a model's parameters are called for one thing."""

    def __init__(self, file: ApexFile) -> None:
        self.file = file

    def masked(self, node: ast.stmt) -> ast.stmt:
        clone = copy.deepcopy(node)
        for old, new in zip([*walk(node)], [*walk(clone)], strict=True):
            if isinstance(old, ast.Call) and isinstance(new, ast.Call) and self._are_parameters(old):
                new.func, new.args, new.keywords = ast.Name(_PARAMETERS, ast.Load()), [], []
        return clone

    def _are_parameters(self, call: ast.Call) -> bool:
        if self.file.references.target(call.func) == "apex.amp.master_params":
            return True
        return isinstance(call.func, ast.Attribute) and call.func.attr == "parameters" and not call.args
