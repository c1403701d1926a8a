"""Call linear algebra where it lives.

## What it does
`torch.symeig(a, eigenvectors=True)` becomes `torch.linalg.eigh(a, UPLO="U")`, `torch.solve(b, a)[0]` becomes
`torch.linalg.solve(a, b)`, and `qr`, `cholesky` and `matrix_rank` of one matrix those of `torch.linalg`.

## Why
`symeig`, `solve` and `matrix_rank` are gone since PyTorch 2.0, the other two are deprecated.

## Before
    values, vectors = torch.symeig(covariance, eigenvectors=True)

## After
    values, vectors = torch.linalg.eigh(covariance, UPLO="U")

## When it declines
Where more of the result is used than the new function gives, and for `eig`, `lstsq` and `gels`, whose results differ:
those places are reported.

## Leaving it out
Yes: what is gone raises RuntimeError.

## Source
https://pytorch.org/docs/stable/linalg.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, Use, change
from amp_rules.plan.rule import Rule
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import change_function, substitute
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP518", "linear-algebra", "Linear algebra is called where it lives.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each call whose result stays the same."""
    for use in old.uses_of("torch."):
        if use.target not in old_names.REWRITTEN:
            continue
        torch = names_of(use.module).name_of("torch")
        found = _rewritten(old, use, torch) if torch is not None else None
        if found is not None:
            yield found
        elif use.target in old_names.GONE:
            what, recipe = old_names.GONE[use.target]
            old.refuse(RULE, use.module, use.node, f"`{use.target}` {what}", recipe)


def _rewritten(old: OldProgram, use: Use, torch: str | None) -> Change | None:
    call = use.call
    if call is None or any(isinstance(item, ast.Starred) for item in call.args):
        return None
    keywords = {item.arg: item.value for item in call.keywords}
    if use.target in old_names.LINEAR_ALGEBRA and len(call.args) == 1 and not keywords:
        path = old_names.LINEAR_ALGEBRA[use.target].removeprefix("torch")
        message = f"`{use.target}` lives in torch.linalg"
        return change(RULE, use.module, call, message, Replace(call, change_function(f"{torch}{path}")))
    if use.target in old_names.SOLVERS:
        return _solved(old, use, call, torch)
    if use.target == "torch.symeig" and len(call.args) == 1 and _is_true(keywords.pop("eigenvectors", None)):
        upper = keywords.pop("upper", None)
        if keywords or (upper is not None and not isinstance(upper, ast.Constant)):
            return None
        part = "L" if isinstance(upper, ast.Constant) and not upper.value else "U"
        code = f'{torch}.linalg.eigh({old.source(use.module, call.args[0])}, UPLO="{part}")'
        message = "`torch.symeig` was removed; both give the values in ascending order"
        return change(RULE, use.module, call, message, Replace(call, substitute(code)))
    return None


def _solved(old: OldProgram, use: Use, call: ast.Call, torch: str | None) -> Change | None:
    """``torch.solve(b, a)[0]``."""
    parent = use.module.parents[call]
    is_first = isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant) and parent.slice.value == 0
    if not isinstance(parent, ast.Subscript) or not is_first or len(call.args) != 2 or call.keywords:
        return None
    right, left = (old.source(use.module, item) for item in call.args)
    message = f"`{use.target}` was removed; the matrix comes first now"
    code = f"{torch}.linalg.solve({left}, {right})"
    return change(RULE, use.module, parent, message, Replace(parent, substitute(code)))


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
