"""Folders that every process refuses where they hold files, while another process already writes into them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.read_early import waiting_calls
from amp_rules.roles.file_effects import FileEffect, file_effects
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.file_access import NEED_FOLDERS


def refused_folders(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first listing of a folder that stops a process which comes to it later than another.

    ``if os.listdir(folder): raise ValueError`` above ``open(os.path.join(folder, "args.txt"), "w")``.
    """
    listings = [site for site in own.program.calls_to(NEED_FOLDERS) if _is_refusal(own, site)]
    if not listings:
        return
    effects, waits = file_effects(own.program), waiting_calls(own)
    for site in listings:
        for effect in effects:
            if effect.body is not site.body or effect.line <= site.line or not _is_within(effect, site):
                continue
            calls = (node for node in blocks.walk_body(site.body) if isinstance(node, ast.Call))
            if blocks.exclude_each_other(site.module, site.node, effect.call) or any(
                site.line < node.lineno < effect.line and waits(node) for node in calls
            ):
                continue
            text = (
                f"`{site.module.text(site.node)}` stops a process that comes here once another has written "
                f"`{site.module.text(effect.paths[0])}`: nothing between them waits for all"
            )
            yield site.module, site.node, text
            return


def _is_refusal(own: OwnDdp, site: Site) -> bool:
    """Whether every process lists a folder in a test, under which an error is raised where there is a file."""
    if site.module not in own.modules or own.reach(site.module, site.node) is not Reach.EVERY:
        return False
    parents = list(site.module.ancestors(site.node))
    refusal = next((item for item in parents if isinstance(item, ast.stmt)), None)
    is_negated = any(isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Not) for item in parents)
    return (
        isinstance(refusal, ast.If)
        and site.node in set(walk(refusal.test))
        and isinstance(refusal.body[-1], ast.Raise)
        and not is_negated
        and all(_is_more_than_none(item) for item in parents if isinstance(item, ast.Compare))
    )


def _is_more_than_none(test: ast.Compare) -> bool:
    """``len(os.listdir(folder)) > 0``."""
    return isinstance(test.ops[0], (ast.Gt, ast.NotEq)) and [*map(literal, test.comparators)] == [0]


def _is_within(effect: FileEffect, listing: Site) -> bool:
    """Whether a file is written into the folder, by the words for both: ``os.path.join(folder, name)``."""
    assert isinstance(listing.node, ast.Call)
    folder = ast.unparse(listing.node.args[0]) if listing.node.args else ""
    return any(
        isinstance(path, ast.Call)
        and last_name(path.func) == "join"
        and len(path.args) > 1
        and ast.unparse(path.args[0]) == folder
        for path in effect.paths
    )
