"""Which values of a program differ between ranks, and why.

:class:`Ranks` runs a program abstractly, in the order of its statements, and is then asked::

    ranks = Ranks(program, Setting(prepared=loaders, seeded=statements))
    ranks.origins(expression)          # frozenset of Origin: empty where the value is the same on all ranks
    ranks.size_origins(expression)     # the same of its length, shape, or number of elements
    ranks.control_origins(statement)   # why a statement may run on one rank and not on another
    ranks.decisions(statement)         # the tests that decide so, each with its origins

An :class:`~amp_rules.ranks.origins.Origin` has a ``kind`` (batch of a shared loader, random draw after the ranks were
seeded apart, own generator, clock, order of a set, environment, process) and a place.

What is known: local variables have what was assigned last, attributes and elements what any assignment gave the object
that was made at one place; functions are run once for each way they are called. Parameters of models and states of
optimizers are replicated, as gradients are averaged; a model's output is local where its input is, or where dropout
draws. An unresolved call gives the join of its receiver and its arguments. What is assigned, appended or returned under
a local condition is local.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.ranks.calls import Calls
from amp_rules.ranks.elements import Elements
from amp_rules.ranks.expressions import Expressions
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.functions import Functions
from amp_rules.ranks.libraries import Libraries
from amp_rules.ranks.origins import UNDECIDED, Decisions, Origins, of_anything, origins_of
from amp_rules.ranks.statements import Statements
from amp_rules.ranks.targets import Targets
from amp_rules.ranks.values import REPLICATED, RankValue, Ref
from amp_rules.ranks.world import Given, Setting, World
from amp_rules.roles.program import Program
from amp_rules.source.scopes import FunctionNode, Scope

_MAX_ROUNDS = 5
"""Rounds over the program. Objects hand a value on in one or two; what still grows after this many is left as it is."""


class Ranks:
    """One program, as far as its values differ between ranks."""

    def __init__(
        self, program: Program, setting: Setting, *, is_enough: Callable[[Ranks], bool] = lambda ranks: False
    ) -> None:
        """Run the program.

        Args:
            program: the program.
            setting: what the rewrites make of it.
            is_enough: asked after each round whether what is known by then settles a question. All that is known only
                grows, so that what differs already differs in the end.
        """
        self.program = program
        self.setting = setting
        self._world = world = World(program, setting)
        elements = Elements(world)
        targets = Targets(world, elements)
        world.evaluate = Expressions(
            world, elements, targets, Calls(world, elements, Libraries(world, elements))
        ).evaluate
        self._functions = Functions(world, Statements(world, elements, targets))
        world.run = self._functions.run
        self._settle(is_enough)

    def _settle(self, is_enough: Callable[[Ranks], bool]) -> None:
        memory = self._world.memory
        for number in range(_MAX_ROUNDS):
            memory.changed = False
            self._functions.round = number
            self._round()
            if not memory.changed or is_enough(self):
                return

    def _round(self) -> None:
        modules = self.program.flow.modules
        for module in [*modules[1:][::-1], modules[0]]:
            self._functions.run_module(module.tree, self.program.flow.scopes[module.tree])
        # What nothing calls that is known runs as well: others may import it, or a library may call it.
        for body, scope in self.program.bodies:
            if isinstance(body, FunctionNode) and body not in self._functions.reached:
                info = self.program.flow.functions[body]
                self._functions.run(Given(info, {}, Frame(body, scope, 0)))

    # ---- questions -----------------------------------------------------------------------------------------------

    def origins(self, node: ast.expr, scope: Scope | None = None) -> Origins:
        """What makes an expression differ between ranks; empty where it is the same on all."""
        return of_anything(self._world.memory.deep(self._value(node)))

    def own_origins(self, node: ast.expr) -> Origins:
        """What makes an expression another object on each rank, whatever the object holds."""
        return of_anything(self._value(node).own)

    def size_origins(self, node: ast.expr) -> Origins:
        """What makes the length, the shape or the number of elements of an expression differ."""
        return of_anything(self._world.memory.length(self._value(node)))

    def truth_origins(self, node: ast.expr) -> Origins:
        """What makes a test true on one rank and false on another."""
        known = self._world.truths.get(node)
        return self.origins(node) if known is None else of_anything(known)

    def has_met(self, node: ast.expr) -> bool:
        """Whether an expression was evaluated at all: of one that was not, nothing is known."""
        return node in self._world.seen

    def objects(self, node: ast.expr) -> frozenset[Ref]:
        """The objects that an expression may be, by where they are made."""
        return self._value(node).refs

    def control_origins(self, node: ast.AST) -> Origins:
        """What makes a statement or call run on one rank and not on another."""
        return origins_of(self.decisions(node))

    def decisions(self, node: ast.AST) -> Decisions:
        """The tests that let a statement or call run on one rank and not on another."""
        return self._world.decided.get(node, UNDECIDED)

    def _value(self, node: ast.AST) -> RankValue:
        return self._world.seen.get(node, REPLICATED)
