"""Histograms of gradients: they fail where all is infinite or NaN after an overflow, and may be of scaled ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.notes import OVERFLOWN_RECORD, note
from amp_rules.plan.report import Note
from amp_rules.roles.gradient_accesses import GradientAccess, gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.renamed_package import has_star
from amp_rules.source.syntax import values_given, walk
from amp_rules.torch.writers import HISTOGRAMS

_METHOD = "add_histogram"
"""Of writers that a script is given, and of which nothing is known, no other object has a method of that name."""


_WATCHES = frozenset({"wandb.watch", "wandb.run.watch"})
"""Functions that log the gradients of a model as its backward pass gives them, unless they are told not to."""


def notes(program: Program, *, is_shared: bool) -> Iterator[Note]:
    """Yield one for each histogram, and for each model that is watched.

    Args:
        program: the program.
        is_shared: whether several processes share the batches.
    """
    for site in program.calls_to(_WATCHES):
        assert isinstance(site.node, ast.Call)
        logged = argument_at(site.node, "log", 2)
        if not (logged is None or literal(logged) in ("gradients", "all")) or _is_unbound(site):
            continue
        if not _is_replaced(program, site):
            text = f"`{site.module.text(site.node)}` logs gradients as the backward pass gives them: multiplied by the "
            text += "loss scale, and of one process's batch" if is_shared else "loss scale"
            text += '; with `log="parameters"` it logs none'
            yield note(OVERFLOWN_RECORD, site.module, site.node, text)
    told: set[ast.AST] = set()
    for access in gradient_accesses(program):
        for call in _histograms(program, access):
            if call in told:
                continue
            told.add(call)
            guard = f"torch.isfinite({access.what}).all()"
            text = f"`{access.what}` is infinite or NaN after a step that overflowed, and "
            text += (
                f"`{access.module.text(call.func)}` fails where nothing else is in it: leave it out unless `{guard}`"
            )
            yield note(OVERFLOWN_RECORD, access.module, call, text)


def _is_unbound(site: Site) -> bool:
    """Whether a model is watched by a name that nothing binds: the call raises an error, and logs nothing."""
    assert isinstance(site.node, ast.Call)
    watched = site.node.args[0] if site.node.args else None
    if not isinstance(watched, ast.Name) or watched.id in site.scope.owner(watched.id).bound:
        return False
    return not has_star(site.module)


def _is_replaced(program: Program, site: Site) -> bool:
    """Whether the variable of a watched model gets another one before anything trains: this one has no gradients.

    ``watch(model)``, and then ``for lr in rates: model = Net()``. What is given the model may train it all the same.
    """
    assert isinstance(site.node, ast.Call)
    watched = site.node.args[0] if site.node.args else None
    if not isinstance(watched, ast.Name):
        return False
    where = blocks.place(site.module, site.statement)
    pending = [*where.suite[where.index + 1 :]]
    while pending:
        item = pending.pop(0)
        if isinstance(item, ast.For) and blocks.writes(item) >= {watched.id}:
            pending = [*item.body, *pending]
        elif isinstance(item, ast.Assign) and watched.id in blocks.writes(item):
            return watched.id not in blocks.reads(item.value)
        elif program.runs_backward(item) or any(_is_given(program, node, watched.id) for node in walk(item)):
            return False
    return False


def _is_given(program: Program, node: ast.AST, name: str) -> bool:
    """Whether a call gives a variable to something of the project."""
    given = isinstance(node, ast.Call) and any(name in blocks.reads(item) for item in values_given(node))
    return given and isinstance(node, ast.Call) and bool(program.flow.callees(node))


def _histograms(program: Program, access: GradientAccess) -> Iterator[ast.Call]:
    """Yield the calls that are given the gradient: itself, or the variable that its statement assigns."""
    statement = access.statement
    yield from _around(program, access, access.node)
    if not isinstance(statement, ast.Assign):
        return
    names = blocks.writes(statement)
    where = blocks.place(access.module, statement)
    for later in where.suite[where.index + 1 :]:
        for node in walk(later):
            if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
                yield from _around(program, access, node)
        if blocks.writes(later) & names:
            break


def _around(program: Program, access: GradientAccess, node: ast.AST) -> Iterator[ast.Call]:
    for parent in access.module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return
        if isinstance(parent, ast.Call) and not any(inner is node for inner in walk(parent.func)):
            own = isinstance(parent.func, ast.Attribute) and parent.func.attr == _METHOD
            if (own and not program.flow.callees(parent)) or program.callee_names(parent, access.scope) & HISTOGRAMS:
                yield parent
                return
