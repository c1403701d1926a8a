"""Groups of processes that a loop of the script makes anew in each round: ``for fold in range(5): main()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.group import MAX_CALLERS
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.distributed import LEAVES

_LEAVES_LOOP = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_ENDS = frozenset({"exit", "_exit", "quit"})


def joined_in_rounds(own: OwnDdp) -> Iterator[tuple[Site, Site]]:
    """Yield each call that makes a group, and the loop around the calls that lead to it; nothing leaves a group."""
    if own.program.calls_to(LEAVES):
        return
    for site in own.joins:
        if site.module in own.modules and site.body not in own.uncalled:
            loop = _Way(own).loop_around(site)
            if loop is not None:
                yield site, loop


class _Way:
    """One way from a loop to what its rounds join, and what could keep a round from coming there."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._written: set[str] = set()
        """What is written on the way from the group on: a test of it may be a flag that the group is there."""

    def loop_around(self, place: Site, depth: int = MAX_CALLERS) -> Site | None:
        """The loop of which each round comes to a place; None where that is not certain."""
        info = self._own.program.function_of(place.body)
        self._written |= _written_below(place)
        if info is not None and (_is_decorated(info.node) or not depth):
            return None
        for test, _ in self._own.branches(place.module, place.node):
            text = ast.unparse(test)
            # A test by a parameter itself may be of the number of the round.
            told = blocks.reads(test) & (self._written | set(info.parameters if info is not None else ()))
            if "initialized" in text or told:
                return None
        around = list(blocks.enclosing(place.module, place.node))
        if any(isinstance(item, (ast.Try, ast.While, ast.AsyncFor)) for item in around):
            return None
        loops = [item for item in around if isinstance(item, ast.For)]
        if loops:
            found = self._going_on(place, loops)
            return Site(place.module, place.scope, place.body, found) if found is not None else None
        for caller in self._own.program.flow.callers(info) if info is not None else ():
            site = calling(caller)
            # What starts a process, or runs it elsewhere, is given the function, and does not call it by its name.
            if site.body in self._own.uncalled or info is None or last_name(caller.call.func) != info.name:
                continue
            written = set(self._written)
            found_there = self.loop_around(site, depth - 1)
            if found_there is not None:
                return found_there
            self._written = written
        return None

    def _going_on(self, place: Site, loops: list[ast.For]) -> ast.For | None:
        """The loop that is certain to have several rounds, or else the innermost that may have."""
        # ``if not exists(folder_of_fold):`` asks anew in each round; ``if fold == 0:`` and ``if first:`` choose some.
        choices = [test for test, _ in self._own.branches(place.module, place.node) if not _is_question(test)]
        chosen_by = {path for test in choices for path in blocks.reads(test)}
        possible = []
        for loop in loops:
            if loop.orelse or chosen_by & blocks.writes(loop) or any(map(_may_end, loop.body)):
                return None
            count = _rounds(self._own, loop.iter, place.scope)
            if count is None or count > 1:
                possible.append((count is None, loop))
        # ``min`` keeps the order of those that are alike.
        return min(possible, key=lambda row: row[0])[1] if possible else None


def _written_below(place: Site) -> set[str]:
    """What is written where a place is, and below it in its function."""
    line = place.line
    found: set[str] = set()
    for item in blocks.walk_body(place.body):
        if isinstance(item, ast.stmt) and not isinstance(item, (*blocks.LOOPS, ast.If, ast.With, ast.Try)):
            found |= blocks.writes(item) if item.lineno >= line else set()
    return found


def _is_question(test: ast.expr) -> bool:
    """Whether a test is the answer of a function."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    return isinstance(test, ast.Call) and not any(isinstance(item, ast.Compare) for item in walk(test))


def _is_decorated(node: ast.AST) -> bool:
    return bool(getattr(node, "decorator_list", ()))


def _may_end(statement: ast.stmt) -> bool:
    """Whether a statement of a loop may keep it from further rounds, or a round from what stands below."""
    return any(
        isinstance(node, _LEAVES_LOOP) or (isinstance(node, ast.Call) and last_name(node.func) in _ENDS)
        for node in walk(statement)
    )


def _rounds(own: OwnDdp, node: ast.expr, scope: Scope) -> int | None:
    """How many rounds a loop has; None where nothing tells."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return len(node.elts)
    if isinstance(node, ast.Call) and last_name(node.func) in ("range", "trange") and len(node.args) == 1:
        number = literal(node.args[0])
        return number if isinstance(number, int) else None
    made = assigned(own.program, node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else []
    if len(made) == 1 and isinstance(made[0], (ast.List, ast.Tuple)):
        return len(made[0].elts)
    return None
