"""Scripts that only a launcher can start: without what it tells each process, they stop with an error."""

from __future__ import annotations

import ast

from amp_rules.plan.options import Options
from amp_rules.plan.own_ddp.launchers import Starts, meets_by_environment, takes_rank_of_launcher
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import is_environment, variable_read
from amp_rules.plan.report import Launched
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import GETS_RANK, GETS_WORLD_SIZE, LAUNCHER_VARIABLES, VARIABLES_OF_OTHERS

_TOLD = LAUNCHER_VARIABLES | {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}


def launched(program: Program, options: Options) -> Launched:
    """How many processes a launcher must start: ``""`` where none has to, as far as is known."""
    own = OwnDdp(program, options, frozenset())
    if Starts(program, own.joins).by_script or _sets_variables(own):
        return ""
    if any(own.is_always(site) for site in _required_variables(program)):
        return "1"
    if own.joins and all(meets_by_environment(site.node) for site in own.joins) and own.is_several_always:
        return "1"
    if not own.joins or not all(takes_rank_of_launcher(site.node) for site in own.joins):
        return ""
    # A test stands before the group, by the number of processes perhaps: it is certain to be there for several.
    asks = program.calls_to(GETS_RANK | GETS_WORLD_SIZE)
    return "N" if any(own.is_always(site) for site in asks) else ""


def _required_variables(program: Program) -> list[Site]:
    """The places that read a variable of torchrun, and stop the script where there is none."""
    return [
        Site(scope.module, scope, body, node)
        for node, body, scope in program.nodes()
        if isinstance(node, ast.Subscript) and variable_read(program, node, scope) in _TOLD
    ]


def _sets_variables(own: OwnDdp) -> bool:
    """Whether the script tells itself what a launcher would: ``os.environ["RANK"] = "0"``."""
    for node, _, scope in own.program.nodes():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            is_set = is_environment(own.program, node.value, scope) and literal(node.slice) in _TOLD
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_set = node.func.attr in ("setdefault", "update") and is_environment(own.program, node.func.value, scope)
        else:
            continue
        if is_set and not _is_of_other_launchers(own, scope.module, node):
            return True
    return False


def _is_of_other_launchers(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether a place is reached only under a launcher other than torchrun: ``if "SLURM_JOB_ID" in os.environ:``."""
    return any(
        holds and isinstance(part, ast.Constant) and str(part.value).startswith(VARIABLES_OF_OTHERS)
        for test, holds in own.branches(module, node)
        for part in walk(test)
    )
