"""Processes that a script starts itself, and tells no place to meet at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.launchers import Starts, meets_by_environment
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module

_ADDRESS = "MASTER_ADDR"


def without_address(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the call that joins them: it asks for an address that nothing in the program speaks of."""
    if not all(meets_by_environment(site.node) for site in own.joins):
        return
    if any(_ADDRESS in module.source.text for module in own.program.flow.modules):
        return
    joins = [site for site in own.joins if site.module in own.modules]
    if joins and Starts(own.program, own.joins).by_script_alone:
        text = (
            "the script starts its processes itself, and nothing in it says where they meet: `MASTER_ADDR` and "
            "`MASTER_PORT` have to be in the environment, or this raises an error"
        )
        yield joins[0].module, joins[0].node, text
