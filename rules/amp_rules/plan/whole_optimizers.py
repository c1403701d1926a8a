"""Optimizers that a script keeps whole in its checkpoints, not their states, and takes out of them again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plan.checkpoint_keys import is_key, items_of, key_of, stepped_optimizers, written_values
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.torch.checkpoints import LOADS


@dataclass(frozen=True)
class WholeOptimizer:
    """An optimizer that comes out of a file.

    Attributes:
        site: where it is taken out: ``checkpoint["optimizer"]``.
        saved: what the file was given.
        loads: the calls that may read the file.
    """

    site: Site
    saved: Site
    loads: tuple[Site, ...]


def whole_optimizers(program: Program) -> Iterator[WholeOptimizer]:
    """Yield those that a variable is given, in the order of the program."""
    stepped, stepping = stepped_optimizers(program), {step.body for step in program.steps}
    kept = {
        key_of(key): Site(at.module, at.scope, at.body, item)
        for at, made in _dictionaries(program)
        for key, item in items_of(made)
        if any(value in stepped or _steps_its_own(value, stepping) for value in program.flow.values(item, at.scope))
    }
    for node, body, scope in program.nodes() if kept else ():
        if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and is_key(node.slice)):
            continue
        saved, site = kept.get(key_of(node.slice)), Site(scope.module, scope, body, node)
        if saved is not None and isinstance(scope.module.parents[node], ast.Assign):
            loads = tuple(_loads(program, node.value, site))
            if loads:
                yield WholeOptimizer(site, saved, loads)


def _dictionaries(program: Program) -> Iterator[tuple[Site, ast.Dict | ast.Call]]:
    """Yield the dictionaries that are saved, where they are made."""
    for value in written_values(program):
        made = value.site if value.kind == "sequence" else None
        if isinstance(made, (ast.Dict, ast.Call)) and (located := program.locate(made)) is not None:
            yield Site(located[1].module, located[1], located[0], made), made


def _steps_its_own(value: Value, stepping: set[ast.AST]) -> bool:
    """Whether the ``step`` of an object steps an optimizer that it has."""
    method = value.ref.find_method("step") if value.kind == "instance" else None
    return method is not None and method.node in stepping


def _loads(program: Program, node: ast.expr, site: Site) -> Iterator[Site]:
    """Yield the calls of ``torch.load`` that may have given what a variable holds: not those of another branch."""
    for value in program.flow.values(node, site.scope):
        located = program.locate(value.site) if value.ref in LOADS and isinstance(value.site, ast.Call) else None
        if located is None or value.site is None:
            continue
        load = Site(located[1].module, located[1], located[0], value.site)
        if load.module is site.module and blocks.exclude_each_other(site.module, load.statement, site.statement):
            continue
        yield load
