"""Import Apex by statements.

## What it does
`amp = importlib.import_module("apex.amp")` becomes `from apex import amp`, and within another expression the call
becomes a name that is imported above it. `import importlib` goes where nothing else needs it.

## Why
What `amp` is can be seen then: by the reader, by tools, and by what migrates the script away from Apex.

## Before
    if args.fp16:
        amp = importlib.import_module("apex.amp")

## After
    if args.fp16:
        from apex import amp

## When it declines
When the name is computed, or when the variable of that name holds something else where it is imported.

## Leaving it out
Yes: the module is imported as before, and the script is not migrated away from Apex.

## Source
https://docs.python.org/3/library/importlib.html#importlib.import_module
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import Names, names_of
from amp_rules.text.actions import Action, Insert, Remove, Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import apex as api

RULE = Rule("AMP525", "imported-by-name", "Apex is imported by statements.", "modern", optional=True)

_BY_NAME = "importlib.import_module"
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each module of Apex that is imported by a constant name."""
    for module in old.modules:
        if not mentions(module):
            continue
        names = names_of(module)
        found = [node for node in module.nodes if isinstance(node, ast.Call) and loads(names, node)]
        done: set[ast.Call] = set()
        for call in found:
            statement = blocks.statement_of(module, call)
            actions = list(_actions(module, names, statement, call)) if isinstance(statement, _SIMPLE) else []
            if actions:
                done.add(call)
                yield change(RULE, module, call, f"`{module.text(call)}` is an import", *actions)
        yield from _unused(module, names, done)


def mentions(module: Module) -> bool:
    """Whether a file may import Apex by its name."""
    return "import_module" in module.source.text and api.NAMES_APEX.search(module.source.text) is not None


def loads(names: Names, call: ast.Call) -> str:
    """The module of Apex that a call imports by its name; empty if it is none."""
    if len(call.args) != 1 or call.keywords or names.dotted(call.func) != _BY_NAME:
        return ""
    given = call.args[0]
    name = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
    return name if name.split(".")[0] == "apex" else ""


def _actions(module: Module, names: Names, statement: ast.stmt, call: ast.Call) -> Iterator[Action]:
    package, _, last = loads(names, call).rpartition(".")
    code = f"from {package} import {last}" if package else f"import {last}"
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if isinstance(statement, ast.Assign) and statement.value is call and isinstance(target, ast.Name):
        yield Insert(statement, code if target.id == last else f"{code} as {target.id}")
        yield Remove(statement)
    elif not _is_taken(module, names, statement, last):
        yield Insert(statement, code)
        yield Replace(call, substitute(last))


def _is_taken(module: Module, names: Names, statement: ast.stmt, name: str) -> bool:
    owner = names.scope_of(statement).owner(name)
    return any(
        isinstance(node, ast.Name) and node.id == name and names.scope_of(node).owner(name) is owner
        for node in module.nodes
    )


def _unused(module: Module, names: Names, done: set[ast.Call]) -> Iterator[Change]:
    """Yield an edit for an import of importlib that only these calls need."""
    callers = {part for call in done for part in ast.walk(call.func)}
    for statement in names.import_statements:
        bound = {alias.asname or alias.name.split(".")[0] for alias in statement.names}
        if not done or len(statement.names) != 1 or bound - {"importlib", "import_module"}:
            continue
        uses = [node for node in module.nodes if isinstance(node, ast.Name) and node.id in bound]
        if uses and all(node in callers for node in uses):
            yield change(RULE, module, statement, "nothing needs it any more", Remove(statement))
