"""What is known of one model that DistributedDataParallel wraps."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plain_torch.uses import Use


@dataclass(frozen=True)
class Wrapped:
    """One model.

    Attributes:
        use: the call of ``prepare_model``.
        values: what it is.
        variable: what holds it after the call, as in ``self.model``; None where the call stands in an expression.
    """

    use: Use
    values: frozenset[Value]
    variable: str | None

    @property
    def has_own_line(self) -> bool:
        """Whether the call is a line of its own, ``model = amp.prepare_model(model)``."""
        return self.variable is not None and ast.unparse(self.use.argument) == self.variable
