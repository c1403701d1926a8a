"""Sums over all of an evaluation that are divided by the length of the loader that trains."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.counts_of_loaders import is_length
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.report import Note
from amp_rules.plan.training_loops import added_to, variable
from amp_rules.roles.loaders import LoaderUse
from amp_rules.source import blocks
from amp_rules.source.syntax import walk


def divided_by_shares(processes: Distribution) -> Iterator[Note]:
    """Yield such quotients: in one process the length is that of all batches, and of N it is about 1/N of them."""
    told: set[ast.AST] = set()
    for use in processes.data.evaluated:
        loop = _loop(use)
        if loop is None or loop in told:
            continue
        told.add(loop)
        for node, length in _quotients(processes, use, loop):
            text, loader = use.module.text(node), use.module.text(use.loader)
            yield notes.note(
                notes.EVALUATION,
                use.module,
                node,
                f"`{text}` divides what all of `{loader}` gives by `{use.module.text(length)}`, which is a rank's own "
                "length: with N processes it is about N times as large",
            )


def _loop(use: LoaderUse) -> ast.For | None:
    """The loop over a loader, or over the bar of progress that is made of it right above."""
    loop = next((item for item in blocks.enclosing(use.module, use.node) if isinstance(item, ast.For)), None)
    if loop is not None and any(node is use.loader for node in walk(loop.iter)):
        return loop
    where, held = blocks.place(use.module, use.statement), blocks.writes(use.statement)
    below = (item for item in where.suite[where.index + 1 :] if held & (blocks.writes(item) | blocks.reads(item)))
    found = next(below, None)
    return found if isinstance(found, ast.For) and held & blocks.reads(found.iter) else None


def _quotients(processes: Distribution, use: LoaderUse, loop: ast.For) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield the quotients that follow the loop in its function, with what they are divided by."""
    sums = {path for item in loop.body for node in walk(item) for path in added_to(node)}
    for suite, index in blocks.suites_around(use.module, loop):
        for item in suite[index + 1 :]:
            for node in blocks.walk_own(item):
                length = _length_in(processes, node, use)
                if length is not None and not sums.isdisjoint(_divided(node)):
                    yield node, length
            if isinstance(item, ast.Assign):
                sums -= blocks.writes(item)
            if not sums:
                return


def _divided(node: ast.AST) -> set[str]:
    """The variables of what is divided: ``total`` of ``100 * total / n`` and of ``total /= n``."""
    divided = node.target if isinstance(node, ast.AugAssign) else getattr(node, "left", None)
    return {path for part in walk(divided) if (path := variable(part)) is not None} if divided is not None else set()


def _length_in(processes: Distribution, node: ast.AST, use: LoaderUse) -> ast.expr | None:
    """``len(loader)`` of a loader that is shared out, where something is divided by it alone.

    A loader that is evaluated too is prepared where the training takes it, and stays whole elsewhere.
    """
    if not (isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Div, ast.FloorDiv))):
        return None
    by = node.right if isinstance(node, ast.BinOp) else node.value
    if not is_length(processes.whole_lengths, by, use.scope):
        return None
    assert isinstance(by, ast.Call)
    held = processes.program.flow.values(by.args[0], use.scope)
    return by if all(held.isdisjoint(other.values) for other in processes.data.evaluated) else None
