"""Exchanges between processes that are gone from a current PyTorch: a run of one process has not shown them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import OF_SEVERAL_GPUS


def gone_calls(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first of them, and say how many there are."""
    sites = [
        site
        for site in own.program.calls_to(frozenset(OF_SEVERAL_GPUS))
        if site.module in own.modules and site.body not in own.uncalled and isinstance(site.node, ast.Call)
    ]
    for first in sites[:1]:
        assert isinstance(first.node, ast.Call)
        names = own.program.callee_names(first.node, first.scope) & OF_SEVERAL_GPUS.keys()
        new = OF_SEVERAL_GPUS[min(names)] if names else "the function without that ending"
        called = first.module.text(first.node.func)
        text = f"a current PyTorch has no `{called}`, and this call fails: `{new}` takes the tensor itself"
        others = more_places(own.program, [(item.module, item.node) for item in sites])
        yield first.module, first.node, f"{text}, not a list with one of each GPU{others}"
