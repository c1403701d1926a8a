"""Tests of the option ``--local_rank`` in processes of SLURM or MPI, which tell a rank by the environment alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.options_in_spawned import compared_with_default
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import variable_read
from amp_rules.roles.sites import Site
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import OPTION_OF_LAUNCHERS, RANK_VARIABLES, VARIABLES_OF_OTHERS


def options_of_no_launcher(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first test that lets all of them on: ``if args.local_rank == 0:``, where 0 is the default."""
    sites = [site for site in compared_with_default(own) if site.module in own.modules] if own.joins else []
    launcher = _other_launcher(own) if sites else None
    if launcher is None:
        return
    for site in sites:
        if site.body in own.uncalled or own.reach(site.module, site.node) is not Reach.EVERY:
            continue
        around = [test for test, _ in own.branches(site.module, site.node)]
        if any(map(_names_others, around)) or _is_asked_beside(site):
            continue
        assert isinstance(site.node, ast.Compare)
        text = (
            f"`{site.module.text(site.node)}` holds in every process that `{launcher}` starts, as it gives none "
            f"`{OPTION_OF_LAUNCHERS[0]}`: it is {ast.unparse(site.node.comparators[0])} in each; ask for the rank "
            "instead, as by `torch.distributed.get_rank()`"
        )
        yield site.module, site.node, text
        return


def _is_asked_beside(site: Site) -> bool:
    """Whether the test that it is a part of asks for the rank or the launcher beside it: ``and rank == 0``."""
    parts = [
        part
        for outer in site.module.ancestors(site.node)
        if isinstance(outer, ast.BoolOp)
        for part in outer.values
        if site.node not in set(walk(part))
    ]
    return any(names_rank(part) or _names_others(part) for part in parts)


def _other_launcher(own: OwnDdp) -> str | None:
    """What starts the processes of a script that reads the rank of SLURM or MPI, besides or without torchrun."""
    for node, body, scope in own.program.nodes():
        name = variable_read(own.program, node, scope) if isinstance(node, (ast.Subscript, ast.Call)) else None
        if name in RANK_VARIABLES and name.startswith(VARIABLES_OF_OTHERS) and body not in own.uncalled:
            return "srun" if name.startswith("SLURM_") else "mpirun"
    return None


def _names_others(test: ast.expr) -> bool:
    """Whether a test asks which launcher it was: ``"SLURM_PROCID" in os.environ``."""
    return any(str(literal(part)).startswith(VARIABLES_OF_OTHERS) for part in walk(test))
