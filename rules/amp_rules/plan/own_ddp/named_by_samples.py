"""Paths that are named after samples, by what callers give: each process writes the files of its own share."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.checks.common.file_writes import of_batches
from amp_rules.plan.own_ddp.named_by_rank import OF_TEXTS
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import children, last_name

_MAX_DEPTH = 6
"""Variables and parameters between a path and a batch: ``path``, ``names``, ``batch``."""


def is_named_by_samples(program: Program, facts: Callable[[Module], ModuleFacts], path: ast.expr) -> bool:
    """Whether a piece of a path is an entry of what a loop over data gives: ``names[n]`` of ``batch["names"]``.

    A number that was computed of a batch is none: the file of the best accuracy is one for all.
    """
    paths = Paths(program)
    located = program.locate(path)
    pending = [(path, located[1], _MAX_DEPTH)] if located is not None else []
    seen: set[ast.expr] = set()
    while pending:
        value, scope, depth = pending.pop()
        for part in _pieces(value):
            if isinstance(part, ast.Name) and part.id in of_batches(facts(scope.module), part):
                return True
            if part not in seen and depth:
                seen.add(part)
                pending += [(given, at, depth - 1) for given, at in paths.assigned(part, scope)]
    return False


def _pieces(text: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """The variables of which a text holds entries or the whole."""
    if isinstance(text, (ast.Name, ast.Attribute)):
        yield text
    elif isinstance(text, ast.Call):
        if last_name(text.func) in OF_TEXTS:
            held = [text.func.value] if isinstance(text.func, ast.Attribute) else []
            for item in (*held, *text.args, *(part.value for part in text.keywords)):
                yield from _pieces(item)
    elif isinstance(text, ast.Subscript):
        yield from _pieces(text.value)
    elif isinstance(text, (ast.BinOp, ast.JoinedStr, ast.FormattedValue, ast.Tuple)):
        for child in children(text):
            if isinstance(child, ast.expr):
                yield from _pieces(child)
