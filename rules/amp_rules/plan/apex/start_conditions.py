"""Conditions around ``amp.initialize``: whether the models can be prepared without one, or before it."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.side_effects import leaves_alone, reads_beside_methods
from amp_rules.plan.apex.starts import MODELS, repeats
from amp_rules.plan.apex.wrapping import WRAPPER
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.models import RETURNS_RECEIVER
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL

_WRAPPERS = DATA_PARALLEL | DISTRIBUTED_DATA_PARALLEL | {WRAPPER}


def _branch(file: ApexFile, statement: ast.stmt) -> ast.If | None:
    """The ``if`` in whose body a statement stands, no ``elif``, where its test calls and binds nothing."""
    parent = blocks.place(file.module, statement).parent
    if not isinstance(parent, ast.If) or statement not in parent.body or blocks.is_elif(file.module, parent):
        return None
    is_pure = not any(isinstance(item, (ast.Call, ast.NamedExpr, ast.Await)) for item in walk(parent.test))
    return parent if is_pure else None


def condition_alone(file: ApexFile, statement: ast.stmt) -> ast.If | None:
    """The ``if`` that holds nothing but the statement and imports of Apex."""
    parent = _branch(file, statement)
    if parent is None or parent.orelse:
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
    parent = _branch(file, statement)
    if parent is None or isinstance(statement, ast.Return) or isinstance(file.module.parents[parent], blocks.LOOPS):
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


def _keep_names(statement: ast.Assign, arguments: dict[str, ast.expr]) -> bool:
    """Whether models are given by their variables, and come back in these: nothing is made for the call."""
    target, models = statement.targets[0], arguments["models"]
    if not is_none(arguments.get("optimizers", ast.Constant(None))):
        if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != 2:
            return False
        target = target.elts[0]
    pairs = [(target, models)]
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(models, (ast.Tuple, ast.List)):
        pairs = list(zip(target.elts, models.elts, strict=False))
    paths = [(blocks.path_of(one), blocks.path_of(other)) for one, other in pairs]
    return len(statement.targets) == 1 and all(one is not None and one == other for one, other in paths)


def _only_wraps(file: ApexFile, statement: ast.stmt, models: set[str]) -> bool:
    """Whether a statement gives a model back to its variable, moved or in a wrapper that has no weights of its own."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    value, path = statement.value, blocks.path_of(statement.targets[0])
    if path not in models or not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and blocks.path_of(value.func.value) == path:
        return value.func.attr in RETURNS_RECEIVER
    names = file.names.targets(value.func) | file.references.targets(value.func)
    wraps = bool(names) and names <= _WRAPPERS
    return wraps and bool(value.args) and blocks.path_of(value.args[0]) == path


def condition_begun(
    file: ApexFile, statement: ast.stmt, arguments: dict[str, ast.expr], handed: list[str]
) -> ast.If | None:
    """The ``if`` whose body begins with the statement, and whose other branch goes on with the same models.

    Nothing of the branch runs before the models are prepared, so they can be prepared before the condition: what both
    branches make of them then, they make of prepared models, which at O0 are what they were.
    """
    parent = _branch(file, statement)
    if parent is None or not parent.orelse or not isinstance(statement, ast.Assign):
        return None
    if isinstance(file.module.parents[parent], blocks.LOOPS):
        return None
    again = repeats(file, statement)
    before = parent.body[: parent.body.index(statement)]
    after = [item for item in parent.body[len(before) + 1 :] if item not in again]
    imports = file.references.statements
    if not all(item in imports for item in before) or not (handed or any(item not in imports for item in after)):
        return None
    models = blocks.reads(arguments["models"])
    if blocks.touches(blocks.reads(parent.test), models) or not _keep_names(statement, arguments):
        return None
    for item in parent.orelse:
        for part in walk(item):
            if isinstance(part, (ast.Return, ast.FunctionDef, ast.ClassDef, *blocks.LOOPS, ast.With, ast.Delete)):
                return None
            if isinstance(part, ast.stmt) and not isinstance(part, (ast.If, ast.Try)):
                # Another model under the same name would be trained as it is.
                if blocks.touches(blocks.writes(part), models) and not _only_wraps(file, part, models):
                    return None
    return parent
