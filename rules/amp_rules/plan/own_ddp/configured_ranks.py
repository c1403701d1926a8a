"""Local ranks of a Hydra configuration, which no launcher sets: torchrun gives them in the environment alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import LOCAL_RANK_VARIABLES, RANK_OF_JOIN

_ENTRY = "hydra.main"
_NAME = "local_rank"


def configured_ranks(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield a call that joins under the local rank of a configuration, or only where that has one: nothing sets it."""
    if not any(map(_is_entry, own.program.flow.modules)) or any(map(_sets_rank, own.program.flow.modules)):
        return
    for site in own.joins:
        for test, _ in own.branches(site.module, site.node):
            asked = [node for node in walk(test) if isinstance(node, ast.Attribute) and node.attr == _NAME]
            if asked and site.module in own.modules:
                yield site.module, site.node, _text(site.module.text(asked[0]))
                return
        given = _given(own, site)
        if given is not None and site.module in own.modules:
            yield site.module, site.node, _text(ast.unparse(given))
            return


def _text(name: str) -> str:
    text = f"`{name}` is of the configuration, and torchrun gives it in the environment alone"
    text += ": every process has the same one, unless the configuration has "
    return text + f"`{_NAME}: ${{oc.decode:${{oc.env:LOCAL_RANK,-1}}}}`"


def _given(own: OwnDdp, site: Site) -> ast.expr | None:
    """The local rank of the configuration that a call joins under: ``rank=conf["distributed"]["local_rank"]``."""
    assert isinstance(site.node, ast.Call)
    rank = argument_at(site.node, "rank", RANK_OF_JOIN)
    values = [rank] if rank is not None else []
    if isinstance(rank, ast.Name):
        values = assigned(own.program, rank, site.scope)
    return values[0] if len(values) == 1 and _is_configured(values[0]) else None


def _is_configured(value: ast.expr) -> bool:
    if isinstance(value, ast.Attribute):
        return value.attr == _NAME
    return isinstance(value, ast.Subscript) and literal(value.slice) == _NAME


def _is_entry(module: Module) -> bool:
    return "hydra" in module.source.text and any(
        names_of(module).dotted(item.func if isinstance(item, ast.Call) else item) == _ENTRY
        for node in module.nodes
        if isinstance(node, ast.FunctionDef)
        for item in node.decorator_list
    )


def _sets_rank(module: Module) -> bool:
    """Whether a file gives the local rank a value: from the environment, or by an option of its own."""
    text = module.source.text
    if any(name in text for name in LOCAL_RANK_VARIABLES) or "--local" in text:
        return True
    return _NAME in text and any(
        isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store) and _is_configured(node)
        for node in module.nodes
    )
