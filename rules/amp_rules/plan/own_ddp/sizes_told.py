"""The sizes of batches, beside the numbers that are computed of them: ``losses.update(mean_of_all, len(x))``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.rest_shown import root_of
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import values_given, walk

_OF_SHAPE = frozenset({"shape", "size", "device", "dtype", "ndim", "numel", "dim", "type"})
"""What says nothing of the numbers themselves."""


def numbers_in(value: ast.AST) -> set[str]:
    """The variables of an expression of which more than the shape is read."""
    return {
        root_of(ast.unparse(node))
        for node in walk(value)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        if not _is_of_shape(value, node)
    }


def _is_of_shape(value: ast.AST, node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Attribute) and part.attr in _OF_SHAPE and any(inner is node for inner in walk(part))
        for part in walk(value)
    )


def numbers_of(value: ast.AST) -> Iterator[ast.expr]:
    """Yield the variables of an expression of which more than the shape is read, as they stand in it."""
    known = numbers_in(value)
    return (node for node in variables_in(value) if root_of(ast.unparse(node)) in known)


def variables_in(value: ast.AST) -> Iterator[ast.expr]:
    """Yield the variables of an expression."""
    return (node for node in walk(value) if isinstance(node, (ast.Name, ast.Attribute)))


def is_filled_alike(program: Program, ranks: Ranks, site: Site, name: str) -> bool:
    """Whether an object of a function is told nothing of batches but their sizes."""
    told = _told(program, ranks, site, name)
    return told is not None and not any(_is_more_than_size(program, ranks, site, item, frozenset()) for item in told)


def is_told_sizes(program: Program, ranks: Ranks, site: Site, name: str) -> bool:
    """Whether an object of a function is told the sizes of batches, and nothing else of them."""
    return bool(_told(program, ranks, site, name)) and is_filled_alike(program, ranks, site, name)


def _told(program: Program, ranks: Ranks, site: Site, name: str) -> list[ast.expr] | None:
    """What is made of batches of what a function gives the methods of an object; None where it is no object."""
    node = ast.parse(name, mode="eval").body
    if not any(value.kind == "instance" for value in program.flow.values(node, site.scope)):
        return None
    return [
        item
        for part in program.nodes_of(site.body)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
        if blocks.path_of(part.func.value) == name
        for item in values_given(part)
        if is_of_batch(item, ranks)
    ]


def _is_more_than_size(program: Program, ranks: Ranks, site: Site, value: ast.expr, seen: frozenset[str]) -> bool:
    """Whether a value has more of a batch than its size, also by variables: ``pixels = x.size(2) * x.size(3)``."""
    for part in numbers_of(value):
        if not is_of_batch(part, ranks):
            continue
        if not isinstance(part, ast.Name) or part.id in seen:
            return True
        writing = [node for node in program.nodes_of(site.body) if part.id in blocks.writes_itself(node)]
        if not writing:
            return True
        for node in writing:
            made = node.value if isinstance(node, ast.Assign) else None
            if made is None or _is_more_than_size(program, ranks, site, made, seen | {part.id}):
                return True
    return False
