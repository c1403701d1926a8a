"""Fill targets of losses with floats.

## What it does
`torch.full(size, 1)` that is the target of a loss of floats, such as `nn.BCELoss`, gets `dtype=torch.float`.

## Why
Up to PyTorch 1.6, `torch.full` gave floats whatever it was filled with. Since then the number decides: a whole one
gives a tensor of int64, which these losses refuse.

## Before
    label = torch.full((batch_size,), 1, device=device)
    loss = nn.BCELoss()(output, label)

## After
    label = torch.full((batch_size,), 1, device=device, dtype=torch.float)
    loss = nn.BCELoss()(output, label)

## When it declines
Never: where it is not known that floats are meant, whole numbers stay, as newer scripts mean them.

## Leaving it out
Yes: the loss then raises an error on a current PyTorch.

## Source
https://github.com/pytorch/pytorch/releases/tag/v1.7.0
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import add_keyword
from amp_rules.torch.losses import OF_FLOATS

RULE = Rule("AMP524", "full-of-floats", "Targets of losses are filled with floats.", "modern", optional=True)

_FULL = "torch.full"


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each tensor of whole numbers that a loss of floats compares with."""
    wanted = {value.site for target, scope in _targets(old) for value in old.program.flow.values(target, scope)}
    for use in old.uses_of(_FULL):
        call = use.call
        torch = names_of(use.module).name_of("torch")
        if use.target != _FULL or call is None or call not in wanted or torch is None:
            continue
        if not _is_plain(call) or not _is_whole(old, use.module, _fill(call)):
            continue
        message = f"`{use.module.text(call)}` has whole numbers now, and the loss wants floats"
        yield change(RULE, use.module, call, message, Replace(call, add_keyword(f"dtype={torch}.float")))


def _targets(old: OldProgram) -> Iterator[tuple[ast.expr, Scope]]:
    """What the losses of floats compare with."""
    program = old.program
    for call, _, scope in program.calls():
        names = program.callee_names(call, scope)
        names |= {str(value.ref) for value in program.flow.values(call.func, scope) if value.kind == "object"}
        if not names & OF_FLOATS:
            continue
        named = [item.value for item in call.keywords if item.arg == "target"]
        for target in named or call.args[1:2]:
            yield target, scope


def _is_plain(call: ast.Call) -> bool:
    """Whether nothing else says the type."""
    names = {item.arg for item in call.keywords}
    return not names & {"dtype", "out", None} and not any(isinstance(item, ast.Starred) for item in call.args)


def _fill(call: ast.Call) -> ast.expr | None:
    named = next((item.value for item in call.keywords if item.arg == "fill_value"), None)
    return named or (call.args[1] if len(call.args) == 2 else None)


def _is_whole(old: OldProgram, module: Module, node: ast.expr | None) -> bool:
    """Whether it is a whole number, written there or given to the variable wherever it gets a value."""
    if isinstance(node, ast.Name):
        key = old.tensors.key(module, node)
        known = old.tensors.definitions(module).get(key, []) if key is not None else []
        return bool(known) and all(item.kind == "value" and not item.path and _is_number(item.node) for item in known)
    return _is_number(node)


def _is_number(node: ast.AST | None) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and type(value.value) is int
