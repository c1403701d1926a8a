"""Scalers of torch that a script makes itself."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import keyword, literal
from amp_rules.torch.mixed_precision import PLAIN_SCALERS


def plain_scalers(program: Program) -> list[Site]:
    """Where a program makes scalers that know of no shards, but for those that are always off."""
    return [site for site in program.calls_to(PLAIN_SCALERS) if not _is_off(site)]


def _is_off(site: Site) -> bool:
    return isinstance(site.node, ast.Call) and literal(keyword(site.node, "enabled")) is False
