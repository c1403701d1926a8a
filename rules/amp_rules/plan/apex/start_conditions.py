"""Conditions around ``amp.initialize``: whether the models can be prepared without one, or before it."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.side_effects import leaves_alone, reads_beside_methods
from amp_rules.plan.apex.starts import MODELS, repeats
from amp_rules.source import blocks
from amp_rules.source.syntax import walk


def condition_alone(file: ApexFile, statement: ast.stmt) -> ast.If | None:
    """The ``if`` that holds nothing but the statement and imports of Apex."""
    parent = blocks.place(file.module, statement).parent
    if not isinstance(parent, ast.If) or parent.orelse or statement not in parent.body:
        return None
    if any(isinstance(item, (ast.Call, ast.NamedExpr, ast.Await)) for item in walk(parent.test)):
        return None
    if blocks.is_elif(file.module, parent):
        return None
    imports = [item for item in file.references.statements if item in parent.body]
    bound = {alias.asname or alias.name.partition(".")[0] for item in imports for alias in item.names}
    again = repeats(file, statement)
    others = [item for item in parent.body if item is not statement and item not in imports and item not in again]
    # ``global amp`` above ``from apex import amp`` goes with it.
    return parent if all(isinstance(item, ast.Global) and bound.issuperset(item.names) for item in others) else None


def condition_beside_others(file: ApexFile, statement: ast.stmt, arguments: dict[str, ast.expr]) -> ast.If | None:
    """The ``if`` around the statement whose other statements, in both branches, have nothing to do with it.

    They neither touch the models and optimizers nor change what the level depends on, so the models can be prepared
    before the condition, which decides on the level alone.
    """
    parent = blocks.place(file.module, statement).parent
    if not isinstance(parent, ast.If) or statement not in parent.body or isinstance(statement, ast.Return):
        return None
    if any(isinstance(item, (ast.Call, ast.NamedExpr, ast.Await)) for item in walk(parent.test)):
        return None
    holder = file.module.parents[parent]
    if isinstance(holder, blocks.LOOPS) or blocks.is_elif(file.module, parent):
        return None
    gone = [statement, *repeats(file, statement), *file.references.statements]
    kept = [item for item in parent.body if item not in gone]
    if not kept:
        return None  # an empty branch would be left
    given = blocks.reads(statement) | blocks.writes(statement)
    held = given | blocks.reads(parent.test)
    models = {path for name in MODELS if name in arguments for path in blocks.reads(arguments[name])}
    models |= blocks.writes(statement)
    for item in (*kept, *parent.orelse):
        if isinstance(item, (ast.Return, ast.FunctionDef, ast.ClassDef, *blocks.LOOPS, ast.With)):
            return None
        if blocks.touches(reads_beside_methods(file.module, item) | blocks.writes(item), models):
            return None
        if blocks.touches(blocks.writes(item), held):
            return None
        if not all(leaves_alone(file.module, node, models, held) for node in walk(item) if isinstance(node, ast.Call)):
            return None
    return parent


def condition_begun(
    file: ApexFile, statement: ast.stmt, arguments: dict[str, ast.expr], handed: list[str]
) -> ast.If | None:
    """The ``if`` whose body begins with the statement, and whose other branch goes on with the same models.

    Nothing of the branch runs before the models are prepared, so they can be prepared before the condition: what both
    branches make of them then, they make of prepared models, which at O0 are what they were.
    """
    parent = blocks.place(file.module, statement).parent
    if not isinstance(parent, ast.If) or statement not in parent.body or not isinstance(statement, ast.Assign):
        return None
    if any(isinstance(item, (ast.Call, ast.NamedExpr, ast.Await)) for item in walk(parent.test)):
        return None
    holder = file.module.parents[parent]
    if isinstance(holder, blocks.LOOPS) or blocks.is_elif(file.module, parent) or not parent.orelse:
        return None
    again = repeats(file, statement)
    before = parent.body[: parent.body.index(statement)]
    after = [item for item in parent.body[len(before) + 1 :] if item not in again]
    imports = file.references.statements
    if not all(item in imports for item in before) or not (handed or any(item not in imports for item in after)):
        return None
    models = blocks.reads(arguments["models"])
    if blocks.touches(blocks.reads(parent.test), models):
        return None
    for item in parent.orelse:
        for part in walk(item):
            if isinstance(part, (ast.Return, ast.FunctionDef, ast.ClassDef, *blocks.LOOPS, ast.With, ast.Delete)):
                return None
            if isinstance(part, ast.stmt) and not isinstance(part, (ast.If, ast.Try)):
                # Another model under the same name would be trained as it is.
                if blocks.touches(blocks.writes(part), models) and not blocks.touches(blocks.reads(part), models):
                    return None
    return parent
