"""One evaluation of a body: what its variables hold now, and what decides whether its statements run."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from amp_rules.ranks.origins import NOWHERE, UNDECIDED, Decision, Decisions, Origins, of_anything, origins_of
from amp_rules.ranks.values import RankValue, join
from amp_rules.source.scopes import Scope

Variables = dict[str, RankValue]
Raised = frozenset[tuple[str, Decision]]
"""Decisions to raise, each with the own name of the exception's class; empty where it is not known."""


@dataclass
class State:
    """What the program as a whole is in at a point.

    Attributes:
        apart: whether the ranks' random numbers differ by now.
        training: whether models are in training mode, where dropout draws.
    """

    apart: bool = False
    training: bool = True

    def key(self) -> tuple[bool, bool]:
        """To tell states apart."""
        return self.apart, self.training

    def copy(self) -> State:
        """The same, to go on with on another path."""
        return State(self.apart, self.training)

    def merge(self, other: State) -> None:
        """What may be either."""
        self.apart |= other.apart
        self.training |= other.training


@dataclass
class Loop:
    """Decisions that leave a loop, or its present round, and what variables held where one was left.

    Attributes:
        ended: those that leave it.
        skipped: those that leave the round.
        left: what variables held where it was left.
        skipping: the same of a round.
        together: whether the processes wait for each other in each round: none leaves without the others.
    """

    ended: Decisions = UNDECIDED
    skipped: Decisions = UNDECIDED
    left: list[Variables] = field(default_factory=list)
    skipping: list[Variables] = field(default_factory=list)
    outer: Decisions = UNDECIDED
    together: bool = False


@dataclass
class Frame:
    """An evaluation of a body.

    Attributes:
        node: the function, module or class.
        scope: its scope.
        context: which evaluation this is.
        variables: what its own variables hold at this point, and attributes of its object that it gave a value.
        closed: what variables of the function around it hold, which calls it.
        assigned: what its own variables were given at any point so far.
        control: what decides whether this point is reached.
        state: see :class:`State`.
        loops: the loops around this point.
        raised: the decisions that raise, with the name of what is raised: for the body, then for each ``try`` around
            this point.
        catches: which of these, by the name of what is raised, each ``try`` around this point lets no further.
        returned: what it has returned so far.
    """

    node: ast.AST
    scope: Scope
    context: int
    variables: Variables = field(default_factory=dict)
    control: Decisions = UNDECIDED
    state: State = field(default_factory=State)
    loops: list[Loop] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=lambda: [frozenset()])
    catches: list[Callable[[str], bool]] = field(default_factory=list)
    returned: RankValue | None = None
    ended: Decisions = UNDECIDED
    closed: Variables = field(default_factory=dict)
    assigned: Variables = field(default_factory=dict)

    @property
    def deciding(self) -> Decisions:
        """All that decides whether this point is reached, decisions to leave included."""
        found = self.control | self.ended if self.ended else self.control
        for loop in self.loops:
            if loop.ended or loop.skipped:
                found = found | loop.ended | loop.skipped
        for depth, raised in enumerate(self.raised[1:], start=1) if self.catches else ():
            # What no ``try`` here catches ends the function, and in the end the process: nothing goes on without it.
            for name, decision in raised:
                if any(catches(name) for catches in self.catches[:depth]):
                    found = found | {decision}
        return found

    @property
    def control_origins(self) -> Origins:
        """Why this point may be reached on one rank only."""
        deciding = self.deciding
        return origins_of(deciding) if deciding else NOWHERE

    def decide(self, decision: Decision) -> Decisions:
        """Let what follows rest on a decision; gives back what it rested on before."""
        before = self.control
        origins = of_anything(decision.origins)
        if origins is not decision.origins:
            decision = replace(decision, origins=origins)
        self.control = before - {decision} | {decision}
        return before

    def give(self, name: str, value: RankValue) -> None:
        """Let a variable of its own hold a value from here on."""
        self.variables[name] = value
        known = self.assigned.get(name)
        self.assigned[name] = value if known is None else join(known, value)

    def own_variable(self, node: ast.AST) -> str | None:
        """The name of a variable of its own, which holds something at this point, where an expression is one."""
        if not isinstance(node, ast.Name) or node.id not in self.variables:
            return None
        return node.id if self.scope.owner(node.id) is self.scope else None

    def give_back(self, value: RankValue) -> None:
        """Add to what it returns."""
        self.returned = value if self.returned is None else join(self.returned, value)


def merged(one: Variables, other: Variables) -> Variables:
    """What variables hold where two paths meet; of an attribute of an object only what both have given it."""
    found = dict(one)
    for name, value in other.items():
        known = found.get(name)
        if known is not None:
            found[name] = join(known, value)
        elif "." not in name:
            found[name] = value.unknown()
    for name in one.keys() - other.keys():
        if "." in name:
            del found[name]
        else:
            found[name] = found[name].unknown()
    return found
