"""Iterators over a loader that are made once and never begun anew: a rank's share ends before a counted loop does."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_loader_value, is_stream
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.data import LOADERS_OF_TORCH
from amp_rules.torch.wrappers import PROGRESS_BARS

_OWN_ORDER = ("sampler", "batch_sampler")

_ITERATORS = frozenset({"builtins.iter", "builtins.enumerate"})


def ends_within(program: Program, call: ast.Call, loop: ast.For, site: Site, loaders: Iterable[Value]) -> str | None:
    """The iterator that a round takes a batch from, where each of its loaders ends and nothing begins it anew.

    An order of the script's own may go on without end, as may a data set without a length: those are passed over.
    """
    iterator = _iterator_of(call)
    path = blocks.path_of(iterator) if iterator is not None else None
    if iterator is None or path is None or not program.runs_backward(loop):
        return None
    key = program.flow.key(iterator, site.scope)
    made = [
        Site(scope.module, scope, body, node)
        for node, body, scope in program.nodes()
        if isinstance(node, ast.Assign)
        and any(
            own_name(target) == own_name(iterator) and program.flow.key(blocks.reading(target), scope) == key
            for target in node.targets
        )
    ]
    if (
        key is None
        or not made
        or any(isinstance(item, ast.stmt) and path in blocks.writes(item) for item in walk(loop))
    ):
        return None
    if not all(_is_plain(program, item) and (item.body is site.body or _constructs(program, item)) for item in made):
        return None
    return path if all(_ends(program, value) for value in loaders) else None


def counted_range(program: Program, node: ast.expr, site: Site) -> ast.expr:
    """The range that a loop counts by: the argument of a progress bar around it."""
    if isinstance(node, ast.Call) and node.args and program.callee_names(node, site.scope) & PROGRESS_BARS:
        return node.args[0]
    return node


def _iterator_of(call: ast.Call) -> ast.expr | None:
    """What a batch is taken from: ``next(batches)``, ``batches.__next__()``."""
    if call.args:
        return call.args[0]
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_plain(program: Program, made: Site) -> bool:
    """Whether an assignment gives an iterator over the loader itself: ``batches = iter(loader)``, or ``enumerate``."""
    value = made.node.value  # type: ignore[attr-defined]
    return (
        isinstance(value, ast.Call)
        and len(value.args) == 1
        and bool(_ITERATORS & program.callee_names(value, made.scope))
        and bool(held := program.flow.values(value.args[0], made.scope))
        and all(map(is_loader_value, held))
    )


def _constructs(program: Program, made: Site) -> bool:
    info = program.function_of(made.body)
    return info is not None and info.cls is not None and info.name == "__init__"


def _ends(program: Program, loader: Value) -> bool:
    """Whether a loader of torch gives the samples of an indexed data set, each once, in an order of torch's own."""
    call = loader.site
    if not isinstance(call, ast.Call) or any(item.arg is None for item in call.keywords):
        return False
    located = program.locate(call)
    data = given_to_loader(call, "dataset")
    if located is None or data is None or any(given_to_loader(call, name) is not None for name in _OWN_ORDER):
        return False
    if not program.callee_names(call, located[1]) & LOADERS_OF_TORCH:
        return False
    return not any(is_stream(value) for value in program.flow.values(data, located[1]))
