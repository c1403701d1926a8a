"""Use tensors without a wrapper.

## What it does
`Variable(x)` becomes `x`, or `x.detach()` where `x` can be part of a graph. `Variable(x, requires_grad=True)` becomes
`x.detach().requires_grad_()`, and `isinstance(x, Variable)` asks for `torch.Tensor`.

## Why
Since PyTorch 0.4 every tensor records its own history. `Variable(x)` gives a tensor with the same numbers and none of
`x`'s history; `detach` says so.

## Before
    data, target = Variable(data), Variable(target)
    noise = Variable(torch.randn(64, 100))

## After
    data, target = data, target
    noise = torch.randn(64, 100)

## When it declines
Where `Variable` is handed on, as in `map(Variable, batch)`, where its arguments are spread, and where `volatile` is
computed: see AMP503.

## Leaving it out
Yes: `Variable` still works.

## Source
https://pytorch.org/docs/stable/autograd.html#variable-deprecated
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import has_comment_beside, unwrapped
from amp_rules.plan.old_torch.old import OldProgram, Use, change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Remove, Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP501", "variable", "Tensors need no Variable around them.", "modern", optional=True, only_asked=True)

_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp)
_GROUPING = (ast.Attribute, ast.Starred, ast.Await, ast.IfExp, ast.comprehension, *_OPERATIONS)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each use of ``Variable``."""
    idle: set[ast.stmt] = set()
    for use in old.uses_of(old_names.VARIABLE):
        if use.target != old_names.VARIABLE:
            continue
        statement = blocks.statement_of(use.module, use.node)
        if statement in idle:
            continue
        if isinstance(statement, ast.Assign) and _is_idle(old, use, statement):
            idle.add(statement)
            message = f"`{use.module.text(statement.targets[0])}` needs no wrapper"
            yield change(RULE, use.module, statement, message, Remove(statement, keep_comments=True))
            continue
        if use.call is not None:
            yield from _call(old, use, use.call)
        elif _asks_for_type(use):
            root = names_of(use.module).name_of("torch")
            if root is not None:
                message = "every tensor is one since PyTorch 0.4"
                yield change(RULE, use.module, use.node, message, Replace(use.node, substitute(f"{root}.Tensor")))
        elif not _is_annotation(use):
            old.leave(
                RULE,
                use.module,
                use.node,
                f"`{old.source(use.module, use.node)}` is handed on instead of called",
                "hand the tensors on as they are, or their `detach()`",
            )


def _call(old: OldProgram, use: Use, call: ast.Call) -> Iterator[Change]:
    keywords = {item.arg: item.value for item in call.keywords}
    spread = any(isinstance(item, ast.Starred) for item in call.args) or None in keywords
    if spread or len(call.args) > 2 or set(keywords) - {"data", "requires_grad", "volatile"}:
        old.leave(RULE, use.module, call, "its arguments are spread", "write the tensor without `Variable`")
        return
    if "volatile" in keywords:
        return  # AMP503 takes it away first
    data = call.args[0] if call.args else keywords.get("data")
    if data is None:
        return
    outer = (use.module.start(call), use.module.end(call))
    if has_comment_beside(use.module.lines, outer, ast.get_source_segment(use.module.source.text, data) or ""):
        old.leave(RULE, use.module, call, "comments stand among its arguments", "write the tensor without `Variable`")
        return
    asks = keywords.get("requires_grad", call.args[1] if len(call.args) > 1 else None)
    suffix, message = _suffix(old, use, call, data, asks)
    parent = use.module.parents[call]
    edit = unwrapped(
        suffix,
        grouped=_needs_parentheses(parent, call),
        keyword="" if call.args else "data",
        aligned=_is_aligned(use, call, data),
    )
    yield change(RULE, use.module, call, message, Replace(call, edit))


def _suffix(old: OldProgram, use: Use, call: ast.Call, data: ast.expr, asks: ast.expr | None) -> tuple[str, str]:
    """What stands behind the tensor, and why."""
    facts = old.tensors.of(use.module, data)
    text = use.module.text(data)
    is_own = facts.plain and facts.fresh
    if asks is not None and not (isinstance(asks, ast.Constant) and not asks.value):
        value = "" if isinstance(asks, ast.Constant) and asks.value is True else old.source(use.module, asks)
        detach = "" if is_own else ".detach()"
        return f"{detach}.requires_grad_({value})", f"`{text}` asks for a gradient itself"
    if facts.plain and (is_own or not old.tensors.asks_for_gradient(use.module, call)):
        return "", f"`{text}` needs no wrapper"
    return ".detach()", f"`{text}` may be part of a graph, which `Variable` cuts"


def _is_aligned(use: Use, call: ast.Call, data: ast.expr) -> bool:
    """Whether the tensor's further rows stand to the right of where it begins."""
    line, column = use.module.start(data)
    rows = use.module.lines[line : use.module.end(data)[0]]
    return line == use.module.start(call)[0] and all(len(row) - len(row.lstrip()) >= column for row in rows)


def _needs_parentheses(parent: ast.AST, call: ast.Call) -> bool:
    if isinstance(parent, ast.Call):
        return parent.func is call
    if isinstance(parent, ast.Subscript):
        return parent.value is call
    return isinstance(parent, _GROUPING)


def _is_idle(old: OldProgram, use: Use, statement: ast.Assign) -> bool:
    """Whether ``x, y = Variable(x), Variable(y)`` would be left as ``x, y = x, y``."""
    if len(statement.targets) != 1 or len(blocks.place(use.module, statement).suite) < 2:
        return False
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts, strict=True))
    for one, other in pairs:
        if not isinstance(one, (ast.Name, ast.Attribute)):
            return False
        if isinstance(other, ast.Call) and old.tensors.target(use.module, other.func) == old_names.VARIABLE:
            asks = [item.value for item in other.keywords]
            if len(other.args) != 1 or any(not isinstance(item, ast.Constant) or item.value for item in asks):
                return False
            if _suffix(old, use, other, other.args[0], None)[0]:
                return False
            other = other.args[0]
        if ast.unparse(one) != ast.unparse(other):
            return False
    return True


def _asks_for_type(use: Use) -> bool:
    """Whether it stands in ``isinstance(x, Variable)`` or in a tuple there."""
    parent: ast.AST = use.parent
    if isinstance(parent, ast.Tuple):
        parent = use.module.parents[parent]
    return isinstance(parent, ast.Call) and ast.unparse(parent.func) in ("isinstance", "issubclass")


def _is_annotation(use: Use) -> bool:
    node: ast.AST = use.node
    for parent in use.module.ancestors(use.node):
        if isinstance(parent, (ast.arg, ast.AnnAssign)) and parent.annotation is node:
            return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and parent.returns is node:
            return True
        node = parent
    return False
