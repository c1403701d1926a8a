"""Models that ``amp.initialize`` is given in a list that is no literal at the call: each is prepared by itself."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.source.syntax import walk


def prepared_list(file: ApexFile, models: ast.expr) -> str | None:
    """The list of the prepared models, where the models are one.

    Raises:
        NotUnderstood: they may be a list or a single model.
    """
    if isinstance(models, ast.ListComp) and not any(part.is_async for part in models.generators):
        over = " ".join(_written(file, part) for part in models.generators)
        return f"[{file.vocabulary.prepared(file.module, file.source(models.elt))} {over}]"
    if not _is_list(file, models):
        if not file.as_written.may_be_list(file.module, models):
            return None
        if file.as_written.may_be_model(file.module, models):
            raise file.not_understood(models, "`initialize` may be given a list of models here, or a single model")
    is_call = isinstance(models, ast.Call) and isinstance(models.func, ast.Name) and models.func.id == "list"
    given = models.args[0] if isinstance(models, ast.Call) and is_call and len(models.args) == 1 else models
    item = "item" if any(isinstance(node, ast.Name) and node.id == "model" for node in walk(models)) else "model"
    return f"[{file.vocabulary.prepared(file.module, item)} for {item} in {file.source(given)}]"


def _written(file: ApexFile, part: ast.comprehension) -> str:
    tests = "".join(f" if {file.source(test)}" for test in part.ifs)
    return f"for {file.source(part.target)} in {file.source(part.iter)}{tests}"


def _is_list(file: ApexFile, models: ast.expr) -> bool:
    """Whether every value that a variable is given is a list."""
    if not isinstance(models, ast.Name):
        return False
    scope = file.references.scope_of(models).owner(models.id)
    values = [
        node.value
        for node in file.module.parents
        if isinstance(node, ast.Assign)
        and any(isinstance(item, ast.Name) and item.id == models.id for item in node.targets)
        and file.references.scope_of(node).owner(models.id) is scope
    ]
    return bool(values) and all(isinstance(value, (ast.List, ast.ListComp)) for value in values)
