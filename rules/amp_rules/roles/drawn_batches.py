"""Batches that a loop draws at random by itself, without a loader."""

from __future__ import annotations

import ast

from amp_rules.roles.inline_draws import InlineDraws
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.data import COUNTERS

_RANDOM_INDEX = (
    "torch.randint", "torch.randperm", "torch.rand", "torch.randn", "torch.multinomial",
    "numpy.random.", "random.randint", "random.sample", "random.choice", "random.choices", "random.random",
    "random.randrange", "torch.normal", "torch.Tensor.uniform_",
)  # fmt: skip
_CHOICES = {"random.choice", "random.sample", "random.choices", "numpy.random.choice"}


class DrawnBatches:
    """Finds the statement that draws the batch of a training step."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._drawing: dict[ast.AST, bool] = {}
        self._asked: set[FunctionFacts] = set()
        self._deciding = False

    def statement(self, loops: list[Site], backward: Backward) -> Site | None:
        """The statement that draws the batch of this step at random, if the whole batch is drawn so.

        The loop must iterate over nothing but a counter; what the loss is computed from must come from a random
        draw made anew in every round.
        """
        if not loops:
            return None
        for loop in loops:
            if isinstance(loop.node, (ast.For, ast.AsyncFor)) and not self._counts(loop):
                return None
        inner = loops[0]
        for current in (child for item in inner.node.body for child in blocks.walk_own(item)):  # type: ignore[attr-defined]
            if isinstance(current, ast.Call) and self._draws_batch(current, inner.scope):
                return Site(inner.module, inner.scope, inner.body, blocks.statement_of(inner.module, current))
        drawn = InlineDraws(self.program, loops, backward).statement()
        return Site(inner.module, inner.scope, inner.body, drawn) if drawn is not None else None

    def _counts(self, loop: Site) -> bool:
        iterated = self._held(loop.node.iter, loop)  # type: ignore[attr-defined]
        while isinstance(iterated, ast.Call) and iterated.args and not self._is_counter(iterated, loop.scope):
            iterated = iterated.args[0]
        if not (isinstance(iterated, ast.Call) and self._is_counter(iterated, loop.scope)):
            return False
        counter = blocks.writes_target(loop.node)  # type: ignore[arg-type]
        return not any(
            isinstance(node, ast.Subscript) and blocks.reads(node.slice) & counter
            for item in loop.node.body  # type: ignore[attr-defined]
            for node in blocks.walk_own(item)
        )

    def _held(self, node: ast.expr, loop: Site) -> ast.expr:
        """The bar that a variable is given once in the function: ``bar`` of ``bar = tqdm(range(steps))``."""
        given = blocks.given_once(self.program.nodes_of(loop.body), node.id) if isinstance(node, ast.Name) else None
        return given or node

    def _is_counter(self, call: ast.Call, scope: Scope) -> bool:
        return bool(self.program.names(call.func, scope) & COUNTERS)

    def _draws_batch(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the call runs a function of the project that indexes data with random numbers and returns them."""
        return any(self._is_drawing(info) for info in self.program.flow.callees(call))

    def _is_drawing(self, info: FunctionFacts) -> bool:
        if info.node not in self._drawing:
            if self._deciding:
                # What is not known yet draws nothing for now; who asked is asked again when it turns out to.
                self._asked.add(info)
                return False
            self._decide(info)
        return self._drawing[info.node]

    def _decide(self, start: FunctionFacts) -> None:
        """Decide for a function and all that it asks for: those that call each other are decided together."""
        drawing: set[ast.AST] = set()
        askers: dict[ast.AST, list[FunctionFacts]] = {}
        seen = {start}
        pending = [start]
        self._deciding = True
        while pending:
            info = pending.pop()
            if info.node in drawing:
                continue
            self._asked = set()
            if self._draws_and_returns(info):
                self._drawing[info.node] = True
                drawing.add(info.node)
                pending.extend(askers.get(info.node, ()))
                continue
            for asked in self._asked:
                askers.setdefault(asked.node, []).append(info)
                if asked not in seen:
                    seen.add(asked)
                    pending.append(asked)
        self._deciding = False
        for info in seen:
            self._drawing.setdefault(info.node, False)

    def _draws_and_returns(self, info: FunctionFacts) -> bool:
        body, scope = info.body, self.program.flow.scopes[info.node]
        if not body:
            return False
        derived = self._derived_from_draws(body, scope)
        indexed = [
            node
            for item in body
            for node in walk(item)
            if isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and (blocks.reads(node.slice) & derived or self._draws(node.slice, scope))
        ]
        if any(node in indexed for item in info.returns for node in walk(item)):
            return True
        chooses = indexed or self._chooses(body, scope) or self._asks_for_draw(body)
        return bool(chooses) and any(blocks.reads(item) & derived for item in info.returns)

    def _asks_for_draw(self, body: list[ast.stmt]) -> bool:
        """Whether the function has another one draw: ``line = random_line(lines)``."""
        return any(
            isinstance(node, ast.Call) and any(self._is_drawing(info) for info in self.program.flow.callees(node))
            for item in body
            for node in walk(item)
        )

    def _chooses(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Whether the function draws from the data itself: ``random.choice(lines)``."""
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and self.program.names(node.func, scope) & _CHOICES
            for item in body
            for node in walk(item)
        )

    def _derived_from_draws(self, body: list[ast.stmt], scope: Scope) -> set[str]:
        """Names of a function that hold random numbers or what was made from them."""
        derived: set[str] = set()
        while True:
            before = len(derived)
            for statement in (node for item in body for node in walk(item)):
                if isinstance(statement, (ast.Assign, ast.Expr)):
                    if self._draws(statement.value, scope) or blocks.reads(statement.value) & derived:
                        # What an object keeps may be from another round, drawn when all ranks were alike.
                        derived |= {path for path in blocks.writes(statement) if "." not in path}
                elif isinstance(statement, (ast.For, ast.comprehension)):
                    if blocks.reads(statement.iter) & derived:
                        derived |= {node.id for node in walk(statement.target) if isinstance(node, ast.Name)}
            if len(derived) == before:
                return derived

    def _draws(self, node: ast.expr, scope: Scope) -> bool:
        return any(
            isinstance(child, ast.Call)
            and (
                any(name.startswith(_RANDOM_INDEX) for name in self.program.names(child.func, scope))
                or any(self._is_drawing(info) for info in self.program.flow.callees(child))
            )
            for child in walk(node)
            if not isinstance(child, ast.Call) or isinstance(child.func, (ast.Name, ast.Attribute))
        )
