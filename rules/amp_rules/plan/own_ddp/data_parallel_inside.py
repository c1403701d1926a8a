"""``DataParallel``, which runs a model on all GPUs of the machine, within or around ``DistributedDataParallel``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none, last_name, walk
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


def data_parallel_around(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first that is given a wrapper, where nothing is asked before but how many GPUs there are."""
    for site in own.program.calls_to(DATA_PARALLEL):
        given = argument_at(site.node, "module", 0) if isinstance(site.node, ast.Call) else None
        if given is None or not _is_on_all(own, site) or own.several_alone(site.module, site.node) is False:
            continue
        # A variable may hold the number of GPUs of a run in one process alone: ``args.n_gpu``.
        if all(_counts_gpus(test) for test, _ in own.branches(site.module, site.node)) and wrapped_by(
            own, given, Site(site.module, site.scope, site.body, given), own.wraps
        ):
            text = (
                f"`{site.module.text(site.node)}` may be given what `DistributedDataParallel` wraps: where a process "
                "sees several GPUs, it runs on all of them, and raises an error in each process whose model is not on "
                "the first; leave it to runs of one process"
            )
            yield site.module, site.node, text
            return


def _counts_gpus(test: ast.expr) -> bool:
    """``torch.cuda.device_count() > 1``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Call)
        and last_name(test.left.func) == "device_count"
        and isinstance(test.ops[0], (ast.Gt, ast.GtE, ast.NotEq))
    )


def _is_on_all(own: OwnDdp, site: Site) -> bool:
    """Whether a call of a file that may be changed says nothing of the devices."""
    devices = argument_at(site.node, "device_ids", _DEVICES) if isinstance(site.node, ast.Call) else None
    return site.module in own.modules and (devices is None or is_none(devices))


def _is_kept_part(own: OwnDdp, site: Site) -> bool:
    """Whether a part of an object is put into one without a word on the devices: ``self.net = DataParallel(net)``."""
    statement = site.statement
    return (
        _is_on_all(own, site)
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
