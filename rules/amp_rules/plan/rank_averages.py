"""Averages of what one process sees, where a training loop shows them: nothing is wrong, but the reader has to know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.training_loops import SHOWING, added_to, variable
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_KEEPING = frozenset({"update", "add", "append"})
"""Methods of meters and lists that take a number of each batch."""


@dataclass(frozen=True)
class Told:
    """Something that is shown and that counts what one process sees.

    Attributes:
        site: where.
        name: its text in the script.
        one: what is to be known of it.
        several: the same of several.
    """

    site: Site
    name: str
    one: str
    several: str


def averages(processes: Distribution) -> Iterator[Told]:
    """Yield sums of a rank's losses that are shown divided by its own batches."""
    sums = processes.sums
    for place, reduced in sums.places:
        reads = [*place.nodes_following()]
        for item in getattr(place.node, "body", ()):
            reads += blocks.walk_own(item)
        for path in place.sums:
            adding = next((node for node in walk(place.node) if path in added_to(node)), None)
            if adding is None or path in place.counters or path in reduced or not _is_number(adding):
                continue
            shown = [
                node
                for node in reads
                if isinstance(node, ast.expr) and variable(node) == path
                if is_shown(place, node) or sums.is_handed_on_to_show(place, node)
            ]
            site = Site(place.module, place.scope, place.body, adding)
            unclear = [item for node in shown if (item := sums.divided_unclearly(place, node)) is not None]
            if unclear:
                text = f"adds up what one process sees, and `{place.module.text(unclear[0])}` may count what all see"
                yield Told(site, path, text, text)
            elif shown:
                yield Told(
                    site,
                    path,
                    "adds up what one process sees: an average of it is of rank 0's share",
                    "add up what one process sees: averages of them are of rank 0's share",
                )


def meters(program: Program, processes: Distribution) -> Iterator[Told]:
    """Yield where a training loop gives a number of its batch to an object that averages or keeps such numbers.

    Beside a meter that is given one, others of its class are too, with how many samples it is of:
    ``top1.update(hits[0], len(x))``. A time is given alone.
    """
    for loop in processes.loops:
        made = {blocks.path_of(item) for node in loop.inner if isinstance(node, ast.Assign) for item in node.targets}
        given: list[tuple[ast.Call, str, set[object]]] = []
        classes: set[object] = set()
        for node in loop.inner:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            path = variable(node.func.value)
            if node.func.attr not in _KEEPING or path is None or path in made:
                continue
            if not program.roles.modules(node.func.value, loop.scope):
                values = program.flow.values(node.func.value, loop.scope)
                of = {value.ref for value in values if value.kind == "instance"}
                given.append((node, path, of))
                classes |= of if _is_number(node.args[0]) else set()
        for node, path, of in given:
            if _is_number(node.args[0]) or (of and of <= classes and len(node.args) > 1):
                yield Told(
                    Site(loop.module, loop.scope, loop.body, node),
                    path,
                    "is given what one process sees: what is shown of it is of rank 0's share",
                    "are given what one process sees: what is shown of them is of rank 0's share",
                )


def is_shown(loop: Site, node: ast.expr) -> bool:
    """Whether a number is printed, or made a part of a text."""
    child: ast.AST = node
    for parent in loop.module.ancestors(node):
        divides = isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv))
        if isinstance(parent, ast.stmt) or (divides and child is getattr(parent, "right", None)):
            return False
        child = parent
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod)):
            return True
        if isinstance(parent, ast.Call):
            name = parent.func.attr if isinstance(parent.func, ast.Attribute) else blocks.path_of(parent.func)
            if name in SHOWING:
                return True
    return False


def _is_number(node: ast.AST) -> bool:
    """Whether a tensor is made a number here: ``loss.item()``, ``float(loss)``."""
    calls = [part.func for part in walk(node) if isinstance(part, ast.Call)]
    return any(blocks.path_of(func) == "float" or getattr(func, "attr", "") == "item" for func in calls)
