"""Sums over the batches of one rank that are made into numbers of all: which are to be summed over the ranks.

``correct / len(train_set)`` divides what one process has counted by what all have. The sum is reduced right after the
loop, where every process comes by, so that all that follows has the number of all ranks. What is divided by a rank's
own number, as ``running / len(loader)``, is a mean over its batches, and stays. So does a number of steps that is
shown: all ranks make each step together. And so does a time, of which each process measures its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.clock_times import times
from amp_rules.plan.training_loops import (
    SHOWING,
    Counted,
    TrainingLoop,
    adds_to_entry,
    counted,
    handed_back,
    variable,
)
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import walk
from amp_rules.torch.evaluating import ZEROS

_SAME_NUMBER = frozenset({"item", "cpu", "detach", "float", "double", "numpy", "mean", "tolist", "int", "long", "sum"})
"""Methods that give the same number, or one made of the same."""
_HANDING_ON = frozenset({"float", "int", "round", "str", "sum", "list", "tuple"})
"""Functions that make a number ready to be shown."""

_OF_A_COUNT = (ast.Name, ast.Constant, ast.BinOp, ast.Add, ast.Load)

_MAX_CALLS = 4
"""Calls through which a sum is handed to what divides it; beyond, its use is not known."""

_Use = Literal["all", "own", "partner", "other"]
"""What a read of a sum wants: that of all ranks, the rank's own, the same as another sum, or what is not known."""


@dataclass(frozen=True)
class SumAfter:
    """A sum to be reduced after a statement; ``why`` is where it is used as a number of all ranks."""

    place: Counted
    path: str
    why: ast.expr


@dataclass(frozen=True)
class SumHere:
    """A sum to be reduced where it is divided."""

    place: Counted
    node: ast.expr


@dataclass
class _Uses:
    """How a sum is read after its loop.

    Attributes:
        whole: the places that want that of all ranks.
        partners: sums that it is divided by, or divides.
        movable: whether no place wants the rank's own.
    """

    whole: list[ast.expr] = field(default_factory=list)
    partners: set[str] = field(default_factory=set)
    movable: bool = True


class RankSums:
    """Decides which sums of training loops are reduced, and where.

    Attributes:
        after: those reduced after the loop, or after a call that handed them back.
        here: those reduced where they are divided, since other uses want the rank's own.
        places: all places, with the sums that are reduced there.
    """

    def __init__(self, program: Program, loops: list[TrainingLoop], lengths: WholeLengths) -> None:
        self.program = program
        self.lengths = lengths
        self.after: list[SumAfter] = []
        self.here: list[SumHere] = []
        self.places: list[tuple[Counted, set[str]]] = []
        pending = [replace(place, means=self._means_of(place)) for loop in loops for place in _counted(program, loop)]
        while pending:
            place = pending.pop(0)
            if place.sums or place.lists:
                reduced = self._decide(place)
                self.places.append((place, reduced))
                pending.extend(handed_back(program, place, set(place.sums) - reduced))

    def _means_of(self, place: Counted) -> frozenset[str]:
        """Sums of which each term is divided by a number of one rank: ``total += loss.item() / len(loader)``."""
        added: dict[str, list[ast.expr]] = {}
        for node in walk(place.node):
            if isinstance(node, ast.AugAssign) and (path := variable(node.target)) in place.sums and path is not None:
                added.setdefault(path, []).append(node.value)
        return frozenset(
            path
            for path, terms in added.items()
            if all(_divides(term) and self.is_of_rank(term, place) for term in map(_number_of, terms))
        )

    def _decide(self, place: Counted) -> set[str]:
        """Decide about the sums of one place; return those that are reduced there."""
        trained = self.trained_on(place)
        uses = {path: self._uses(place, path) for path in place.sums if path not in trained}
        movable = {path for path, item in uses.items() if item.movable}
        while kept := {path for path in movable if uses[path].partners <= movable}:
            if kept == movable:
                break
            movable = kept
        else:
            movable = set()
        chosen = {path for path in movable if uses[path].whole}
        while more := {partner for path in chosen for partner in uses[path].partners} - chosen:
            chosen |= more
        for path in place.sums:
            if path in chosen:
                partners = (uses[other].whole for other in sorted(chosen) if path in uses[other].partners)
                why = uses[path].whole or next(filter(None, partners), [])
                if why:
                    self.after.append(SumAfter(place, path, why[0]))
        self._reduce_here(place, chosen, trained)
        return chosen

    def _reduce_here(self, place: Counted, chosen: set[str], trained: set[str]) -> None:
        """What could not be moved, or is kept in a list, is reduced where it is divided by a number of all ranks."""
        for node in place.nodes_following():
            if not (isinstance(node, ast.BinOp) and _divides(node)):
                continue
            read = self._variables(node.left)
            mine = {path for path in read & {*place.sums, *place.lists} if not _is_begun_anew(place, node, path)}
            if mine and not mine & (chosen | trained) and self._of_divisor(node.right, place) == "all":
                whole = self.lengths.count(node.right, place.scope) == "samples"
                if whole and not _is_mean(node.left) and not any(map(_divides, walk(node.left))):
                    self.here.append(SumHere(place, node.left))

    def trained_on(self, place: Counted) -> set[str]:
        """Variables that a backward pass of the same function starts from, and what they are made of."""
        found = {
            path for site in self.program.backwards if site.body is place.body for path in self._variables(site.loss)
        }
        assigned = [node for node in self.program.nodes_of(place.body) if isinstance(node, (ast.Assign, ast.AugAssign))]
        while True:
            before = len(found)
            for node in assigned:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if {variable(target) for target in targets} & found:
                    found |= self._variables(node.value)
            if len(found) == before:
                return found

    # ---- uses ----------------------------------------------------------------------------------------------------

    def _uses(self, place: Counted, path: str) -> _Uses:
        found = _Uses()
        for item in _seeing(place, path):
            for node in _reads_of_sum(place, item, path):
                use, where = self._use_of(place, path, node)
                if use == "all" and (path not in place.steps or _divides(where)):
                    found.whole.append(where)
                elif use == "partner":
                    found.partners |= self._variables(where) & set(place.sums) - {path}
                else:
                    found.movable = False
            if isinstance(item, ast.AugAssign) and _ends(item, path):
                self._note_division(place, item, found)
        return found

    def _note_division(self, place: Counted, item: ast.AugAssign, found: _Uses) -> None:
        """``loss /= n``."""
        use = self._of_divisor(item.value, place)
        if use == "all":
            found.whole.append(item.target)
        elif use == "partner":
            found.partners |= self._variables(item.value) & set(place.sums)
        else:
            found.movable = False

    def _use_of(self, place: Counted, path: str, node: ast.AST) -> tuple[_Use, ast.expr]:
        """What a read of a sum wants; of a mean over the rank's batches a mean, and no sum of all ranks."""
        use, where = self._use(place, node)
        if use == "all" and path in place.means:
            return ("other" if _divides(where) else "own"), where
        return use, where

    def _use(self, place: Counted, node: ast.AST) -> tuple[_Use, ast.expr]:
        """What a read of a sum wants, and the expression that says so."""
        child: ast.AST = node
        for parent in place.module.ancestors(node):
            if isinstance(parent, ast.BinOp) and _divides(parent):
                if child is parent.right:
                    partner = bool(self._variables(parent.left) & set(place.sums))
                    return ("partner" if partner else "other"), parent
                return self._of_divisor(parent.right, place), parent
            if isinstance(parent, ast.JoinedStr) or _is_template(parent, child):
                return "all", parent  # type: ignore[return-value]
            if isinstance(parent, ast.Call):
                name = _name_of(parent)
                if child is not parent.func and name in SHOWING:
                    return "all", parent
                if name not in (_SAME_NUMBER if child is parent.func else _HANDING_ON):
                    given = child.value if isinstance(child, ast.keyword) else child
                    return self._in_callees(place, parent, given), parent
            elif isinstance(parent, ast.comprehension):
                if not self._is_whole_in(parent, place):
                    return "other", parent.iter
            elif isinstance(parent, ast.Compare):
                return self._of_comparison(parent, child, place), parent
            elif isinstance(parent, (ast.Lambda, ast.stmt)):
                break
            child = parent
        return "other", node  # type: ignore[return-value]

    def _of_comparison(self, node: ast.Compare, child: ast.AST, place: Counted) -> _Use:
        """What a comparison wants of a sum: ``assert seen == len(dataset)`` that of all ranks."""
        others = [item for item in (node.left, *node.comparators) if item is not child]
        if len(others) != 1 or self.lengths.count(others[0], place.scope) != "samples":
            return "other"
        return "all" if self._of_divisor(others[0], place) == "all" else "other"

    def _is_whole_in(self, parent: ast.comprehension, place: Counted) -> bool:
        """Whether each element of a sum of several is only shown, or divided by a number of all ranks."""
        owner = place.module.parents[parent]
        return all(
            self._of_divisor(part.right, place) == "all"
            for part in walk(owner)
            if isinstance(part, ast.BinOp) and _divides(part)
        )

    def _in_callees(self, place: Counted, call: ast.Call, given: ast.AST) -> _Use:
        """What the functions of the project want of a sum that a call gives them: ``accuracy(correct, dataset)``."""
        found: set[_Use] = set()
        for info in self.program.flow.callees(call) if place.depth < _MAX_CALLS else ():
            bound = [(name, value) for name, value in info.bound(call) if name is not None]
            names = [name for name, value in bound if value is given]
            sums = tuple(name for name, value in bound if self._variables(value) & set(place.sums))
            scope = self.program.flow.scopes[info.node]
            inner = Counted(scope.module, scope, info.node, info.node, sums, depth=place.depth + 1)
            reads = [node for name in names for item in info.body for node in _reads(item, name)]
            found |= {self._use(inner, node)[0] for node in reads} or {"other"}
        return found.pop() if len(found) == 1 else "other"

    def _of_divisor(self, node: ast.expr, place: Counted) -> _Use:
        read = self._variables(node)
        if read & {*place.lists, *place.counters}:
            return "own" if not read & set(place.sums) else "partner"
        if read & set(place.sums):
            return "partner"
        reach = self.lengths.reach(node, place.scope)
        return "other" if reach is None else "all" if reach == "all" else "own"

    def wants(self, place: Counted, path: str) -> set[str]:
        """What all reads of a sum after its loop want of it: see :data:`_Use`."""
        found: set[str] = set()
        for item in _seeing(place, path):
            found |= {self._use_of(place, path, node)[0] for node in _reads_of_sum(place, item, path)}
            if isinstance(item, ast.AugAssign) and _ends(item, path):
                found.add(self._of_divisor(item.value, place))
        return found

    def is_of_rank(self, quotient: ast.expr, place: Counted) -> bool:
        """Whether a quotient is divided by a number of one process: the length of its loader, or what it counted."""
        return isinstance(quotient, ast.BinOp) and self._of_divisor(quotient.right, place) in ("own", "partner")

    def is_shown_alone(self, place: Counted, path: str, shares: frozenset[ast.AST], *, reduced: bool) -> bool:
        """Whether the rank's own number is shown, within its loop or after it, and not only divided by something.

        Beside one of ``shares``, which are made those of a rank, it may be.
        """
        items = [] if reduced else _seeing(place, path)
        for item in [*items, *getattr(place.node, "body", [])]:
            for node in _reads_of_sum(place, item, path):
                use, where = self._use_of(place, path, node)
                if use == "all" and not isinstance(where, ast.BinOp) and shares.isdisjoint(walk(where)):
                    return True
        return False

    def is_handed_on_to_show(self, place: Counted, node: ast.expr) -> bool:
        """Whether functions of the project show what they are given here."""
        use, where = self._use(place, node)
        return use == "all" and isinstance(where, ast.Call) and bool(self.program.flow.callees(where))

    def divided_unclearly(self, place: Counted, node: ast.expr) -> ast.expr | None:
        """What a sum is divided by, where that may count what all processes see, or what one does."""
        use, where = self._use(place, node)
        if use == "other" and isinstance(where, ast.BinOp) and _divides(where) and node in set(walk(where.left)):
            return None if _counts_rounds(place, where.right) else where.right
        return None

    @staticmethod
    def _variables(node: ast.AST) -> set[str]:
        return {path for child in walk(node) if (path := variable(child)) is not None}


def _counted(program: Program, loop: TrainingLoop) -> Iterator[Counted]:
    """Yield what is known after a loop, but for the times that it measures."""
    measured = times(program, loop)
    for place in counted(loop):
        sums = tuple(path for path in place.sums if path not in measured and _is_of_one_size(program, place, path))
        yield replace(place, sums=sums, lists=tuple(path for path in place.lists if path not in measured))


def _is_of_one_size(program: Program, place: Counted, path: str) -> bool:
    """Whether a sum has as many numbers on each rank: ``hits[label] += 1`` may give a dictionary other keys on each."""
    if not any(adds_to_entry(node, path) for node in walk(place.node)):
        return True
    assigned = (node for node in program.nodes_of(place.body) if isinstance(node, ast.Assign))
    made = [node.value for node in assigned if path in map(variable, node.targets)]
    return bool(made) and all(
        isinstance(value, ast.Call) and bool(program.callee_names(value, place.scope) & ZEROS) for value in made
    )


def _divides(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv))


def _counts_rounds(place: Counted, divisor: ast.expr) -> bool:
    """Whether a number is that of the rounds: ``len(loader)``, or ``bar.n + 1`` of a bar over which a loop iterates.

    Or what a variable keeps of the loop's own count: ``last = step`` in it, and ``last + 1`` after it.
    """
    if not isinstance(place.node, (ast.For, ast.AsyncFor)):
        return False
    if _keeps_count(place, place.node, divisor):
        return True
    over = {path for part in walk(place.node.iter) if (path := blocks.path_of(part)) is not None}
    if isinstance(divisor, ast.Name):
        return _is_length_of(place, divisor.id, over)
    read = [part for part in walk(divisor) if isinstance(part, (ast.Name, ast.Attribute))]
    counts = [part for part in read if isinstance(part, ast.Attribute) and part.attr == "n"]
    held = {part for item in counts for part in walk(item.value)}
    return bool(counts) and all(
        item in held or (item in counts and blocks.path_of(item.value) in over) for item in read
    )


def _keeps_count(place: Counted, loop: ast.For | ast.AsyncFor, divisor: ast.expr) -> bool:
    """Whether a variable, or it and a constant, is the count of a loop over ``enumerate``."""
    names = {part.id for part in walk(divisor) if isinstance(part, ast.Name)}
    if len(names) != 1 or not all(isinstance(part, _OF_A_COUNT) for part in walk(divisor)):
        return False
    counted = BatchLoop(place.module, place.scope, place.body, loop, loop)
    given = [
        node.value
        for node in counted.inner
        if isinstance(node, ast.Assign) and names <= {path for item in node.targets if (path := blocks.path_of(item))}
    ]
    return bool(given) and all(blocks.path_of(value) in counted.head for value in given)


def _is_length_of(place: Counted, name: str, over: set[str]) -> bool:
    """Whether a variable holds the length of what a loop iterates, by the last assignment above it."""
    for suite, index in blocks.suites_around(place.module, place.statement):
        for item in reversed(suite[:index]):
            if name in blocks.writes(item):
                given = item.value if isinstance(item, ast.Assign) else None
                if not isinstance(given, ast.Call) or blocks.path_of(given.func) != "len" or len(given.args) != 1:
                    return False
                return blocks.path_of(given.args[0]) in over
    return False


def _number_of(node: ast.expr) -> ast.expr:
    """What a term is made of by methods that give the same number: ``(loss / n).item()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_NUMBER:
        node = node.func.value
    return node


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else blocks.path_of(call.func) or ""


def _is_template(parent: ast.AST, child: ast.AST) -> bool:
    """Whether ``child`` is put into a text: ``"%d of %d" % (correct, total)``."""
    return (
        isinstance(parent, ast.BinOp)
        and isinstance(parent.op, ast.Mod)
        and child is parent.right
        and isinstance(parent.left, ast.Constant)
        and isinstance(parent.left.value, str)
    )


def _is_mean(node: ast.expr) -> bool:
    """Whether what is divided is a mean already."""
    return isinstance(node, ast.Call) and _name_of(node) in ("mean", "average", "len")


def _reads(item: ast.stmt, path: str) -> Iterator[ast.AST]:
    """Yield where a variable is read, or the whole that it is an item of."""
    base = path.partition("[")[0]
    for node in blocks.walk_own(item):
        if isinstance(node, FunctionNode):
            if any(variable(child) == base for child in walk(node)):
                yield node
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load):
            if variable(node) == path or (base != path and variable(node) == base and not _is_item(node, item)):
                yield node


def _reads_of_sum(place: Counted, item: ast.stmt, path: str) -> Iterator[ast.AST]:
    """The same, but for what is read below another value that the variable gets within the statement."""
    yield from (node for node in _reads(item, path) if not _is_begun_anew(place, node, path))


def _is_item(node: ast.AST, item: ast.stmt) -> bool:
    """Whether an item with a constant key is taken of a variable."""
    return any(
        isinstance(child, ast.Subscript) and child.value is node and isinstance(child.slice, ast.Constant)
        for child in walk(item)
    )


def _seeing(place: Counted, path: str) -> list[ast.stmt]:
    """The statements that may read a sum: up to the one that makes it something else, that included."""
    found: list[ast.stmt] = []
    for item in place.following():
        found.append(item)
        if _ends(item, path):
            return found
    return [*found, *place.after_loops(path)]


def _is_begun_anew(place: Counted, node: ast.AST, path: str) -> bool:
    """Whether a variable gets another value between a place and a read of it: ``seen = 0`` above another loop."""
    above = blocks.statements_above(place.module, blocks.statement_of(place.module, node), place.body)
    return any(_ends(item, path) for item in above if item.lineno > place.statement.lineno)


def _ends(item: ast.stmt, path: str) -> bool:
    """Whether a statement makes the variable something else: ``loss /= n``, ``correct = 100 * correct / n``."""
    if isinstance(item, ast.AugAssign):
        return variable(item.target) == path and isinstance(item.op, ast.Div)
    if not isinstance(item, ast.Assign):
        return False
    return path in blocks.writes(item) or any(variable(target) == path for target in item.targets)
