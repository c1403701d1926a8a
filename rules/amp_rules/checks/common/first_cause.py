"""Findings that follow from another one: what an operation that raises would give, the mended one does not."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import IN_A_FUNCTION, Value


class FirstCause:
    """The operations of a function that were reported."""

    def __init__(self) -> None:
        self._reported: list[Value] = []

    def clear(self) -> None:
        """Begin with another function."""
        self._reported = []

    def follows(self, op: Value, given: Value) -> bool:
        """Whether what an operation is given was made by a reported one; takes the operation for reported if not."""
        if any(item in self._reported for item in given.behind(IN_A_FUNCTION)):
            return True
        self._reported.append(op)
        return False
