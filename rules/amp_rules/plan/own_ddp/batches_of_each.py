"""What the steps of several processes train on where no sampler that is known gives each its share.

A function of a module that is missing makes the loader, a data set is cut by the rank, or each process draws an order
of its own: what a process trains on, and every number made of it, is its own all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.whole_on_each import handed_on
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.reached_variables import reached_from_paths, reads_any
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name, values_given
from amp_rules.torch.data import LOADER_PREFIXES


def batches_of_each(own: OwnDdp) -> frozenset[ast.AST]:
    """The calls that make such loaders, and the expressions that training loops take batches from."""
    if not own.wraps:
        return frozenset()
    return frozenset((*_without_known_sampler(own), *_not_followed(own)))


# ---- loaders without a sampler of shares --------------------------------------------------------------------------


def _without_known_sampler(own: OwnDdp) -> Iterator[ast.AST]:
    """Yield the loaders that train, and give each process batches of its own by what is not known, or by an order."""
    seeds = (call for call, _, _ in own.program.calls() if "seed" in last_name(call.func).lower())
    are_seeded_alike = any(not any(map(names_rank, values_given(call))) for call in seeds)
    evaluated = {value for use in own.data.evaluated for value in use.values}
    for use in own.data.uses:
        for value in use.values - evaluated if use.slices is None else ():
            if not isinstance(value.site, ast.Call) or any(item.arg is None for item in value.site.keywords):
                continue
            is_of_library = value.kind == "object" and not value.name.startswith(LOADER_PREFIXES)
            if (
                is_of_library
                or _has_unknown_sampler(own, value.site)
                or (not are_seeded_alike and is_shuffled_by_process(value.site))
            ):
                yield value.site


def _has_unknown_sampler(own: OwnDdp, loader: ast.Call) -> bool:
    """Whether something that no file of the project makes, and torch neither, says which samples a loader gives."""
    located = own.program.locate(loader)
    if located is None:
        return False
    for name in ("sampler", "batch_sampler"):
        node = given_to_loader(loader, name)
        values = own.program.flow.values(node, located[1]) if node is not None else set()
        if values and all(value.kind == "object" and not value.name.startswith("torch.") for value in values):
            return True
    return False


def is_shuffled_by_process(loader: ast.Call) -> bool:
    """Whether a loader shuffles by the generator of its process."""
    others = ("sampler", "batch_sampler", "generator")
    return literal(given_to_loader(loader, "shuffle")) is True and not any(given_to_loader(loader, x) for x in others)


# ---- what nothing is known of -------------------------------------------------------------------------------------


def _not_followed(own: OwnDdp) -> Iterator[ast.AST]:
    """Yield what the loops around backward passes take batches from, of which nothing is known."""
    for backward in own.data.unfed:
        if backward.node not in own.data.random and backward.module in own.modules:
            yield from _around(own, backward)


def _around(own: OwnDdp, backward: Backward) -> Iterator[ast.expr]:
    """Yield what the innermost loop around a backward pass that gives it its batches takes these from."""
    for loop in own.batches.loops_of(backward):
        found = [
            node
            for node, written in _taken(own, loop)
            if _is_unknown(own, node, loop) and _feeds(own, loop, written, backward)
        ]
        if found:
            yield from found
            return


def _taken(own: OwnDdp, loop: Site) -> Iterator[tuple[ast.expr, set[str]]]:
    """Yield what a loop goes through, or takes the next element of, with the variables that it gives that to."""
    if isinstance(loop.node, (ast.For, ast.AsyncFor)):
        yield handed_on(own, loop.node.iter, loop), blocks.writes_target(loop.node)
    for item in loop.node.body:  # type: ignore[attr-defined]
        for node in blocks.walk_own(item):
            if isinstance(node, ast.Call) and node.args and own.program.callee_names(node, loop.scope) & _NEXT:
                yield node.args[0], blocks.writes(blocks.statement_of(loop.module, node))


_NEXT = frozenset({"builtins.next"})


def _is_unknown(own: OwnDdp, node: ast.expr, loop: Site) -> bool:
    """Whether nothing says what a variable holds, which no other call of the function gives something else for."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    values = own.program.flow.values(node, loop.scope)
    if values and not any(map(_may_give_batches, values)):
        return False
    info = own.program.function_of(loop.body)
    root = (blocks.path_of(node) or "").partition(".")[0]
    if info is None or root == info.receiver or root not in info.parameters:
        return True
    # ``run(loader, train=False)`` goes through another loader.
    return len(own.program.flow.callers(info)) <= 1


def _may_give_batches(value: Value) -> bool:
    """Whether it is of a library, and no array or range that all processes have alike."""
    if value.kind not in ("object", "external"):
        return False
    return value.name.startswith(LOADER_PREFIXES) or not value.name.startswith(_ALIKE)


_ALIKE = ("builtins.", "itertools.", "numpy.", "torch.")


def _feeds(own: OwnDdp, loop: Site, written: set[str], backward: Backward) -> bool:
    """Whether the loss of a pass is made of some variables, or a call that runs it is given what is."""
    inner = [child for item in loop.node.body for child in blocks.walk_own(item)]  # type: ignore[attr-defined]
    reached = reached_from_paths(written, inner)
    return any(
        reads_any(reached, backward.loss if child is backward.node else child)
        for child in inner
        if child is backward.node or (isinstance(child, ast.Call) and own.program.runs_backward(child))
    )
