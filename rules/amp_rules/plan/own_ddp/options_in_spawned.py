"""Tests of the option ``--local_rank`` in processes that the script spawns: no launcher gives it to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import numbers_of_default
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.sites import Site
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.distributed import OPTION_OF_LAUNCHERS, SPAWNS

_NAME = "local_rank"


def options_in_spawned(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such test of each file; what it guards every process does."""
    told: set[Module] = set()
    for site in alike_in_spawned(own):
        if site.module in own.modules and site.module not in told:
            told.add(site.module)
            assert isinstance(site.node, ast.Compare)
            text = f"`{site.module.text(site.node)}` holds in every process that the script spawns: none is given "
            text += f"`{OPTION_OF_LAUNCHERS[0]}`, so that it is {ast.unparse(site.node.comparators[0])} in each; ask "
            yield site.module, site.node, text + "for the rank instead, as by `torch.distributed.get_rank()`"


def alike_in_spawned(own: OwnDdp) -> list[Site]:
    """The comparisons with the default of that option which processes come to that the script spawns."""
    if not own.program.calls_to(SPAWNS):
        return []
    spawned = Spawned(own)
    return [site for site in compared_with_default(own) if spawned.run(site)] if spawned else []


def compared_with_default(own: OwnDdp) -> list[Site]:
    """The comparisons with the default of that option; none where something else sets what it says."""
    default = _default(own)
    if default is None or _is_set(own):
        return []
    return [
        Site(scope.module, scope, body, test)
        for node, body, scope in own.program.nodes()
        if isinstance(node, (ast.If, ast.IfExp))
        for test in walk(node.test)
        if isinstance(test, ast.Compare) and isinstance(test.left, ast.Attribute) and test.left.attr == _NAME
        if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq) and literal(test.comparators[0]) == default
    ]


def _default(own: OwnDdp) -> int | None:
    """What the option says where the command line does not give it."""
    found: set[object] = set()
    for module in own.program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Call) and last_name(node.func) == "add_argument":
                if any(literal(item) in OPTION_OF_LAUNCHERS for item in node.args):
                    found |= numbers_of_default(keyword(node, "default"))
    numbers = [item for item in found if isinstance(item, int) and not isinstance(item, bool)]
    return numbers[0] if len(found) == len(numbers) == 1 else None


def _is_set(own: OwnDdp) -> bool:
    """Whether anything sets such an attribute: ``args.local_rank = gpu``, ``setattr(args, "local_rank", gpu)``."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == _NAME and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Constant) and node.value == _NAME and not _is_read(scope.module, node))
        or (isinstance(node, ast.keyword) and node.arg == _NAME)
        for node, _, scope in own.program.nodes()
    )


def _is_read(module: Module, key: ast.Constant) -> bool:
    """``getattr(args, "local_rank")``, ``args["local_rank"]``."""
    around = module.parents[key]
    if isinstance(around, ast.Subscript):
        return isinstance(around.ctx, ast.Load)
    return isinstance(around, ast.Call) and last_name(around.func) in ("getattr", "hasattr", "get")
