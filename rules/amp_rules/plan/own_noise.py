"""Generators of the script's own that nothing but noise and augmentation is drawn from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.ranks.sources import has_seed
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.torch.data import DATASETS
from amp_rules.torch.replication import NOISE_METHODS, SEEDED_BY_CONSTRUCTOR


def seeds(program: Program, data: TrainingData) -> Iterator[Site]:
    """Yield the seeds of such generators: they must differ between ranks, or all ranks would draw the same noise.

    A generator that is made while one sample is loaded is left as it is: `RandomState(index)` says what the sample is,
    and it has to be the same sample on every rank.
    """
    for site in program.calls_to(SEEDED_BY_CONSTRUCTOR):
        assert isinstance(site.node, ast.Call)
        if (
            has_seed(site.node)
            and len(site.node.args) + len(site.node.keywords) == 1
            and site.body not in _loading(program)
            and _is_noise(program, data, site)
        ):
            given = [*site.node.args, *(item.value for item in site.node.keywords)]
            yield Site(site.module, site.scope, site.body, given[0])


def _is_noise(program: Program, data: TrainingData, made: Site) -> bool:
    """Whether every use of a generator is a draw while samples are loaded, or of noise while a batch is worked on."""
    loading = _loading(program)
    steps = {node for loop in data.loops for item in getattr(loop.node, "body", []) for node in blocks.walk_own(item)}
    uses = [(node, body) for node, body, scope in program.nodes() if _holds(program, node, scope, made.node)]
    draws = 0
    for node, body in uses:
        module = program.module_of(node)
        parent = module.parents.get(node) if module is not None else None
        if node is made.node or isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        if isinstance(parent, ast.Assign) and parent.value is node:
            continue  # another name for it
        if (
            not isinstance(parent, ast.Attribute)
            or module is None
            or not isinstance(module.parents.get(parent), ast.Call)
        ):
            return False
        is_noise = node in steps and parent.attr in NOISE_METHODS
        if not (body in loading or is_noise):
            return False
        draws += 1
    return draws > 0


def _holds(program: Program, node: ast.AST, scope: Scope, made: ast.AST) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    return any(value.site is made and value.kind == "object" for value in program.flow.values(node, scope))


def _loading(program: Program) -> set[ast.AST]:
    """The bodies that load one sample."""
    starts = []
    for body, _ in program.bodies:
        info = program.function_of(body)
        owner = program.flow.class_of(info) if info is not None and info.name == "__getitem__" else None
        if owner is not None and owner.external_bases() & DATASETS:
            starts.append(body)
    return {*starts} | program.called_from(node for body in starts for node in program.nodes_of(body))
