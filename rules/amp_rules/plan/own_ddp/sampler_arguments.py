"""Samplers that are given what does not belong there: another number than that of processes, or a seed of the rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.values import Form, Value
from amp_rules.plan.own_ddp.gpu_counts import counts_gpus
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS

_NUMBER_OF_PROCESSES = 1
_SHUFFLE, _SEED = 3, 4
"""Their places among the arguments of torch's sampler."""


def sampler_arguments(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield each ``DistributedSampler(dataset, transforms)``, and each that shuffles by a seed of its process."""
    starts = Starts(own.program, own.joins)
    for site in own.program.calls_to(DISTRIBUTED_SAMPLERS):
        assert isinstance(site.node, ast.Call)
        if site.module not in own.modules or site.body in own.uncalled:
            continue
        seed = argument_at(site.node, "seed", _SEED)
        shuffle = argument_at(site.node, "shuffle", _SHUFFLE)
        if seed is not None and _holds_rank(own, seed, site) and (shuffle is None or literal(shuffle) is not False):
            text = (
                f"the seed of this sampler, `{site.module.text(seed)}`, holds the rank: each process shuffles in an "
                "order of its own, and some samples are in several shares and others in none; give all of them one seed"
            )
            yield site.module, site.node, text
        given = argument_at(site.node, "num_replicas", _NUMBER_OF_PROCESSES)
        name = site.module.text(given) if given is not None else ""
        if given is not None and _is_no_number(own, given, site):
            text = (
                f"the sampler takes `{name}` for the number of processes (`num_replicas`), and it is none: this "
                "raises an error or shares the data wrongly"
            )
            yield site.module, site.node, text
        elif given is not None and starts.counted_by_launcher and counts_gpus(own, given, site.scope):
            text = (
                f"the sampler makes `{name}` shares, as many as the machine has GPUs, whatever number of processes a "
                "launcher starts: with fewer of them nobody reads the other shares; without `num_replicas` it is theirs"
            )
            yield site.module, site.node, text


def _holds_rank(own: OwnDdp, seed: ast.expr, site: Site) -> bool:
    """``seed + rank``, written there or given to the variable."""
    values: list[ast.expr] = [seed]
    if isinstance(seed, (ast.Name, ast.Attribute)):
        values = assigned(own.program, seed, site.scope)
    sums = [value for value in values if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Mult))]
    return any(names_rank(side) for value in sums for side in (value.left, value.right))


def _is_no_number(own: OwnDdp, given: ast.expr, site: Site) -> bool:
    """Whether a value is none for certain: a list, a text, ``shuffle`` that is ``True``."""
    if isinstance(given, (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.JoinedStr)):
        return True
    if isinstance(given, ast.Constant):
        return isinstance(literal(given), (bool, str))
    values = own.program.flow.values(given, site.scope)
    return isinstance(given, ast.Name) and bool(values) and all(map(_is_list_or_function, values))


def _is_list_or_function(value: Value) -> bool:
    """Whether a value is written out as a list or the like, or is a function or class; settings may hold numbers."""
    return value.kind in ("class", "function") or (value.kind == "sequence" and value.ref is Form.PLAIN)
