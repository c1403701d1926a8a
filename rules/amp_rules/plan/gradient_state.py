"""Whether gradients may still be multiplied by the scale at a place: what ran before it, seen from there backwards.

A backward pass leaves scaled gradients. An optimizer's step unscales its own, clearing removes them, and so does an
``unscale_`` that is planned already. What happens under a condition counts only where all branches agree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.told_by_argument import suite_taken
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import leaves

Optimizers = frozenset[Value]

_BRANCHES = (ast.If, ast.Try, getattr(ast, "TryStar", ast.Try), ast.Match)


class GradientState:
    """Answers for one program.

    Attributes:
        planned: the optimizers whose gradients are unscaled before a statement, by what is planned so far.
    """

    def __init__(self, program: Program, owners: GradientOwners) -> None:
        self.planned: dict[ast.stmt, Optimizers] = {}
        self._program = program
        self._owners = owners
        self._backwards = {site.node for site in program.backwards}
        self._steps = {site.node: site for site in program.steps}
        self._running: dict[FunctionFacts, ast.Call] = {}

    def before(self, site: Site, optimizers: Optimizers) -> Optimizers | None:
        """Whose gradients may be scaled within the function before a site's statement.

        Returns:
            None where a backward pass of the function leaves them scaled; otherwise those of ``optimizers`` about which
            the function says nothing, empty if all are unscaled or cleared.
        """
        statement: ast.stmt = site.statement
        left: Optimizers | None = optimizers - self.planned.get(statement, frozenset())
        while left:
            where = blocks.place(site.module, statement)
            left = self._after(where.suite[: where.index], left)
            parent = where.parent
            if isinstance(parent, ast.ExceptHandler):
                guarded = site.module.parents[parent]
                assert isinstance(guarded, ast.stmt)
                statement = guarded
                left = self._after(next(blocks.suites(guarded)), left) if left else left
                continue
            if not left or not isinstance(parent, ast.stmt) or isinstance(parent, (*blocks.BODIES, ast.ClassDef)):
                break
            if isinstance(parent, blocks.LOOPS) and self._after(parent.body, left) is None:
                return None  # the round before left them
            left -= self.planned.get(parent, frozenset())
            statement = parent
        return left

    # ---- what statements leave -------------------------------------------------------------------------------

    def _after(self, statements: Sequence[ast.stmt], optimizers: Optimizers) -> Optimizers | None:
        left: Optimizers | None = optimizers
        for statement in reversed(statements):
            left = self._after_one(statement, left) if left else left
            if not left:
                return left
            left -= self.planned.get(statement, frozenset())
        return left

    def _after_one(self, statement: ast.stmt, optimizers: Optimizers) -> Optimizers | None:
        if isinstance(statement, _BRANCHES):
            outcomes = [(suite, self._after(suite, optimizers)) for suite in self._branches(statement)]
            # What stands below is not run after `continue` or `raise`; a backward pass above one counts all the same.
            reaching = [outcome for suite, outcome in outcomes if outcome is None or not _is_left(suite)]
            return _any_of(reaching) if reaching else optimizers
        if isinstance(statement, blocks.LOOPS):
            return self._after(statement.body, optimizers)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            left = self._after(statement.body, optimizers)
            heads = [item.context_expr for item in statement.items]
            return self._after_nodes(heads, left) if left else left
        if isinstance(statement, (*blocks.BODIES, ast.ClassDef)):
            return optimizers
        return self._after_nodes([statement], optimizers)

    def _branches(self, statement: ast.stmt) -> list[list[ast.stmt]]:
        """The suites that may run; where a call decides with ``is_train=True``, the one that it has run."""
        if isinstance(statement, ast.If) and self._running:
            info, call = next(reversed(self._running.items()))
            told = suite_taken(info, statement, call)
            if told is not None:
                return [told]
        found = list(blocks.suites(statement))
        return [*found, []] if isinstance(statement, ast.If) and not statement.orelse else found

    def _after_nodes(self, parts: Iterable[ast.AST], optimizers: Optimizers) -> Optimizers | None:
        within = [node for part in parts for node in blocks.walk_own(part)]
        nodes = [node for node in within if isinstance(node, ast.Call)]
        left = optimizers
        # Where the function itself stops for its caller, the body of a `with`, that may run a backward pass. Asked
        # from outside, that body stands in the caller, and is seen there.
        is_scaled = not self._running and any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in within)
        for node in nodes:
            if node in self._backwards:
                is_scaled = True
            elif node in self._steps:
                left -= self._owners.made_true(self._steps[node])
                continue
            located = self._program.locate(node)
            if located is not None:
                left -= self._owners.cleared(node, located[1])
        for node in nodes:
            callees = self._program.flow.callees(node)
            if callees and left and not is_scaled:
                inner = _any_of(self._after_call(info, node, left) for info in callees)
                if inner is None:
                    return None
                left = inner
        return None if is_scaled and left else left

    def _after_call(self, info: FunctionFacts, call: ast.Call, optimizers: Optimizers) -> Optimizers | None:
        if info in self._running:
            return optimizers
        self._running[info] = call
        try:
            parts = blocks.own_parts(info.node)
            if isinstance(info.node, ast.Lambda):
                return self._after_nodes(parts, optimizers)
            return self._after([part for part in parts if isinstance(part, ast.stmt)], optimizers)
        finally:
            del self._running[info]


def _is_left(suite: list[ast.stmt]) -> bool:
    """Whether what stands below is not run after a suite: each way through it ends with ``continue`` or ``raise``."""
    if not suite:
        return False
    last = suite[-1]
    return leaves(suite) or (isinstance(last, ast.If) and _is_left(last.body) and _is_left(last.orelse))


def _any_of(outcomes: Iterable[Optimizers | None]) -> Optimizers | None:
    """What is left whichever of several paths ran."""
    left: Optimizers = frozenset()
    for outcome in outcomes:
        if outcome is None:
            return None
        left |= outcome
    return left
