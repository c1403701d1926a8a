"""Call PyTorch's mixed precision by its present name.

## What it does
`torch.cuda.amp.autocast()` becomes `torch.amp.autocast("cuda")`, `GradScaler()` becomes `GradScaler("cuda")`, and
`custom_fwd` and `custom_bwd` get their `device_type`. In scripts that have mixed precision of their own. A class of
the script that stands in for `GradScaler` or `autocast` where an import of it fails goes.

## Why
`torch.cuda.amp` is deprecated since PyTorch 2.4: every call warns.

## Before
    from torch.cuda.amp import GradScaler, autocast
    scaler = GradScaler()
    with autocast(enabled=args.amp):

## After
    from torch.amp import GradScaler, autocast
    scaler = GradScaler("cuda")
    with autocast("cuda", enabled=args.amp):

## When it declines
A name that is handed on instead of called keeps its import. A file that asks for torch's version
is left: an older torch has only the old names.

## Leaving it out
Yes: the old names work and warn. Within a file all of them stay or none, since import and calls belong together.

## Source
https://pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.torch_choices import substitutes
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.version_tests import chosen_by_version
from amp_rules.text.actions import Action, ExpressionEdit, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import add_keyword, substitute

RULE = Rule(
    "AMP411",
    "torch-cuda-amp",
    "Mixed precision of PyTorch is called by its present name.",
    "precision",
    optional=True,
    together=True,
    ways=("idiom", "beside torch", "compat", "present names"),
    after=("AMP408", "AMP410", "AMP414"),
)

_OLD = {"torch.cuda.amp": "cuda", "torch.cpu.amp": "cpu"}
_SCALER = "GradScaler"
_CASTS = ("custom_fwd", "custom_bwd")
_AUTOCAST_PARAMETERS = ("enabled", "dtype", "cache_enabled")


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each substitute of an older torch; where none is left, for each import and each call."""
    old = list(substitutes(file))
    for node in old:
        yield Change(RULE, file.module, node, "any present torch has it", [Unwrap(node, ("body",))])
    if not old:
        yield from _by_present_names(file)


def _by_present_names(file: ApexFile) -> Iterator[Change]:
    names = file.names
    found = [(use.node, *split) for use in names.uses if (split := _split(use.target)) is not None]
    if any(not _is_called(file, node, name) for node, _, name in found):
        return
    imports = [(statement, line) for statement in names.import_statements if (line := _import(statement)) is not None]
    by_version = chosen_by_version(file.module.tree) if found or imports else set()
    if any(node in by_version for node in (*(node for node, _, _ in found), *(node for node, _ in imports))):
        return
    message = "`torch.cuda.amp` is deprecated"
    for node, device, name in found:
        parent = file.module.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            edit = _with_device(device, name, None if isinstance(node, ast.Name) else _path(file, node))
            yield Change(RULE, file.module, parent, message, [Replace(parent, edit)])
        else:  # ``@custom_fwd``
            path = node.id if isinstance(node, ast.Name) else _path(file, node)
            code = f'{path}(device_type="{device}")'
            yield Change(RULE, file.module, node, message, [Replace(node, substitute(code))])
    for statement, line in imports:
        actions: list[Action] = [Insert(statement, line), Remove(statement)]
        yield Change(RULE, file.module, statement, message, actions)


def _split(target: str) -> tuple[str, str] | None:
    """Device and name of something in one of the old modules."""
    module, _, name = target.rpartition(".")
    for part, kept in (("autocast_mode", ""), ("grad_scaler", "")):
        module = module.removesuffix("." + part) or kept
    device = _OLD.get(module)
    return None if device is None or name not in ("autocast", _SCALER, *_CASTS) else (device, name)


def _is_called(file: ApexFile, node: ast.expr, name: str) -> bool:
    parent = file.module.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return not any(isinstance(item, ast.Starred) for item in parent.args)
    return name in _CASTS and isinstance(parent, ast.FunctionDef) and node in parent.decorator_list


def _path(file: ApexFile, node: ast.expr) -> str:
    """``torch.cuda.amp.autocast`` and ``amp.autocast`` by their present names."""
    return file.source(node).replace("cuda.amp", "amp").replace("cpu.amp", "amp").replace(".autocast_mode", "")


def _with_device(device: str, name: str, path: str | None) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        if path is not None:
            call = call.with_changes(func=cst.parse_expression(path))
        if name in _CASTS:
            return add_keyword(f'device_type="{device}"')(call)
        added = cst.ensure_type(cst.parse_expression(f'f("{device}")'), cst.Call).args[0]
        arguments = list(call.args)
        if name == "autocast":
            arguments = [_named(item, place) for place, item in enumerate(arguments)]
        if not arguments:
            return call.with_changes(args=[added])
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return call.with_changes(args=[added.with_changes(comma=comma), *arguments])

    return edit


def _named(argument: cst.Arg, place: int) -> cst.Arg:
    """A positional argument of the old function by its name: their order has changed."""
    if argument.keyword is not None or argument.star:
        return argument
    bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return argument.with_changes(keyword=cst.Name(_AUTOCAST_PARAMETERS[place]), equal=bare)


def _import(statement: ast.Import | ast.ImportFrom) -> str | None:
    names = ", ".join(ast.unparse(item) for item in statement.names)
    if isinstance(statement, ast.ImportFrom):
        if statement.level:
            return None
        if statement.module in _OLD or statement.module in (
            "torch.cuda.amp.autocast_mode",
            "torch.cuda.amp.grad_scaler",
        ):
            return f"from torch.amp import {names}"
        if statement.module in ("torch.cuda", "torch.cpu") and [item.name for item in statement.names] == ["amp"]:
            return f"from torch import {names}"
        return None
    if len(statement.names) == 1 and statement.names[0].name in _OLD and statement.names[0].asname:
        return f"import torch.amp as {statement.names[0].asname}"
    return None
