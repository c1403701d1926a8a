"""Parts of a wrapped model that are in ``DataParallel``, which runs each of them on all GPUs of the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.wrappers import DATA_PARALLEL

_DEVICES = 1
"""The place of ``device_ids`` among its arguments."""


def data_parallel_inside(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first of each file, in a class of a model that is wrapped."""
    sites = [site for site in own.program.calls_to(DATA_PARALLEL) if _is_kept_part(own, site)]
    inside = _bodies_of_wrapped(own) if sites else set()
    told: set[Module] = set()
    for site in sites:
        if site.body in inside and site.module not in told:
            told.add(site.module)
            text = (
                f"`{site.module.text(site.node)}` is a part of what `DistributedDataParallel` wraps: where a process "
                "sees several GPUs, it runs on all of them, and raises an error in each process whose model is not on "
                "the first; the wrapper around the model is enough"
            )
            yield site.module, site.node, text


def _is_kept_part(own: OwnDdp, site: Site) -> bool:
    """Whether a part of an object is put into one without a word on the devices: ``self.net = DataParallel(net)``."""
    given = argument_at(site.node, "device_ids", _DEVICES) if isinstance(site.node, ast.Call) else None
    statement = site.statement
    return (
        site.module in own.modules
        and (given is None or is_none(given))
        and isinstance(statement, ast.Assign)
        and any((blocks.path_of(target) or "").startswith("self.") for target in statement.targets)
        and not list(own.branches(site.module, site.node))
    )


def _bodies_of_wrapped(own: OwnDdp) -> set[ast.AST]:
    """The functions that make the models which are wrapped, and their parts."""
    texts: list[ast.AST] = []
    for wrap in own.wraps:
        assert isinstance(wrap.node, ast.Call)
        model = argument_at(wrap.node, "module", 0)
        values = own.program.roles.modules(model, wrap.scope) if model is not None else frozenset()
        texts += [base.facts.node for value in values if value.kind == "instance" for base in value.ref.mro()]
    nodes = [node for text in texts for node in walk(text)]
    functions = {node for node in nodes if isinstance(node, ast.FunctionDef)}
    return functions | own.program.called_from(nodes)
