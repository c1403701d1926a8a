"""Ranks on the machine that are given where the rank among all processes belongs, and the other way round."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.definitions import Definitions
from amp_rules.plan.own_ddp.fixed_sizes import hides_gpus
from amp_rules.plan.own_ddp.launchers import Starts, meets_by_environment
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.distributed import GETS_WORLD_SIZE, RANK_OF_JOIN

_Found = tuple[Module, ast.AST, str]

_SETS_DEVICE = frozenset({"torch.cuda.set_device"})
_NAMES_DEVICE = frozenset({"torch.device"})
_READS_ONTO_DEVICE = frozenset({"torch.load"})
_RANK_OF_SAMPLER = 2
_DALI = "nvidia.dali."
_OF_MACHINE = ("device_count", "gpu", "local")
"""What the number of processes on one machine is called."""


def local_ranks(own: OwnDdp) -> Iterator[_Found]:
    """Yield joins and samplers of processes that a launcher starts, on several machines too, with such a rank."""
    starts = Starts(own.program, own.joins)
    if not starts.by_launcher or starts.by_script:
        return
    ranks = RankValues(own.program, joins_tell=False)
    for site in own.joins:
        assert isinstance(site.node, ast.Call)
        given = argument_at(site.node, "rank", RANK_OF_JOIN)
        if given is not None and site.module in own.modules and _is_local(ranks, given, site):
            text = "is the rank on the machine: on several machines two processes join under one rank"
            yield site.module, site.node, f"`{site.module.text(given)}` {text}; it is the launcher's without `rank`"
    for site in own.program.calls_to(DISTRIBUTED_SAMPLERS):
        assert isinstance(site.node, ast.Call)
        given = argument_at(site.node, "rank", _RANK_OF_SAMPLER)
        size = argument_at(site.node, "num_replicas", _RANK_OF_SAMPLER - 1)
        if site.module not in own.modules or given is None or (size is not None and _is_of_machine(own, size, site)):
            continue
        if _is_local(ranks, given, site):
            text = "is the rank on the machine: on several machines two processes get one share of the data"
            yield site.module, site.node, f"`{site.module.text(given)}` {text}; without `rank` it is that among all"
    for site in _dali_readers(own):
        assert isinstance(site.node, ast.Call)
        given, size = keyword(site.node, "shard_id"), keyword(site.node, "num_shards")
        if given is None or size is None or site.module not in own.modules or _is_of_machine(own, size, site):
            continue
        if _is_local(ranks, given, site):
            text = "is the rank on the machine: on several machines two readers get one shard, and nobody reads others"
            yield site.module, site.node, f"`{site.module.text(given)}` {text}; give `shard_id` the rank among all"
            return


def _dali_readers(own: OwnDdp) -> Iterator[Site]:
    """Yield the calls of DALI that are told a shard."""
    for call, body, scope in own.program.calls():
        if keyword(call, "shard_id") is not None:
            if any(name.startswith(_DALI) for name in own.program.callee_names(call, scope)):
                yield Site(scope.module, scope, body, call)


def gpus_by_rank(own: OwnDdp) -> Iterator[_Found]:
    """Yield the first GPU of a process that a launcher starts, on several machines too, by its rank among all."""
    starts = Starts(own.program, own.joins)
    if not starts.by_launcher or starts.by_script or not any(meets_by_environment(site.node) for site in own.joins):
        return
    if hides_gpus(own):
        return
    ranks = RankValues(own.program, joins_tell=False)
    for site in (
        *own.program.calls_to(_SETS_DEVICE),
        *own.wraps,
        *own.program.calls_to(_NAMES_DEVICE),
        *own.program.calls_to(_READS_ONTO_DEVICE),
    ):
        assert isinstance(site.node, ast.Call)
        given = _gpu_given(site.node)
        if given is None or site.module not in own.modules or site.body in own.uncalled:
            continue
        rank = ranks.of(_written_above(site, given), site.scope)
        if rank is not None and rank.is_global:
            name = site.module.text(given)
            text = f"`{name}` is the rank among all processes: on several machines there is no GPU of such a number"
            yield site.module, site.node, f"{text}; `LOCAL_RANK` of the environment is that of the GPU"
            return


def _written_above(site: Site, given: ast.expr) -> ast.expr:
    """What a variable was given last in the statements right above a place, whatever it holds elsewhere."""
    path, where = blocks.path_of(given), blocks.place(site.module, site.statement)
    last = blocks.given_last(where.suite[: where.index], path) if path is not None else None
    return last if last is not None else given


def _gpu_given(call: ast.Call) -> ast.expr | None:
    """The GPU that a call is told, first or as ``device_ids=[gpu]`` of a wrapper; None where it is told none.

    ``torch.device("cuda", gpu)`` and ``torch.device(f"cuda:{gpu}")`` are told it, too, and so is
    ``torch.load(path, map_location={"cuda:0": f"cuda:{gpu}"})``.
    """
    if last_name(call.func) == "device":
        return gpu_named(call)
    if last_name(call.func) == "load":
        place = argument_at(call, "map_location", 1)
        place = place.values[-1] if isinstance(place, ast.Dict) and place.values else place
        return gpu_in_name(place)
    devices = keyword(call, "device_ids")
    if devices is not None:
        return devices.elts[0] if isinstance(devices, (ast.List, ast.Tuple)) and len(devices.elts) == 1 else None
    return call.args[0] if call.args and last_name(call.func) == "set_device" else None


def gpu_named(call: ast.Call) -> ast.expr | None:
    """The number that a call of ``torch.device`` is told: ``torch.device("cuda", gpu)``."""
    name = call.args[0] if call.args else None
    if isinstance(name, ast.Constant) and name.value == "cuda":
        return argument_at(call, "index", 1)
    return gpu_in_name(name)


def gpu_in_name(name: ast.expr | None) -> ast.expr | None:
    """The number that the name of a GPU ends with: ``f"cuda:{gpu}"``, ``"cuda:%d" % gpu``, ``"cuda:" + str(gpu)``."""
    if isinstance(name, ast.JoinedStr) and len(name.values) == len(("cuda:", "gpu")):
        begin, number = name.values
        if literal(begin) == "cuda:" and isinstance(number, ast.FormattedValue):
            return number.value
    if isinstance(name, ast.BinOp) and literal(name.left) in ("cuda:%d", "cuda:%s") and isinstance(name.op, ast.Mod):
        return name.right
    if isinstance(name, ast.BinOp) and literal(name.left) == "cuda:" and isinstance(name.right, ast.Call):
        return name.right.args[0] if last_name(name.right.func) == "str" and name.right.args else None
    if isinstance(name, ast.Call) and isinstance(name.func, ast.Attribute) and name.func.attr == "format":
        return name.args[0] if literal(name.func.value) in ("cuda:{}", "cuda:{:d}") and len(name.args) == 1 else None
    return None


def _is_local(ranks: RankValues, given: ast.expr, site: Site) -> bool:
    rank = ranks.of(given, site.scope)
    return rank is not None and rank.is_local


def _is_of_machine(own: OwnDdp, size: ast.expr, site: Site) -> bool:
    """Whether the data are shared out on each machine anew: ``num_replicas=torch.cuda.device_count()``."""
    names = [last_name(node).lower() for node in walk(size) if isinstance(node, (ast.Name, ast.Attribute))]
    names += [str(value.ref) for value in own.program.flow.values(size, site.scope)]
    return any(word in name for name in names for word in _OF_MACHINE) and not _is_world(own, size, site)


def _is_world(own: OwnDdp, size: ast.expr, site: Site) -> bool:
    """Whether torch tells a size, whatever its name is: ``settings.gpus = dist.get_world_size()``.

    What the script gives it where there is one process alone says nothing.
    """
    if not isinstance(size, (ast.Name, ast.Attribute)):
        return False
    given = Definitions(own.program).of(size, site.scope)
    given = [item for item in given if own.several_alone(item.scope.module, item.value) is not False]
    return bool(given) and all(
        isinstance(item.value, ast.Call) and bool(own.program.callee_names(item.value, item.scope) & GETS_WORLD_SIZE)
        for item in given
    )
