"""Who is shown the operations that the machine comes across."""

from __future__ import annotations

from typing import Protocol

from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame


class Observer(Protocol):
    """What wants to see operations; a lint rule is one."""

    @property
    def code(self) -> str:
        """By what it is told apart from others."""

    @property
    def operations(self) -> tuple[str, ...]:
        """The canonical names of the operations that it is shown."""

    @property
    def in_order(self) -> bool:
        """Whether it is about the order of events, for which loops are run twice."""

    @property
    def states(self) -> tuple[str, ...]:
        """The variables (``$...``) in which it keeps its states; see :mod:`amp_rules.lattice.paths`."""

    @property
    def follows(self) -> tuple[str, ...]:
        """Texts in the names of arguments for which a call is followed into another file."""

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at one operation."""
