"""Processes of which each sees one GPU alone, its own or that of all, by what the script puts into the environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.plan.distribution import visible_devices
from amp_rules.plan.own_ddp.group import OwnGroup, is_guard
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import is_environment
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_MAX_NAMES = 3
"""Variables between what is put there and the rank."""


def sees_its_own_gpu(own: OwnDdp) -> bool:
    """Whether a script tells CUDA, by the rank, which GPU there is: ``environ["CUDA_VISIBLE_DEVICES"] = str(rank)``."""
    for node, body, scope in own.program.nodes():
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and literal(target.slice) == _VARIABLE and body not in own.uncalled:
            assert isinstance(node, ast.Assign)
            if is_environment(own.program, target.value, scope) and _is_by_rank(own, node.value, scope, _MAX_NAMES):
                return True
    return False


def _is_by_rank(own: OwnDdp, node: ast.expr, scope: Scope, depth: int) -> bool:
    """Whether an expression is made of the rank, and of nothing that would be several GPUs."""
    if any(isinstance(part, (ast.List, ast.Tuple)) for part in walk(node)):
        return False
    if names_rank(node):
        return True
    names = [part for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    return depth > 0 and any(
        _is_by_rank(own, value, scope, depth - 1) for name in names for value in assigned(own.program, name, scope)
    )


def one_gpu_of_all(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the line that leaves all processes of a launcher one GPU, and the same."""
    starts = Starts(own.program, own.joins)
    if not starts.by_launcher or starts.by_script:
        return
    found = gpu_of_all(own)
    if found is not None and found[0].module in own.modules:
        site, gpu = found
        text = f"this leaves each process GPU {gpu} alone: a second one on the machine finds no GPU of its own"
        yield site.module, site.node, f"{text}; leave it to the shell that calls the launcher"


def gpu_of_all(group: OwnGroup) -> tuple[Site, str] | None:
    """The line that leaves each process one GPU of a written number before it joins the others, and that number."""
    for module, statement in visible_devices(group.program):
        assert isinstance(statement, ast.Assign)
        located = group.program.locate(statement)
        gpu = _written_gpu(group.program, statement.value, located[1]) if located is not None else None
        if gpu is None or located is None or located[0] in group.uncalled or _is_in_doubt(module, statement):
            continue
        if group.joins and all(_is_behind(group, statement, join) for join in group.joins):
            return Site(module, located[1], located[0], statement), gpu
    return None


def _written_gpu(program: Program, node: ast.expr, scope: Scope) -> str | None:
    """The number of the GPU, where the script itself says it: ``"0"``, a variable, an entry of its settings."""
    if isinstance(node, ast.Constant):
        known = {node.value}
    else:
        values = program.flow.values(node, scope)
        known = {value.ref for value in values if value.kind == "constant"}
        if len(known) != len(values):
            return None
    gpu = known.pop() if len(known) == 1 else None
    return gpu if isinstance(gpu, str) and gpu.isdigit() else None


def _is_in_doubt(module: Module, statement: ast.stmt) -> bool:
    """Whether a line need not run where its function does."""
    return any(
        isinstance(item, (*blocks.LOOPS, ast.Try)) or (isinstance(item, ast.If) and not is_guard(item.test))
        for item in blocks.enclosing(module, statement)
    )


def _is_behind(group: OwnGroup, statement: ast.stmt, join: Site) -> bool:
    runs = group.program.closure(lambda node: node is statement)

    def runs_it(item: ast.AST) -> bool:
        return not isinstance(item, (*blocks.LOOPS, ast.If, ast.Try)) and runs(item)

    return group.is_behind(runs_it, join.module, join.node)
