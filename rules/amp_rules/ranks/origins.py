"""Why a value differs between ranks, and the decisions that rest on such values."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from enum import Enum

from amp_rules.source.modules import Module


class Kind(Enum):
    """What makes values local to a rank.

    Random numbers are drawn alike outside of the passes over a prepared loader, and before ``amp.seed_by_rank()``.
    """

    BATCH = "each process has its own batches"
    DRAW = "each process draws its own random numbers"
    GENERATOR = "each process seeds this generator by itself"
    CLOCK = "each process reads its own clock"
    ORDER = "each process has its own order of a set"
    ENVIRONMENT = "each process steps its own environment"
    PROCESS = "it names the process or its machine"
    FAILURE = "it fails on some processes alone"

    # Members are unlike each other by identity; the hash of Enum costs a call for each look at a set.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Origin:
    """A place that gives each rank another value.

    Attributes:
        kind: how.
        module: the file.
        node: the place.
        name: the variable that gets it there, where the place itself does not say so.
        of_shape: whether it is a shape alone that differs, which says nothing of whether there is a batch.
    """

    kind: Kind
    module: Module
    node: ast.AST
    name: str = ""
    of_shape: bool = False

    @property
    def text(self) -> str:
        """What gives another value, as the script has it."""
        return self.name or self.module.text(self.node)

    @property
    def line(self) -> int:
        """The line that it begins on."""
        return int(getattr(self.node, "lineno", 1))

    def __hash__(self) -> int:
        return hash((self.kind, self.node))

    def __eq__(self, other: object) -> bool:
        # Sets of origins are joined more often than anything else is done with them.
        return (
            isinstance(other, Origin)
            and self.node is other.node
            and self.kind is other.kind
            and self.of_shape is other.of_shape
            and self.name == other.name
            and self.module is other.module
        )


Origins = frozenset[Origin]
NOWHERE: Origins = frozenset()


def of_shapes(origins: Origins) -> Origins:
    """The origins, where a shape alone differs."""
    return frozenset(replace(origin, of_shape=True) for origin in origins)


def of_anything(origins: Origins) -> Origins:
    """The origins, where what follows from a shape differs too."""
    if not any(origin.of_shape for origin in origins):
        return origins
    return frozenset(replace(origin, of_shape=False) for origin in origins)


@dataclass(frozen=True)
class Decision:
    """A test, or a number of rounds, that may come out differently on each rank.

    Attributes:
        module: the file.
        node: the test of a condition or loop, what a loop iterates, or the statement that may raise.
        origins: what makes it local.
        counts: whether it is the number of rounds of a ``for`` loop, or the elements of a comprehension.
    """

    module: Module
    node: ast.AST
    origins: Origins
    counts: bool = False

    def __hash__(self) -> int:
        return hash(self.node)

    def __eq__(self, other: object) -> bool:
        # One decision, whatever was known of its origins when it was met.
        return isinstance(other, Decision) and other.node is self.node


Decisions = frozenset[Decision]
UNDECIDED: Decisions = frozenset()


def origins_of(decisions: Decisions) -> Origins:
    """What makes any of the decisions local."""
    if not decisions:
        return NOWHERE
    return frozenset().union(*(decision.origins for decision in decisions))
