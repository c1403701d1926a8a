"""Averages of what one process sees, where a training loop shows them: nothing is wrong, but the reader has to know."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.training_loops import SHOWING, added_to, variable
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_Told = tuple[Site, str]

_KEEPING = frozenset({"update", "add", "append"})
"""Methods of meters and lists that take a number of each batch."""


def averages(processes: Distribution) -> Iterator[_Told]:
    """Yield sums of a rank's losses that are shown divided by its own batches."""
    for place, reduced in processes.sums.places:
        reads = [*place.nodes_following()]
        for item in getattr(place.node, "body", ()):
            reads += blocks.walk_own(item)
        for path in place.sums:
            adding = next((node for node in walk(place.node) if path in added_to(node)), None)
            if adding is None or path in place.counters or path in reduced or not _is_number(adding):
                continue
            if any(isinstance(node, ast.expr) and variable(node) == path and is_shown(place, node) for node in reads):
                text = f"`{path}` adds up what one process sees: an average of it is of rank 0's share"
                yield Site(place.module, place.scope, place.body, adding), text


def meters(program: Program, processes: Distribution) -> Iterator[_Told]:
    """Yield where a training loop gives a number of its batch to an object that averages or keeps such numbers."""
    for loop in processes.loops:
        made = {blocks.path_of(item) for node in loop.inner if isinstance(node, ast.Assign) for item in node.targets}
        for node in loop.inner:
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            path = variable(node.func.value)
            if node.func.attr not in _KEEPING or path is None or path in made or not _is_number(node.args[0]):
                continue
            if not program.roles.modules(node.func.value, loop.scope):
                site = Site(loop.module, loop.scope, loop.body, node)
                yield site, f"`{path}` is given what one process sees: what is shown of it is of rank 0's share"


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
