"""Places that images are sampled at, where a function of another file makes them of a product: a camera's projection.

The linter's analysis of types knows one file; the points-to analysis says which function is called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from amp_rules.lattice.abstract_values import IN_A_FUNCTION, Value
from amp_rules.plan.made_of import ARITHMETIC, products_behind
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span

MADE = ARITHMETIC | {"result"}
"""Arithmetic, in functions of the same file too."""
_FILLED = MADE | {"zeros_like", "empty_like"}
"""What gets its numbers element by element, too: ``grid = torch.zeros_like(places)``, then ``grid[:, 0] = ...``."""

Where = Callable[[Value], Span | None]
"""Where an operation stands in the file that is looked at."""


@dataclass
class Given:
    """What a function gives back.

    Attributes:
        products: where the half products stand that it is made of.
        calls: where the calls stand that it is made of, of functions that the file has not.
        passes: whether a parameter is in it.
    """

    products: set[Span] = field(default_factory=set)
    calls: set[Span] = field(default_factory=set)
    passes: bool = False


@dataclass
class MadePlaces:
    """What of one file is made a place.

    Attributes:
        sampled: the calls of functions of other files whose results are places.
        given: what its functions give back, by where they stand.
        within: the calls that are in the arguments of others.
    """

    sampled: set[Span] = field(default_factory=set)
    given: dict[Span, Given] = field(default_factory=dict)
    within: dict[Span, set[Span]] = field(default_factory=dict)

    def sample(self, grid: Value, where: Where) -> None:
        """Note what the places of a ``grid_sample`` are made of."""
        self.sampled |= self._calls(grid, where)

    def give(self, function: Span, returned: Iterable[Value], where: Where) -> None:
        """Note what a function gives back."""
        found = self.given.setdefault(function, Given())
        for value in returned:
            places = map(where, products_behind(value, MADE, deeper=True))
            found.products.update(place for place in places if place is not None)
            found.calls |= self._calls(value, where)
            found.passes |= any(item.op == "param" for item in _behind(value))

    def _calls(self, value: Value, where: Where, depth: int = IN_A_FUNCTION) -> set[Span]:
        found = set()
        for item in _behind(value):
            place = where(item) if item.op == "call" and depth else None
            if place is not None:
                found.add(place)
                for part in item.args[1:]:
                    self.within.setdefault(place, set()).update(self._calls(part, where, depth - 1))
        return found


def _behind(value: Value) -> list[Value]:
    """A value and what it is made of, by arithmetic."""
    found, seen = [value], {id(value)}
    for item in found:
        if item.op in _FILLED:
            fresh = [part for part in item.args if id(part) not in seen]
            seen.update(map(id, fresh))
            found += fresh
    return found


def products_elsewhere(
    program: Program, known: Iterable[tuple[Module, MadePlaces]], look: Callable[[Module], MadePlaces]
) -> dict[Module, set[Span]]:
    """The products of functions that places are made by, by file.

    Args:
        program: the program.
        known: what was found in the files that run in a region.
        look: gives what is found in a file.
    """
    found: dict[Module, set[Span]] = {}
    calls: dict[Module, dict[Span, ast.Call]] = {}
    pending = [(module, place) for module, places in known for place in places.sampled]
    seen = set(pending)
    for module, place in pending:
        if module not in calls:
            calls[module] = {module.span(node): node for node in module.nodes if isinstance(node, ast.Call)}
        call = calls[module].get(place)
        following: set[tuple[Module, Span]] = set()
        for info in program.flow.callees(call) if call is not None else ():
            home = info.module.module
            # What the linter passes over has no products.
            given = look(home).given.get(home.span(info.node), Given(passes=True))
            found.setdefault(home, set()).update(given.products)
            following |= {(home, item) for item in given.calls}
            if given.passes:
                following |= {(module, item) for item in look(module).within.get(place, ())}
        pending += sorted(following - seen, key=lambda item: (str(item[0].path), item[1]))
        seen |= following
    return found
