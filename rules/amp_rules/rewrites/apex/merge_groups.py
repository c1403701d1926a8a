"""Give parameters with equal options one group.

## What it does
In a fused optimizer's list of parameter groups, groups whose options are the same become one; their parameters keep
their order.

## Why
A fused step runs once for each group: two groups with the same weight decay cost two steps. Ascend's documentation
recommends it for its fused optimizers.

## Before
    optimizer = FusedAdam([{"params": backbone.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 1e-3}])

## After
    optimizer = amp.optim.FusedAdam([{"params": [*backbone.parameters(), *head.parameters()], "lr": 1e-3}])

## When it declines
When the script counts on its groups: it takes one by its number, gives a scheduler a list with a value for each, or
loads a state that was saved with them.

## Leaving it out
Yes: the steps are the same with more groups, and slower.

## Source
https://www.hiascend.com/document (Ascend's guide to apex: merging parameter groups)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import apex as api

RULE = Rule(
    "AMP412",
    "merge-groups",
    "Parameters with equal options share a group.",
    "precision",
    optional=True,
    together=True,
    ways=("idiom",),
    after=("AMP402",),
)

_FUSED = frozenset(path for path in api.OPTIMIZER_PATHS if path.startswith("apex.optimizers."))


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each list of groups in which some are equal."""
    if _counts_on_groups(file):
        return
    for use in file.references.uses:
        call = file.module.parents[use.node]
        if use.target not in _FUSED or not isinstance(call, ast.Call) or call.func is not use.node or not call.args:
            continue
        listed = call.args[0]
        merged = _merged(file, listed) if isinstance(listed, ast.List) else None
        if merged is not None:
            message = "a fused step runs once for each group"
            edit = Replace(listed, substitute(merged))
            yield Change(RULE, file.module, listed, message, [edit])


Options = list[tuple[ast.expr, ast.expr]]


def _groups(node: ast.List) -> list[tuple[ast.expr, Options]]:
    """The parameters and the options of each group of a literal list; nothing when it is no list of groups."""
    found = []
    for item in node.elts:
        if not isinstance(item, ast.Dict) or not all(isinstance(key, ast.Constant) for key in item.keys):
            return []
        pairs = [(key, value) for key, value in zip(item.keys, item.values, strict=True) if key is not None]
        parameters = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "params"]
        if len(parameters) != 1:
            return []
        found.append((parameters[0], [pair for pair in pairs if pair[1] is not parameters[0]]))
    return found


def _merged(file: ApexFile, node: ast.List) -> str | None:
    """The list with neighbours of equal options joined; None when there are none, or their options are computed."""
    groups = _groups(node)
    rows: list[tuple[list[ast.expr], Options]] = []
    for parameters, options in groups:
        if any(isinstance(part, ast.Call) for _, value in options for part in walk(value)):
            return None
        if rows and _same(rows[-1][1]) == _same(options):
            rows[-1][0].append(parameters)
        else:
            rows.append(([parameters], options))
    if len(rows) == len(groups):
        return None
    texts = []
    for together, options in rows:
        first = file.source(together[0])
        if len(together) > 1:
            first = "[" + ", ".join(_spread(file, item) for item in together) + "]"
        texts.append("{" + ", ".join([f'"params": {first}', *(_pair(file, *pair) for pair in options)]) + "}")
    return _laid_out(file, node, texts)


def _spread(file: ApexFile, parameters: ast.expr) -> str:
    if isinstance(parameters, ast.List):
        return ", ".join(file.source(item) for item in parameters.elts)
    return f"*{file.source(parameters)}"


def _laid_out(file: ApexFile, node: ast.List, texts: list[str]) -> str:
    """The new list, with a line for each group where the old one had that."""
    if node.lineno == node.elts[0].lineno:
        return "[" + ", ".join(texts) + "]"
    indent = " " * file.module.start(node.elts[0])[1]
    closing = " " * (file.module.end(node)[1] - 1)
    return "[\n" + "".join(f"{indent}{text},\n" for text in texts) + f"{closing}]"


def _same(options: Options) -> list[tuple[str, str]]:
    return sorted((ast.unparse(key), ast.unparse(value)) for key, value in options)


def _pair(file: ApexFile, key: ast.expr, value: ast.expr) -> str:
    return f"{file.source(key)}: {file.source(value)}"


def _counts_on_groups(file: ApexFile) -> bool:
    for node in file.module.parents:
        if isinstance(node, ast.Subscript) and (blocks.path_of(node.value) or "").endswith(".param_groups"):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("enumerate", "zip"):
            if any((blocks.path_of(item) or "").endswith(".param_groups") for item in node.args):
                return True
        if isinstance(node, ast.Attribute) and node.attr == "load_state_dict" and _is_optimizer(node.value):
            return True
        if isinstance(node, ast.keyword) and node.arg in ("lr_lambda", "max_lr", "base_lr"):
            if isinstance(node.value, (ast.List, ast.ListComp)):
                return True
    return False


def _is_optimizer(node: ast.expr) -> bool:
    """By its name: which object it is cannot be known here, and leaving the groups alone is always right."""
    return "optim" in ast.unparse(node).lower()
