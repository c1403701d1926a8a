"""Compute without recording under no_grad.

## What it does
`Variable(x, volatile=True)` loses its argument, and the statements that compute with it go under `torch.no_grad()`.

## Why
Since PyTorch 0.4 `volatile` is ignored, with a warning: what is computed from `x` is recorded for a backward pass that
never comes, and takes the memory for it.

## Before
    data = Variable(data, volatile=True)
    output = model(data)

## After
    with torch.no_grad():
        data = data
        output = model(data)

## When it declines
Where `volatile` is computed, where the tensor leaves the function that makes it, and where a backward pass or an
optimizer's step stands among the statements.

## Leaving it out
Yes: the numbers are the same; the memory is not.

## Source
https://pytorch.org/docs/stable/generated/torch.no_grad.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import without_arguments
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Action, ExpressionEdit, Replace, Wrap
from amp_rules.torch import old_torch as old_names

RULE = Rule(
    "AMP503", "volatile", "What is not trained on is computed under no_grad.", "modern", optional=True, only_asked=True
)

_NUMBERS = frozenset({"data", "item", "size", "numpy", "shape", "tolist", "detach"})


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each run of statements that computes with such tensors, the first of a suite at a time."""
    begun: set[ast.AST] = set()
    for use in old.uses_of(old_names.VARIABLE):
        call = use.call
        if call is None or use.target != old_names.VARIABLE:
            continue
        asked = [item.value for item in call.keywords if item.arg == "volatile"]
        if not asked:
            continue
        statement = blocks.statement_of(use.module, call)
        if not isinstance(asked[0], ast.Constant):
            message = f"`volatile` is `{use.module.text(asked[0])}`"
            _leave(old, use.module, call, message)
        elif not asked[0].value or _is_without_gradients(old, use.module, call):
            message = "`volatile` says nothing here"
            yield change(RULE, use.module, call, message, Replace(call, _without(call)))
        elif blocks.place(use.module, statement).parent not in begun:
            begun.add(blocks.place(use.module, statement).parent)
            yield from _wrapped(old, use.module, statement, call)


def _leave(old: OldProgram, module: Module, node: ast.AST, message: str) -> None:
    recipe = "put `with torch.no_grad():` around what is computed from it, and take `volatile` away"
    old.leave(RULE, module, node, message, recipe)


def _wrapped(old: OldProgram, module: Module, statement: ast.stmt, call: ast.Call) -> Iterator[Change]:
    torch = names_of(module).name_of("torch")
    if torch is None or isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With)):
        _leave(old, module, call, "it stands where no block can begin")
        return
    last = _last(module, statement)
    if last is None:
        _leave(old, module, call, f"`{module.text(call)}` leaves the place where it is made")
        return
    where = blocks.place(module, statement)
    run = where.suite[where.index : where.suite.index(last) + 1]
    if any(old.program.runs_backward(item) or old.program.runs_step(item) for item in run):
        _leave(old, module, call, "a backward pass or a step stands among what is computed from it")
        return
    calls = [
        use.call
        for use in old.uses_of(old_names.VARIABLE)
        if use.call is not None
        and use.module is module
        and use.call in set(ast.walk(statement))
        and _is_volatile(use.call)
    ]
    actions: list[Action] = [Replace(item, _without(item)) for item in calls]
    actions.append(Wrap(statement, last, f"with {torch}.no_grad():"))
    message = "`no_grad` records nothing, as `volatile` did"
    yield change(RULE, module, statement, message, *actions)


def _last(module: Module, statement: ast.stmt) -> ast.stmt | None:
    """The last statement of the suite that computes with the tensor; None when the tensor itself goes elsewhere."""
    where = blocks.place(module, statement)
    own = blocks.writes(statement)
    if isinstance(statement, ast.Return) or any("." in path for path in own):
        return None
    tainted, last = set(own), statement
    for item in where.suite[where.index + 1 :]:
        reads = _recording_reads(item)
        if reads & tainted or blocks.reads(item) & tainted:
            last = item
            tainted |= {path for path in blocks.writes(item) if reads & tainted}
        if any(
            isinstance(node, (ast.Return, ast.Yield)) and _recording_reads(node) & own for node in blocks.walk_own(item)
        ):
            return None
    body = blocks.body_of(module, statement)
    for node in blocks.walk_body(body):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None and _handed_on(node.value) & own:
            return None
    return last


def _handed_on(node: ast.expr) -> set[str]:
    """What a returned expression hands on as it is."""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    return {path for item in parts if (path := blocks.path_of(item)) is not None}


def _recording_reads(node: ast.AST) -> set[str]:
    """The variables that are read for more than their numbers."""
    found: set[str] = set()
    stack: list[ast.AST] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, ast.Attribute) and current.attr in _NUMBERS:
            continue
        if isinstance(current, ast.Name) and isinstance(current.ctx, ast.Load):
            found.add(current.id)
        stack.extend(ast.iter_child_nodes(current))
    return found


def _is_volatile(call: ast.Call) -> bool:
    return any(
        item.arg == "volatile" and isinstance(item.value, ast.Constant) and bool(item.value.value)
        for item in call.keywords
    )


def _without(call: ast.Call) -> ExpressionEdit:
    index = next(place for place, item in enumerate(call.keywords) if item.arg == "volatile")
    return without_arguments(len(call.args) + index)


def _is_without_gradients(old: OldProgram, module: Module, call: ast.Call) -> bool:
    return old.program.without_gradients(module, call, blocks.body_of(module, call))
