"""Ranks that MPI tells, over those of a launcher: ``os.environ["RANK"] = str(MPI.COMM_WORLD.rank)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import is_environment, variable_read
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import RANK_OF_JOIN, WORLD_SIZE_OF_JOIN
from amp_rules.torch.idioms import NAMED_LAUNCHER

_MPI = "mpi4py."
_ENVIRONMENT = "os.environ"
_MAX_DEPTH = 5
"""Names, helpers and callers between MPI and a rank; scripts have one to three."""


def ranks_of_mpi(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where a script tells torch the rank and the number of processes that MPI knows, whatever starts it."""
    if not any("mpi4py" in module.source.text for module in own.program.flow.modules):
        return
    starts = Starts(own.program, own.joins)
    for rank, size in (*_written(own), *_given(own)):
        if rank.module not in own.modules or starts.by_script or not starts.is_direct(rank):
            continue
        if _is_told_apart(own, rank) or any(
            set(_sources(own, site.node, site.scope, 0)) != {_MPI} for site in (rank, size)
        ):
            continue
        text = f"`{rank.module.text(rank.node)}` is the rank that MPI tells, in the place of a launcher's: each process"
        text += " that torchrun starts is told that it is the only one; `mpiexec` starts those of this script"
        yield rank.module, rank.node, text
        return


def _written(own: OwnDdp) -> Iterator[tuple[Site, Site]]:
    """Yield what one body puts into ``RANK`` and ``WORLD_SIZE`` of the environment."""
    found: dict[ast.AST, dict[object, Site]] = {}
    for node, body, scope in own.program.nodes():
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Subscript) and is_environment(own.program, target.value, scope):
            assert isinstance(node, ast.Assign)
            found.setdefault(body, {})[literal(target.slice)] = Site(scope.module, scope, body, node.value)
    for written in found.values():
        if "RANK" in written and "WORLD_SIZE" in written:
            yield written["RANK"], written["WORLD_SIZE"]


def _given(own: OwnDdp) -> Iterator[tuple[Site, Site]]:
    """Yield what joins are given: ``init_process_group("nccl", rank=comm.rank, world_size=comm.size)``."""
    for site in own.joins:
        assert isinstance(site.node, ast.Call)
        rank = argument_at(site.node, "rank", RANK_OF_JOIN)
        size = argument_at(site.node, "world_size", WORLD_SIZE_OF_JOIN)
        if rank is not None and size is not None:
            yield (
                Site(site.module, site.scope, site.body, rank),
                Site(site.module, site.scope, site.body, size),
            )


def _is_told_apart(own: OwnDdp, site: Site) -> bool:
    """Whether a test around asks how the processes were started, or something stands in the place of MPI."""
    if any(isinstance(item, (ast.Try, ast.ExceptHandler)) for item in site.module.ancestors(site.node)):
        return True
    return any(
        NAMED_LAUNCHER.search(ast.unparse(test))
        or "mpi" in ast.unparse(test).lower()
        or any(_reads_environment(own, node) for node in walk(test))
        for test, _ in own.branches(site.module, site.node)
    )


def _reads_environment(own: OwnDdp, node: ast.AST) -> bool:
    located = own.program.locate(node)
    if located is None:
        return False
    if isinstance(node, ast.Call) and variable_read(own.program, node, located[1]) is not None:
        return True
    return isinstance(node, ast.expr) and is_environment(own.program, node, located[1])


def _sources(own: OwnDdp, node: ast.AST, scope: Scope, depth: int) -> Iterator[str]:
    """Yield what goes into an expression of MPI and of the environment."""
    if depth > _MAX_DEPTH:
        return
    for part in walk(node):
        if _reads_environment(own, part):
            yield _ENVIRONMENT
        if isinstance(part, (ast.Name, ast.Attribute)):
            if (names_of(scope.module).dotted(part) or "").startswith(_MPI):
                yield _MPI
            for value in assigned(own.program, part, scope):
                yield from _sources(own, value, scope, depth + 1)
            if isinstance(part, ast.Name):
                yield from _sources_of_parameter(own, part.id, scope, depth)
        elif isinstance(part, ast.Call):
            for info in own.program.flow.callees(part):
                inner = own.program.flow.scopes.get(info.node)
                for item in blocks.walk_body(info.node) if inner is not None else ():
                    if isinstance(item, ast.Return) and inner is not None:
                        yield from _sources(own, item, inner, depth + 1)


def _sources_of_parameter(own: OwnDdp, name: str, scope: Scope, depth: int) -> Iterator[str]:
    info = own.program.function_of(scope.node)
    if info is None or name not in info.parameters:
        return
    for caller in own.program.flow.callers(info):
        given = info.argument(caller.call, name)
        if given is not None:
            yield from _sources(own, given, calling(caller).scope, depth + 1)
