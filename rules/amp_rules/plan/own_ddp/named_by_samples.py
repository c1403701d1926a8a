"""Paths that are named after samples, by what callers give: each process writes the files of its own share."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.checks.common.file_writes import is_of_data
from amp_rules.plan.own_ddp.named_by_rank import pieces
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.modules import Module

_MAX_DEPTH = 6
"""Variables and parameters between a path and a batch: ``path``, ``names``, ``batch``."""


def is_named_by_samples(program: Program, facts: Callable[[Module], ModuleFacts], path: ast.expr) -> bool:
    """Whether a piece of a path is an entry of what a loop over data gives: ``names[n]`` of ``batch["names"]``.

    A number that was computed of a batch is none: the file of the best accuracy is one for all.
    """
    return any(
        isinstance(part, ast.Name) and is_of_data(facts(scope.module), part)
        for part, _, scope in pieces(program, Paths(program), path, _MAX_DEPTH, held=True)
    )
