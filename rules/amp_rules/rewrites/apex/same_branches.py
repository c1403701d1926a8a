"""Join branches that differ by Apex alone.

## What it does
`if args.fp16:` with a scaled backward pass, `else:` with a plain one: one of the two stays, the plain one. The same for
clipping `amp.master_params(optimizer)` here and `model.parameters()` there. Where the branches go on in different ways,
the steps that both begin with come before the condition.

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
Branches that differ from their first step on stay two branches, and so do those whose scaled loss is read after them.
So does a clipping of `amp.master_params(optimizer)` here and `model.parameters()` there where the optimizer is made of
parts of the model, leaves some of its parameters out in one branch, or is made of an iterator that is run through
twice: the two clip by different norms.

## Leaving it out
No: one of two branches that are now equal would stay as dead code, with a scaled step in it.

## Source
https://nvidia.github.io/apex/amp.html#transition-guide-for-old-api-users
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator

from amp_rules.plan.apex.fewer_parameters import holds_fewer
from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.scaled_loss import is_kept, scaled_loss_of
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute

RULE = Rule(
    "AMP403", "apex-same-branches", "One path serves every level.", "precision", ways=("idiom",), after=("AMP401",)
)

_WHOLE = "parameters"
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
                yield Change(RULE, file.module, node, message, [Unwrap(node, (kept,))])
            elif actions := list(_first_alike(file, node, used)):
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
    if not _are_alike(file, first, second) or any(_keeps_scaled(file, item) for item in (*first, *second)):
        return None
    # Only the branch with Apex says which of several loss scales is meant.
    return kept if not any(_has_loss_id(file, item) for item in (*first, *second)) else _OTHER[kept]


def _first_alike(file: ApexFile, node: ast.If, used: set[ast.expr]) -> Iterator[Action]:
    """What takes the steps that both branches begin with, the backward pass among them, before the condition."""
    if blocks.is_elif(file.module, node) or any(
        isinstance(part, (ast.Call, ast.NamedExpr)) for part in walk(node.test)
    ):
        return
    sides = [[item for item in suite if item not in file.references.statements] for suite in (node.body, node.orelse)]
    alike: list[tuple[ast.stmt, ast.stmt]] = []
    for pair in zip(*sides, strict=False):
        if not _are_alike(file, [pair[0]], [pair[1]]):
            break
        if any(_has_loss_id(file, item) or _keeps_scaled(file, item) for item in pair):
            break
        alike.append(pair)
    with_apex = [any(part in used for pair in alike for part in walk(pair[side])) for side in (0, 1)]
    if with_apex.count(True) != 1 or len(alike) == len(sides[0]):
        return  # an `else` of which nothing is left goes, an empty `if` would stay
    plain = [pair[with_apex.index(False)] for pair in alike]
    written = {path for item in plain for path in blocks.writes(item)}
    if not all(_can_move(file, item) for item in plain) or blocks.touches(blocks.reads(node.test), written):
        return
    lines: list[str] = []
    for pair, item in zip(alike, plain, strict=True):
        lines += dict.fromkeys(text for one in pair for text in _said_above(file, one))
        lines.append(_moved_out(file, item))
        yield from (Remove(one) for one in pair)
    yield Insert(node, "\n".join(lines))


def _can_move(file: ApexFile, statement: ast.stmt) -> bool:
    """Whether a statement has one line, or lines that stand in brackets, where their indentation means nothing."""
    if statement.lineno == statement.end_lineno:
        return True
    strings = (node for node in walk(statement) if isinstance(node, (ast.Constant, ast.JoinedStr)))
    return isinstance(statement, (ast.Assign, ast.Expr)) and all(node.lineno == node.end_lineno for node in strings)


def _moved_out(file: ApexFile, statement: ast.stmt) -> str:
    """The text of a statement, with the comment behind it, as it stands at the left margin."""
    (line, column), (end, last) = file.module.start(statement), file.module.end(statement)
    rows = file.module.lines[line - 1 : end]
    margin = rows[0][:column]
    if not rows[-1][last:].lstrip().startswith("#"):
        rows[-1] = rows[-1][:last]
    return "\n".join([rows[0][column:], *(row.removeprefix(margin) for row in rows[1:])])


def _said_above(file: ApexFile, statement: ast.stmt) -> list[str]:
    """The comments directly above a statement."""
    found: list[str] = []
    for line in reversed(file.module.lines[: statement.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        found.insert(0, line.strip())
    return found


def _has_loss_id(file: ApexFile, statement: ast.stmt) -> bool:
    found = (scaled_loss_of(file, node) for node in walk(statement) if isinstance(node, ast.With))
    return any(scaled is not None and scaled.loss_id is not None for scaled in found)


def _keeps_scaled(file: ApexFile, statement: ast.stmt) -> bool:
    """Whether the scaled loss, which the plain branch has not, is read later on."""
    for node in walk(statement):
        if isinstance(node, ast.With):
            found = scaled_loss_of(file, node)
            if found is not None and is_kept(file, node, found):
                return True
    return False


def _are_alike(file: ApexFile, first: list[ast.stmt], second: list[ast.stmt]) -> bool:
    """Whether two suites do the same, once Apex is out of them."""
    if _normal(file, first) != _normal(file, second):
        return False
    calls = [part for item in (*first, *second) for part in walk(item) if isinstance(part, ast.Call)]
    masters = [
        call.args[0] for call in calls if call.args and file.references.target(call.func) == "apex.amp.master_params"
    ]
    models = [call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == _WHOLE]
    return not any(holds_fewer(file.module, optimizer, model) for optimizer in masters for model in models)


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
        return isinstance(call.func, ast.Attribute) and call.func.attr == _WHOLE and not call.args
