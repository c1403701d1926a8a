"""Numbers of the batches of one process that a round puts into a dictionary, and shows with it or out of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.rest_shown import root_of, shows
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.plan.ways_to_show import tells
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import values_given, walk


def shown_entries(own: OwnDdp, shares: Shares, within: dict[ast.AST, TrainingLoop]) -> Iterator[tuple[Site, str]]:
    """Yield each such call, and the variables of its numbers: ``record = {"loss": loss.item()}``, ``print(record)``."""
    exchanges = shares.metrics.exchanges
    for node, loop in within.items():
        if not (isinstance(node, ast.Call) and tells(node)):
            continue
        if not shows(own.program, node, loop.scope):
            continue
        for part in (part for value in values_given(node) for part in walk(value)):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                entries = _entries(loop, part)
                calls = (item for item in loop.inner if isinstance(item, ast.Call) and part.id in blocks.reads(item))
                if not entries or any(map(exchanges.puts_together, calls)):
                    continue
                for entry in entries:
                    if is_of_batch(entry, shares.ranks):
                        for name in sorted(_numbers_of(shares, entry)):
                            yield Site(loop.module, loop.scope, loop.body, node), name


def _entries(loop: TrainingLoop, held: ast.Name) -> list[ast.expr]:
    """What a round puts into the dictionary that a variable holds, under the key that is asked for if one is.

    None where it holds something else as well: what a function made of it.
    """
    found: list[ast.expr] = []
    around = loop.module.parents[held]
    asked = literal(around.slice) if isinstance(around, ast.Subscript) and around.value is held else None
    written = (node for node in loop.inner if isinstance(node, ast.Assign))
    for item, target in ((node, target) for node in written for target in node.targets):
        if isinstance(target, ast.Name) and target.id == held.id:
            if not isinstance(item.value, ast.Dict):
                return []
            pairs = zip(item.value.keys, item.value.values, strict=True)
            found += [value for key, value in pairs if key is not None and asked in (None, literal(key))]
        elif isinstance(target, ast.Subscript) and asked in (None, literal(target.slice)):
            if isinstance(target.value, ast.Name) and target.value.id == held.id:
                found.append(item.value)
    return found


def _numbers_of(shares: Shares, entry: ast.expr) -> set[str]:
    """The variables of an entry that are of the batch themselves."""
    return {
        root_of(ast.unparse(part))
        for part in walk(entry)
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load)
        if is_of_batch(part, shares.ranks)
    }
