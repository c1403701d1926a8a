"""Groups of as many processes as the script says, and models that all processes put on one GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.definitions import Definitions
from amp_rules.plan.own_ddp.gpu_counts import counts_gpus
from amp_rules.plan.own_ddp.launchers import Starts, meets_by_environment
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.plan.own_ddp.written_ranks import number, written
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import RANK_OF_JOIN, WORLD_SIZE_OF_JOIN

_Found = tuple[Module, ast.AST, str]


def fixed_sizes(own: OwnDdp) -> Iterator[_Found]:
    """Yield a group whose size the script or its command line says, where a launcher starts the processes."""
    starts = Starts(own.program, own.joins)
    if not starts.by_launcher:
        return
    definitions = Definitions(own.program)
    for site in own.joins:
        assert isinstance(site.node, ast.Call)
        if site.module not in own.modules or not starts.is_direct(site):
            continue
        is_met = meets_by_environment(site.node)
        # Who gives an address may start the processes by hand, unless their ranks are a launcher's.
        if not is_met and (starts.by_script or not _has_rank_of_launcher(own, site)):
            continue
        given = argument_at(site.node, "world_size", WORLD_SIZE_OF_JOIN)
        rank, size = written(own, definitions, site)
        if given is None or rank is not None:
            continue  # a rank that is written out is told by itself
        name = f"`{site.module.text(given)}`"
        if size is not None and is_met:
            said = f"the group is of {size} processes"
        elif is_met and (default := _default_of(own, definitions, _meant(own, given, site))) is not None:
            said = f"the group is of {name} processes, {default} where the command line says nothing else"
        elif counts_gpus(own, given, site.scope):
            said = f"the group is of {name} processes, as many as the machine has GPUs"
        else:
            continue
        text = f"{said}, whatever number a launcher starts: with another one they fail, or wait for ever"
        yield site.module, site.node, f"{text}; without `world_size` it is the launcher's"


def _has_rank_of_launcher(own: OwnDdp, site: Site) -> bool:
    """Whether a process joins under the rank on its machine, which a launcher alone gives: ``LOCAL_RANK``."""
    assert isinstance(site.node, ast.Call)
    given = argument_at(site.node, "rank", RANK_OF_JOIN)
    rank = RankValues(own.program, joins_tell=False).of(given, site.scope) if given is not None else None
    return rank is not None and rank.is_local


def one_gpu(own: OwnDdp) -> Iterator[_Found]:
    """Yield a wrapper that is told the same GPU in every process."""
    for site in own.wraps:
        assert isinstance(site.node, ast.Call)
        given = keyword(site.node, "device_ids")
        if not isinstance(given, ast.List) or len(given.elts) != 1:
            continue
        number = literal(given.elts[0])
        if isinstance(number, int) and not isinstance(number, bool) and not hides_gpus(own):
            text = f"every process puts its model on GPU {number}: NCCL takes no two processes of one GPU"
            yield site.module, given, f"{text}; `device_ids` takes the local rank"


def _meant(own: OwnDdp, given: ast.expr, site: Site) -> ast.expr:
    """``args.gpus`` of ``world_size = args.gpus``."""
    values = assigned(own.program, given, site.scope) if isinstance(given, ast.Name) else []
    return values[0] if len(values) == 1 else given


def _default_of(own: OwnDdp, definitions: Definitions, given: ast.expr) -> int | None:
    """The default of an option that nothing but the command line sets: ``args.world_size``."""
    if not isinstance(given, ast.Attribute):
        return None
    defaults: set[object] = set()
    for node, _, scope in own.program.nodes():
        if isinstance(node, ast.Attribute) and node.attr == given.attr and not isinstance(node.ctx, ast.Load):
            return None
        if isinstance(node, ast.Call) and node.args:
            option = literal(node.args[0])
            if isinstance(option, str) and option.lstrip("-").replace("-", "_") == given.attr and "-" in option[:1]:
                value = keyword(node, "default")
                defaults.add(number(own, definitions, value, scope) if value is not None else None)
    default = defaults.pop() if len(defaults) == 1 else None
    return default if isinstance(default, int) and default > 0 else None


def hides_gpus(own: OwnDdp) -> bool:
    """Whether something chooses the GPUs that a process sees."""
    return any("CUDA_VISIBLE_DEVICES" in module.source.text for module in own.program.flow.modules)
