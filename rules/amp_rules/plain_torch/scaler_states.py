"""What torch's scaler and the gradients of each optimizer may be like at a place of a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from amp_rules.flow.values import Value

Gradients = Literal["none", "scaled", "old", "true", "mixed"]
"""What an optimizer's gradients are: cleared, scaled, scaled before the last update, true, or a sum of such."""
Stage = Literal["ready", "unscaled", "stepped"]
"""What the scaler knows of an optimizer since the last update."""

ONTO: dict[Gradients, Gradients] = {
    "none": "scaled",
    "scaled": "scaled",
    "old": "mixed",
    "true": "mixed",
    "mixed": "mixed",
}
FIRST = frozenset({("none", "ready")})


@dataclass(frozen=True)
class State:
    """What may be at a place.

    Attributes:
        optimizers: for each optimizer what its gradients and its stage may be.
        is_due: whether there may have been, since the last update, a step; and whether there may have been none.
    """

    optimizers: tuple[tuple[Value, frozenset[tuple[Gradients, Stage]]], ...]
    is_due: frozenset[bool]

    def of(self, optimizer: Value) -> frozenset[tuple[Gradients, Stage]]:
        """What may be known of one optimizer."""
        return dict(self.optimizers).get(optimizer, FIRST)  # type: ignore[arg-type]

    def with_(self, changed: dict[Value, frozenset[tuple[Gradients, Stage]]]) -> State:
        """The state with some optimizers changed."""
        return State(tuple((dict(self.optimizers) | changed).items()), self.is_due)

    def joined(self, other: State | None) -> State:
        """What may be on one path or another."""
        if other is None:
            return self
        names = dict.fromkeys([*dict(self.optimizers), *dict(other.optimizers)])
        every = tuple((name, self.of(name) | other.of(name)) for name in names)
        return State(every, self.is_due | other.is_due)


@dataclass
class Leaving:
    """Where paths leave a loop or a function early."""

    breaks: list[State]
    continues: list[State]
    returns: list[State]


def any_of(states: Iterable[State | None]) -> State | None:
    """What may be on any of several paths; None where none goes on."""
    found: State | None = None
    for state in states:
        if state is not None:
            found = state.joined(found)
    return found


def same(one: State, other: State) -> bool:
    """Whether two states say the same, in whatever order."""
    return dict(one.optimizers) == dict(other.optimizers) and one.is_due == other.is_due
