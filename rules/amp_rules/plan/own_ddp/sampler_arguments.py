"""Samplers that are given something else than a number of processes where that number belongs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Form, Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS

_NUMBER_OF_PROCESSES = 1
"""The place of ``num_replicas`` among the arguments of torch's sampler."""


def sampler_arguments(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield each ``DistributedSampler(dataset, transforms)``: what else it may be given has a name."""
    for site in own.program.calls_to(DISTRIBUTED_SAMPLERS):
        assert isinstance(site.node, ast.Call)
        given = argument_at(site.node, "num_replicas", _NUMBER_OF_PROCESSES)
        if site.module not in own.modules or site.body in own.uncalled or given is None:
            continue
        if _is_no_number(own, given, site):
            name = site.module.text(given)
            text = (
                f"the sampler takes `{name}` for the number of processes (`num_replicas`), and it is none: this "
                "raises an error or shares the data wrongly"
            )
            yield site.module, site.node, text


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
